"""The services and actions of a robot's file, compiled: what is observed of them, and what calls ask of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol_client.ros2 import Ros2BridgeError
from rtcontrol_client.ros2.config import Qos, RequestSpec, RobotConfig, ServedSpec, ToolSpec
from rtcontrol_client.ros2.parts import Order, Publication, Source, StateView, Topic, view_class
from rtcontrol_client.ros2.paths import compile_path
from rtcontrol_client.ros2.reading import Setter, reader, setter
from rtcontrol_client.ros2.types import find

Complain = Callable[[str, str], Ros2BridgeError]  # of what, and which key
UNKNOWN = "unknown"


@dataclass(frozen=True)
class ServedLink:
    """An action or a service of the robot, its type's full name and class; `relative` as of a topic."""

    name: str
    form: str
    cls: Any
    view: type[StateView]
    relative: bool


@dataclass(frozen=True)
class _Ask:
    name: str
    cls: Any
    setters: tuple[Setter, ...]
    pursues: bool  # a goal

    def publication(self, arguments: Mapping[str, Any], stamp_ns: int) -> Publication:
        message = self._made(arguments, stamp_ns)
        if not self.pursues:
            return Publication(self.name, message, repeat=False)
        return Publication(self.name, Order(message, repr(self._made(arguments, 0))), repeat=False)

    def _made(self, arguments: Mapping[str, Any], stamp_ns: int) -> Any:
        message = self.cls()
        for set_field in self.setters:
            set_field(message, arguments, stamp_ns)
        return message


class Links:
    """Raises what `complain` makes for what does not fit together."""

    def __init__(self, config: RobotConfig, complain: Complain) -> None:
        self._config, self._complain = config, complain
        self.actions: dict[str, ServedLink] = {}
        self.services: dict[str, ServedLink] = {}
        self._asks = {name: self._tool(name, tool) for name, tool in config.tools.items()}
        self._cancels = {name: self._none_of(name, tool) for name, tool in config.tools.items()}

    def publications(self, tool: str, arguments: Mapping[str, Any], stamp_ns: int) -> list[Publication]:
        """What a call asks. Raises Unmappable as the mapper's does."""
        ends = [Publication(name, Order(), repeat=False) for name in self._cancels[tool]]
        return ends + [ask.publication(arguments, stamp_ns) for ask in self._asks[tool]]

    def cancels(self, tool: str) -> list[str]:
        """The actions whose goals a call of the tool cancels."""
        return self._cancels[tool]

    def sources(self) -> list[Source]:
        """What is observed, as of topics that need not be there: each field stands alone."""
        observe = self._config.observe
        actions = [self._source(*one, self.actions, "actions", "a goal") for one in observe.actions.items()]
        return actions + [
            self._source(*one, self.services, "services", "a request") for one in observe.services.items()
        ]

    def _source(self, name: str, spec: ServedSpec, links: Mapping[str, ServedLink], key: str, what: str) -> Source:
        key = f"observe.{key}.{name}"
        link = links.get(_full(name))
        if link is None:
            raise self._complain(f"no tool has {what} for it, where its type would be", key)
        readers = {}
        for label, field in spec.fields.items():
            known = field if field.missing is not None else field.model_copy(update={"missing": UNKNOWN})
            try:
                readers[label] = (reader(link.view, known), known)
            except ValueError as error:
                raise self._complain(str(error), f"{key}.fields.{label}") from None
        topic = Topic(link.name, link.form, link.view, Qos(), link.relative)
        return Source(topic, math.inf, False, readers)

    def _tool(self, name: str, tool: ToolSpec) -> list[_Ask]:
        asks = [self._ask(tool, one, spec, f"tools.{name}.goal.{one}", True) for one, spec in tool.goal.items()]
        return asks + [
            self._ask(tool, one, spec, f"tools.{name}.request.{one}", False) for one, spec in tool.request.items()
        ]

    def _ask(self, tool: ToolSpec, name: str, spec: RequestSpec, key: str, pursues: bool) -> _Ask:
        try:
            cls = self._goal(name, spec, key) if pursues else self._request(name, spec, key)
        except ValueError as error:
            raise self._complain(str(error), f"{key}.type") from None
        setters = []
        for text, set_spec in spec.set.items():
            try:
                setters.append(setter(cls, compile_path(cls, text), set_spec, tool))
            except ValueError as error:
                raise self._complain(str(error), f"{key}.set.{text}") from None
        return _Ask(_full(name), cls, tuple(setters), pursues)

    def _goal(self, name: str, spec: RequestSpec, key: str) -> Any:
        form, cls = find(spec.type, "action")
        view = view_class(feedback=cls.Feedback, result=cls.Result)
        link = self._link(self.actions, ServedLink(_full(name), form, cls, view, self._relative(name, key)), key)
        return link.cls.Goal

    def _request(self, name: str, spec: RequestSpec, key: str) -> Any:
        form, cls = find(spec.type, "srv")
        view = view_class(response=cls.Response)
        link = self._link(self.services, ServedLink(_full(name), form, cls, view, self._relative(name, key)), key)
        return link.cls.Request

    def _link(self, known: dict[str, ServedLink], made: ServedLink, key: str) -> ServedLink:
        link = known.setdefault(made.name, made)
        if link.form != made.form:
            raise self._complain(f"it is said to be {link.form} and {made.form}", f"{key}.type")
        return link

    def _relative(self, name: str, key: str) -> bool:
        if name.startswith("~"):
            raise self._complain(f"{name} is private to a node: write the full name", key)
        return not name.startswith("/")

    def _none_of(self, name: str, tool: ToolSpec) -> list[str]:
        """The actions of which a call of the tool wants no goal: the safe call, of all that it has no goal for."""
        key = f"tools.{name}.cancel"
        pursued = {_full(one) for one in tool.goal}
        for one in map(_full, tool.cancel):
            if one not in self.actions:
                raise self._complain(f"no tool has a goal for {one}", key)
            if one in pursued:
                raise self._complain(f"the tool has a goal for {one}, too", key)
        wanted = list(self.actions) if name == self._config.safe.name else list(map(_full, tool.cancel))
        return [one for one in wanted if one not in pursued]


def _full(name: str) -> str:
    return f"/{name.removeprefix('/')}"
