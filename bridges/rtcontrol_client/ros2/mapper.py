"""The mapping of `robot.yaml`, compiled and checked: messages to an observation, a call to what is sent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from rtcontrol_client.ros2 import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.config import ActionSpec, FieldSpec, Qos, RobotConfig, Scalar, SetSpec, ToolSpec, TopicSpec
from rtcontrol_client.ros2.fields import Reader, Setter, find, reader, setter

UNKNOWN = "unknown"
# The longest silence that is promised to DDS: a late tick or two are not the end.
PROMISE_PERIODS, PROMISE_MS = 3, 100.0


@dataclass(frozen=True)
class Topic:
    """A topic by its name in the file, and its type."""

    name: str
    type: str
    cls: Any
    qos: Qos


@dataclass(frozen=True)
class Source:
    """A topic that is read, and its observation fields."""

    topic: Topic
    max_age_ms: float
    required: bool
    readers: Mapping[str, tuple[Reader, FieldSpec]]

    def read(self, message: Any) -> dict[str, Scalar | None]:
        """Return the message's fields. Raises Unmappable naming the field that has no value and no `missing`."""
        values: dict[str, Scalar | None] = {}
        for name, (read, spec) in self.readers.items():
            try:
                values[name] = read(message)
            except Unmappable as error:
                if spec.missing is None:
                    raise Unmappable(f"{name}: {error}") from None
                values[name] = spec.missing
        return values


@dataclass(frozen=True)
class Publication:
    """What is sent to a topic, a service or an action (an Order); `repeat`: in each tick while its call is active."""

    topic: str
    message: Any
    repeat: bool


@dataclass(frozen=True)
class Order:
    """A goal that a call wants, or, with `goal` None, that none is pursued. `key` is the same for the same goal,
    whenever it is stamped."""

    goal: Any = None
    key: str = ""


class StateView:
    """What is observed of an action: its state in a word, and the messages that have come."""

    parts: ClassVar[dict[str, Any]]
    state: str

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, Any]:
        """As a message class of ROS has it, so that field paths are checked against it."""
        return {"state": "string", **cls.parts}

    def __init__(self, state: str, **parts: Any) -> None:
        self.state = state
        vars(self).update({name: part for name, part in parts.items() if part is not None})

    def __getattr__(self, name: str) -> Any:
        raise Unmappable(f"there is no {name} yet")


@dataclass(frozen=True)
class ActionLink:
    """An action of the robot, its type's full name and class."""

    name: str
    form: str
    cls: Any
    view: type[StateView]


@dataclass(frozen=True)
class _Output:
    """What a call sends to a topic, a service or (`pursues`) an action; without `cls`: no goal is pursued there."""

    name: str
    cls: Any = None
    setters: tuple[Setter, ...] = ()
    repeat: bool = False
    pursues: bool = False

    def publication(self, arguments: Mapping[str, Any], stamp_ns: int) -> Publication:
        """Raises Unmappable naming the argument."""
        if self.cls is None:
            return Publication(self.name, Order(), repeat=False)
        message = self._message(arguments, stamp_ns)
        if self.pursues:
            message = Order(message, repr(self._message(arguments, 0)))
        return Publication(self.name, message, self.repeat)

    def _message(self, arguments: Mapping[str, Any], stamp_ns: int) -> Any:
        message = self.cls()
        for set_field in self.setters:
            set_field(message, arguments, stamp_ns)
        return message


class Mapper:
    """What the whole file says. Raises Ros2BridgeError, naming file, key and remedy, for what does not fit together."""

    def __init__(self, config: RobotConfig, where: str) -> None:
        self.config, self._where = config, where
        self._types: dict[str, str] = {}  # of each name in the file
        self.topics: dict[str, Topic] = {}  # that calls write
        self.actions: dict[str, ActionLink] = {}
        self.services: dict[str, Any] = {}  # name -> class
        self.sources = [self._source(name, spec) for name, spec in config.observe.topics.items()]
        sent = {name: self._sent(name, tool) for name, tool in config.tools.items()}
        # The cancellations first: they free the robot for what is sent.
        self._outputs = {name: [*self._canceled(name, tool), *sent[name]] for name, tool in config.tools.items()}
        self.sources += [self._action_source(name, spec) for name, spec in config.observe.actions.items()]
        self.instructions: Topic | None = None
        if config.instruction_topic is not None:
            qos = Qos(reliability="reliable", depth=10)
            name = config.instruction_topic
            self.instructions = self._topic(name, "std_msgs/msg/String", qos, "instruction_topic")
        self._check_text()
        self._check_safe()

    def hello(self, instruction: str | None) -> dict[str, Any]:
        """Return the client's `Options`, but for its handlers; `instruction` None: the file's."""
        config = self.config
        return {
            **config.session,
            "tools": [spec.openai(name) for name, spec in config.tools.items()],
            "instruction": config.instruction if instruction is None else instruction,
            "safe_call": {"name": config.safe.name, "arguments": config.safe.arguments},
            "hz": config.hz,
            "robot": config.robot,
            "name": "rtcontrol_client.ros2",
        }

    def text(self, values: Mapping[str, Scalar | None]) -> str | None:
        """Return the observation's text, None where the file has no template."""
        template = self.config.observe.text
        shown = {name: UNKNOWN if value is None else str(value) for name, value in values.items()}
        return None if template is None else template.format_map(shown)

    def publications(self, name: str, arguments: Mapping[str, Any], stamp_ns: int) -> list[Publication]:
        """Return what a call sends; `stamp_ns` is the clock's time for `now`. Raises Unmappable naming tool and
        argument: then nothing of the call may be published."""
        if name not in self._outputs:
            raise Unmappable(f"{name} is not a tool of this robot")
        return [output.publication(arguments, stamp_ns) for output in self._outputs[name]]

    def promise_ms(self, topic: str) -> float | None:
        """Return the longest silence of a topic that every call publishes in each tick, which means that nothing
        drives; None for another topic."""
        steady = all(any(o.repeat and o.name == topic for o in outputs) for outputs in self._outputs.values())
        return max(PROMISE_PERIODS * 1e3 / self.config.hz, PROMISE_MS) if steady else None

    def listed(self) -> list[str]:
        """Return a line for each topic, tool, and the safe call."""
        lines = [f"reads     {s.topic.name}  {s.topic.type}  -> {', '.join(s.readers)}" for s in self.sources]
        lines += [f"publishes {topic.name}  {topic.type}" for topic in self.topics.values()]
        for name, tool in self.config.tools.items():
            does = [
                f"no goal of {output.name}" if output.cls is None else output.name for output in self._outputs[name]
            ]
            lines.append(f"tool      {name}({', '.join(tool.parameters)})  -> {', '.join(does) or 'nothing'}")
        return [*lines, f"safe call {self.config.safe.name}"]

    def warnings(self) -> list[str]:
        """Return what is allowed, and dangerous."""
        safe = {output.name for output in self._outputs[self.config.safe.name]}
        return [
            f"{self._where}: tool {name} keeps publishing {output.name}, but the safe call "
            f"{self.config.safe.name} publishes nothing there: what the robot received last stays active."
            for name, outputs in self._outputs.items()
            for output in outputs
            if output.repeat and output.name not in safe
        ]

    # Compiling.

    def _error(self, what: str, key: str) -> Ros2BridgeError:
        return Ros2BridgeError(f"{self._where}: {key}: {what}.", "Correct it there.")

    @contextmanager
    def _at(self, key: str) -> Iterator[None]:
        """Name file and key in what is wrong here."""
        try:
            yield
        except ValueError as error:
            raise self._error(str(error), key) from None

    def _class(self, name: str, kind: str, form: str, key: str) -> tuple[str, Any]:
        """Return the full name and the class of the type that this name has throughout the file."""
        with self._at(f"{key}.type"):
            full, cls = find(kind, form)
            if (known := self._types.setdefault(name, full)) != full:
                raise ValueError(f"{name} has two types, {known} and {full}")
            return full, cls

    def _topic(self, name: str, kind: str, qos: Qos, key: str) -> Topic:
        return Topic(name, *self._class(name, kind, "msg", key), qos)

    def _readers(self, cls: Any, specs: Mapping[str, FieldSpec], key: str) -> dict[str, tuple[Reader, FieldSpec]]:
        readers = {}
        for label, spec in specs.items():
            with self._at(f"{key}.fields.{label}"):
                readers[label] = (reader(cls, spec), spec)
        return readers

    def _setters(self, cls: Any, specs: Mapping[str, SetSpec], tool: ToolSpec, key: str) -> tuple[Setter, ...]:
        setters = []
        for text, spec in specs.items():
            with self._at(f"{key}.set.{text}"):
                setters.append(setter(cls, text, spec, tool))
        return tuple(setters)

    def _source(self, name: str, spec: TopicSpec) -> Source:
        key = f"observe.topics.{name}"
        topic = self._topic(name, spec.type, spec.qos, key)
        return Source(topic, spec.max_age_ms, spec.required, self._readers(topic.cls, spec.fields, key))

    def _action_source(self, name: str, spec: ActionSpec) -> Source:
        """Return an action as a topic that need not be there, each field by itself."""
        key, link = f"observe.actions.{name}", self.actions.get(name)
        if link is None:
            raise self._error("no tool has a goal for it, where its type would be", key)
        fields = {
            label: field if field.missing is not None else field.model_copy(update={"missing": UNKNOWN})
            for label, field in spec.fields.items()
        }
        topic = Topic(link.name, link.form, link.view, Qos())
        return Source(topic, math.inf, False, self._readers(link.view, fields, key))

    def _sent(self, tool_name: str, tool: ToolSpec) -> list[_Output]:
        """Return what a call publishes, its goals and its requests."""
        outputs = []
        for name, spec in tool.publish.items():
            key = f"tools.{tool_name}.publish.{name}"
            topic = self._topic(name, spec.type, spec.qos, key)
            if self.topics.setdefault(name, topic) != topic:
                raise self._error(f"{name} has another QoS in another tool", key)
            outputs.append(_Output(name, topic.cls, self._setters(topic.cls, spec.set, tool, key), spec.repeat))
        for name, goal in tool.goal.items():
            key = f"tools.{tool_name}.goal.{name}"
            full, cls = self._class(name, goal.type, "action", key)
            view = type("StateView", (StateView,), {"parts": {"feedback": cls.Feedback, "result": cls.Result}})
            self.actions.setdefault(name, ActionLink(name, full, cls, view))
            outputs.append(_Output(name, cls.Goal, self._setters(cls.Goal, goal.set, tool, key), pursues=True))
        for name, request in tool.request.items():
            key = f"tools.{tool_name}.request.{name}"
            self.services[name] = cls = self._class(name, request.type, "srv", key)[1]
            outputs.append(_Output(name, cls.Request, self._setters(cls.Request, request.set, tool, key)))
        return outputs

    def _canceled(self, tool_name: str, tool: ToolSpec) -> list[_Output]:
        """Return the actions whose goals a call ends: those in `cancel`, and by the safe call all."""
        for name in tool.cancel:
            if name not in self.actions or name in tool.goal:
                raise self._error(f"no other tool has a goal for {name}", f"tools.{tool_name}.cancel")
        wanted = self.actions if tool_name == self.config.safe.name else tool.cancel
        return [_Output(name) for name in wanted if name not in tool.goal]

    def _check_text(self) -> None:
        fields = [field for source in self.sources for field in source.readers]
        if twice := sorted({field for field in fields if fields.count(field) > 1}):
            raise self._error(f"the field {twice[0]!r} is given twice", "observe")
        with self._at("observe.text"):
            try:
                self.text(dict.fromkeys(fields))
            except (LookupError, AttributeError) as error:
                raise ValueError(f"there is no field {error}; there are {', '.join(fields)}") from None

    def _check_safe(self) -> None:
        safe = self.config.safe
        spec = self.config.tools.get(safe.name)
        if spec is None:
            raise self._error(f"there is no tool {safe.name!r}; there are {', '.join(self.config.tools)}", "safe")
        with self._at("safe.arguments"):
            if safe.arguments.keys() != spec.parameters.keys():
                raise ValueError(f"{safe.name} takes {', '.join(spec.parameters) or 'none'}")
            self.publications(safe.name, safe.arguments, 0)
