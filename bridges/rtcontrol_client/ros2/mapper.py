"""The mapping of `robot.yaml`, compiled and checked: messages to an observation, a call to what is sent. Pure."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol_client.ros2 import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.clock import CLOCK
from rtcontrol_client.ros2.config import (
    FieldSpec,
    PublishSpec,
    Qos,
    RequestSpec,
    RobotConfig,
    Scalar,
    ServedSpec,
    SetSpec,
    ToolSpec,
    TopicSpec,
)
from rtcontrol_client.ros2.parts import Order, Publication, Source, StateView, Topic, view_class
from rtcontrol_client.ros2.reading import Reader, Setter, reader, setter
from rtcontrol_client.ros2.types import compile_path, find

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
class _Output:
    """What a call sends to a topic, a service or (`pursues`) an action; without `cls`: no goal is pursued there."""

    name: str
    cls: Any = None
    setters: tuple[Setter, ...] = ()
    topic: Topic | None = None
    repeat: bool = False
    pursues: bool = False

    def publication(self, arguments: Mapping[str, Any], stamp_ns: int) -> Publication:
        """Raises Unmappable naming the argument."""
        if self.cls is None:
            return Publication(self.name, Order(), repeat=False)
        message = self._made(arguments, stamp_ns)
        if self.pursues:
            message = Order(message, repr(self._made(arguments, 0)))
        return Publication(self.name, message, self.repeat)

    def _made(self, arguments: Mapping[str, Any], stamp_ns: int) -> Any:
        message = self.cls()
        for set_field in self.setters:
            set_field(message, arguments, stamp_ns)
        return message


class Mapper:
    """What the whole file says. Raises Ros2BridgeError, naming file, key and remedy, for what does not fit together."""

    def __init__(self, config: RobotConfig, where: str) -> None:
        self.config, self._where = config, where
        self._once("observe.topics", config.observe.topics)
        for name, tool in config.tools.items():
            self._once(f"tools.{name}.publish", tool.publish)
        self.actions: dict[str, ServedLink] = {}
        self.services: dict[str, ServedLink] = {}
        self.sources = [self._source(name, spec) for name, spec in config.observe.topics.items()]
        self._outputs = {name: self._published(name, tool) for name, tool in config.tools.items()}
        self.topics = self._written()
        asked = {name: self._asked(name, tool) for name, tool in config.tools.items()}
        for name, tool in config.tools.items():
            self._outputs[name] += [*self._canceled(name, tool), *asked[name]]
        self.sources += [self._served("actions", *one, self.actions) for one in config.observe.actions.items()]
        self.sources += [self._served("services", *one, self.services) for one in config.observe.services.items()]
        self._apart()
        self.instructions, self.diagnostics = self._own()
        self.clock = self._topic(CLOCK, "rosgraph_msgs/msg/Clock", Qos(), CLOCK) if config.use_sim_time else None
        self.picture = (
            None
            if (camera := config.picture) is None
            else self._topic(camera.topic, "sensor_msgs/msg/CompressedImage", camera.qos, "picture.topic")
        )
        self._check_types()
        fields = [field for source in self.sources for field in source.readers]
        twice = sorted({field for field in fields if fields.count(field) > 1})
        if twice:
            raise self._error(f"the field {twice[0]!r} is given twice", "observe", "Rename one of them.")
        self._template = self._parts(fields)
        self._check_safe()

    def hello(self, instruction: str | None, hz: float) -> dict[str, Any]:
        """What a client is to ask for (its `Options`), but for its handlers; `instruction` None: the file's."""
        config = self.config
        return {
            "tools": [spec.openai(name) for name, spec in config.tools.items()],
            "instruction": config.instruction if instruction is None else instruction,
            "safe_call": {"name": config.safe.name, "arguments": config.safe.arguments},
            "hz": hz,
            "robot": config.robot,
            "name": "rtcontrol_client.ros2",
            **{key: value for key, value in config.session.model_dump().items() if value is not None},
        }

    def text(self, values: Mapping[str, Scalar | None]) -> str | None:
        """The observation's text, None where the file has no template."""
        if self._template is None:
            return None
        shown = {name: "unknown" if value is None else str(value) for name, value in values.items()}
        return "".join(words + ("" if name is None else shown[name]) for words, name in self._template)

    def publications(self, name: str, arguments: Mapping[str, Any], stamp_ns: int) -> list[Publication]:
        """What a call sends; `stamp_ns` is the wall clock's time for `now`. Raises Unmappable naming tool and
        argument: then nothing of the call may be published."""
        if name not in self._outputs:
            raise Unmappable(f"{name} is no tool of this robot")
        return [output.publication(arguments, stamp_ns) for output in self._outputs[name]]

    def cancels(self, tool: str) -> list[str]:
        """The actions whose goals a call of the tool cancels."""
        return [output.name for output in self._outputs[tool] if output.cls is None]

    def steady(self) -> set[str]:
        """The topics that every call publishes anew each tick, so that their silence means that nobody drives."""
        each = [{out.name for out in outputs if out.repeat} for outputs in self._outputs.values()]
        return set.intersection(*each)

    def warnings(self) -> list[str]:
        """What is allowed, and dangerous."""
        safe = {output.name for output in self._outputs[self.config.safe.name]}
        return [
            f"{self._where}: tool {name} keeps publishing {output.name}, but the safe call "
            f"{self.config.safe.name} publishes nothing there: what the robot heard last stays in force."
            for name, outputs in self._outputs.items()
            for output in outputs
            if output.repeat and output.name not in safe
        ]

    # Compiling.

    def _once(self, key: str, names: Iterable[str]) -> None:
        full = [name.removeprefix("/") for name in names]
        if twice := next((name for name in full if full.count(name) > 1), None):
            raise self._error(f"{twice} and /{twice} are the same topic", key, "Put both into one.")

    def _error(self, what: str, key: str, remedy: str = "") -> Ros2BridgeError:
        return Ros2BridgeError(f"{self._where}: {key}: {what}.", remedy or "Correct it there.")

    def _named(self, name: str, key: str) -> tuple[str, bool]:
        """The name with its /, and whether a namespace goes before it."""
        if name.startswith("~"):
            raise self._error(f"{name} is private to a node", key, "Write the full name, such as /robot/cmd_vel.")
        return _full(name), not name.startswith("/")

    def _found(self, kind: str, form: str, key: str) -> tuple[str, Any]:
        try:
            return find(kind, form)
        except ValueError as error:
            raise self._error(str(error), f"{key}.type") from None

    def _topic(self, name: str, kind: str, qos: Qos, key: str) -> Topic:
        full_name, relative = self._named(name, key)
        return Topic(full_name, *self._found(kind, "msg", key), qos, relative)

    def _readers(self, cls: Any, specs: Mapping[str, FieldSpec], key: str) -> dict[str, tuple[Reader, FieldSpec]]:
        readers = {}
        for label, spec in specs.items():
            try:
                readers[label] = (reader(cls, spec), spec)
            except ValueError as error:
                raise self._error(str(error), f"{key}.fields.{label}") from None
        return readers

    def _setters(self, cls: Any, specs: Mapping[str, SetSpec], tool: ToolSpec, key: str) -> tuple[Setter, ...]:
        setters = []
        for text, spec in specs.items():
            try:
                setters.append(setter(cls, compile_path(cls, text), spec, tool))
            except ValueError as error:
                raise self._error(str(error), f"{key}.set.{text}") from None
        return tuple(setters)

    def _source(self, name: str, spec: TopicSpec) -> Source:
        key = f"observe.topics.{name}"
        topic = self._topic(name, spec.type, spec.qos, key)
        return Source(topic, spec.max_age_ms, spec.required, self._readers(topic.cls, spec.fields, key))

    def _served(self, kind: str, name: str, spec: ServedSpec, links: Mapping[str, ServedLink]) -> Source:
        """What is observed of an action or a service: as of a topic that need not be there, each field by itself."""
        key, link = f"observe.{kind}.{name}", links.get(_full(name))
        if link is None:
            what = "a goal" if kind == "actions" else "a request"
            raise self._error(f"no tool has {what} for it, where its type would be", key)
        fields = {
            label: field if field.missing is not None else field.model_copy(update={"missing": UNKNOWN})
            for label, field in spec.fields.items()
        }
        topic = Topic(link.name, link.form, link.view, Qos(), link.relative)
        return Source(topic, math.inf, False, self._readers(link.view, fields, key))

    def _published(self, name: str, tool: ToolSpec) -> list[_Output]:
        return [self._output(tool, topic, out, f"tools.{name}.publish.{topic}") for topic, out in tool.publish.items()]

    def _output(self, tool: ToolSpec, name: str, spec: PublishSpec, key: str) -> _Output:
        topic = self._topic(name, spec.type, spec.qos, key)
        setters = self._setters(topic.cls, spec.set, tool, key)
        return _Output(topic.name, topic.cls, setters, topic, spec.repeat)

    def _asked(self, name: str, tool: ToolSpec) -> list[_Output]:
        goals = [self._goal(tool, one, spec, f"tools.{name}.goal.{one}") for one, spec in tool.goal.items()]
        return goals + [
            self._request(tool, one, spec, f"tools.{name}.request.{one}") for one, spec in tool.request.items()
        ]

    def _goal(self, tool: ToolSpec, name: str, spec: RequestSpec, key: str) -> _Output:
        form, cls = self._found(spec.type, "action", key)
        view = view_class(feedback=cls.Feedback, result=cls.Result)
        link = self._link(self.actions, name, form, cls, view, key)
        return _Output(link.name, link.cls.Goal, self._setters(link.cls.Goal, spec.set, tool, key), pursues=True)

    def _request(self, tool: ToolSpec, name: str, spec: RequestSpec, key: str) -> _Output:
        form, cls = self._found(spec.type, "srv", key)
        link = self._link(self.services, name, form, cls, view_class(response=cls.Response), key)
        return _Output(link.name, link.cls.Request, self._setters(link.cls.Request, spec.set, tool, key))

    def _link(self, known: dict[str, ServedLink], name: str, form: str, cls: Any, view: Any, key: str) -> ServedLink:
        full_name, relative = self._named(name, key)
        link = known.setdefault(full_name, ServedLink(full_name, form, cls, view, relative))
        if link.form != form:
            raise self._error(f"it is said to be {link.form} and {form}", f"{key}.type")
        return link

    def _canceled(self, name: str, tool: ToolSpec) -> list[_Output]:
        """The actions of which a call of the tool wants no goal: the safe call, of all that it has no goal for."""
        key, given, pursued = f"tools.{name}.cancel", list(map(_full, tool.cancel)), set(map(_full, tool.goal))
        for one in given:
            if one not in self.actions:
                raise self._error(f"no tool has a goal for {one}", key)
            if one in pursued:
                raise self._error(f"the tool has a goal for {one}, too", key)
        wanted = list(self.actions) if name == self.config.safe.name else given
        return [_Output(one) for one in wanted if one not in pursued]

    def _written(self) -> list[Topic]:
        found: dict[str, Topic] = {}
        for name, outputs in self._outputs.items():
            for topic in [output.topic for output in outputs if output.topic is not None]:
                if found.setdefault(topic.name, topic) != topic:
                    what = f"{topic.name} has another type or QoS in another tool"
                    raise self._error(what, f"tools.{name}.publish", "A topic has one type: make them the same.")
        return list(found.values())

    def _apart(self) -> None:
        served = [*self.actions, *self.services]
        topics = {topic.name for topic in self.topics} | set(map(_full, self.config.observe.topics))
        for name in served:
            if name in topics or served.count(name) > 1:
                what = f"{name} is a topic, a service or an action, and another one of these"
                raise self._error(what, "tools", "Give the names in full: they differ on the robot.")

    def _own(self) -> tuple[Topic | None, Topic | None]:
        """The topics of the bridge itself: instructions in, diagnostics out."""
        heard, told = self.config.instruction_topic, self.config.diagnostics
        kind = "std_msgs/msg/String"
        reliable = Qos(reliability="reliable", depth=10)
        return (
            None if heard is None else self._topic(heard, kind, reliable, "instruction_topic"),
            self._topic(told.topic, "diagnostic_msgs/msg/DiagnosticArray", Qos(), "diagnostics.topic")
            if told.hz
            else None,
        )

    def _check_types(self) -> None:
        known: dict[str, str] = {}
        ways: dict[str, bool] = {}
        extra = (self.instructions, self.diagnostics, self.clock, self.picture)
        own = [topic for topic in extra if topic is not None]
        written = [out.topic for outputs in self._outputs.values() for out in outputs if out.topic is not None]
        for topic in [*(source.topic for source in self.sources), *written, *own]:
            if known.setdefault(topic.name, topic.type) != topic.type:
                what = f"it is said to be {known[topic.name]} and {topic.type}"
                raise self._error(what, topic.name, "A topic has one type: correct it, or use another name.")
            if ways.setdefault(topic.name, topic.relative) != topic.relative:
                what = "it is written with / before it and without: in a node with a namespace these are two topics"
                raise self._error(what, topic.name, "Write it in one way everywhere.")

    def _parts(self, fields: list[str]) -> list[tuple[str, str | None]] | None:
        """The observation's text as words and the field after them."""
        text = self.config.observe.text
        if text is None:
            return None
        remedy = "Write fields in braces: x {x}."
        try:
            parts = list(string.Formatter().parse(text))
            text.encode()
        except UnicodeEncodeError:
            raise self._error("it is no valid Unicode", "observe.text", remedy) from None
        except ValueError as error:
            raise self._error(str(error), "observe.text", remedy) from None
        for _, name, form, conversion in parts:
            if name is None:
                continue
            if name not in fields:
                raise self._error(f"there is no field {{{name}}}", "observe.text", f"Use {', '.join(fields)}.")
            # An absent field is a word, which a format for numbers would not take.
            if form or conversion:
                raise self._error(f"{{{name}}} has a format of its own", "observe.text", f"{remedy} `digits` rounds.")
        return [(words, name) for words, name, _, _ in parts]

    def _check_safe(self) -> None:
        safe = self.config.safe
        spec = self.config.tools.get(safe.name)
        if spec is None:
            raise self._error(f"there is no tool {safe.name!r}", "safe", f"Name one of {', '.join(self.config.tools)}.")
        for name in [n for n in spec.needs() if n not in safe.arguments] + [
            n for n in safe.arguments if n not in spec.parameters
        ]:
            what = "is missing" if name in spec.parameters else "is no parameter of it"
            raise self._error(f"the argument {name!r} of {safe.name} {what}", "safe.arguments")
        try:
            self.publications(safe.name, safe.arguments, 0)
        except Unmappable as error:
            raise self._error(str(error), "safe.arguments") from None


def _full(name: str) -> str:
    return f"/{name.removeprefix('/')}"
