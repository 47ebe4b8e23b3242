"""Compile and check the mapping of `robot.yaml`: from messages to an observation, and from a call to messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rtcontrol_client.ros2 import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.config import ActionSpec, FieldSpec, Qos, RobotConfig, Scalar, SetSpec, ToolSpec, TopicSpec
from rtcontrol_client.ros2.fields import Reader, Setter, find_type, make_reader, make_setter

UNKNOWN = "unknown"
# The DDS deadline that publishers announce; it is long enough for one or two late ticks.
PROMISE_PERIODS, PROMISE_MS = 3, 100.0


@dataclass(frozen=True)
class Topic:
    """A topic with its name in the file, its type and its quality of service. If `stamped`, the age of a message counts
    from its `header.stamp`."""

    name: str
    type: str
    cls: Any
    qos: Qos
    stamped: bool = False


@dataclass(frozen=True)
class Source:
    """A topic that the bridge subscribes to, with its observation fields."""

    topic: Topic
    max_age_ms: float
    required: bool
    readers: Mapping[str, tuple[Reader, FieldSpec]]

    def read(self, message: Any) -> dict[str, Scalar | None]:
        """Return a message's observation fields. Raises Unmappable if a field has neither a value nor `missing`."""
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
    """A message for a topic, a request to a service or an GoalOrder for an action. `repeat`: send it in each tick."""

    topic: str
    message: Any
    repeat: bool


@dataclass(frozen=True)
class GoalOrder:
    """A goal that a call sends to an action, or None to cancel its goals. Goals that differ only in time stamps have
    the same `key`."""

    goal: Any = None
    key: str = ""


class StateView:
    """The observable state of an action: the state's name, and the latest feedback and result."""

    parts: ClassVar[dict[str, Any]]
    state: str

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, Any]:
        """Return the field types as a ROS message class does, so that field paths can be checked."""
        return {"state": "string", **cls.parts}

    def __init__(self, state: str, **parts: Any) -> None:
        self.state = state
        vars(self).update({name: part for name, part in parts.items() if part is not None})

    def __getattr__(self, name: str) -> Any:
        raise Unmappable(f"there is no {name} yet")


@dataclass(frozen=True)
class ActionLink:
    """An action of the robot: its name, and the full name and class of its type."""

    name: str
    form: str
    cls: Any
    view: type[StateView]


@dataclass(frozen=True)
class _Output:
    """A call's output to a topic, a service, or (if `pursues`) an action. Without `cls`, it cancels the goal."""

    name: str
    cls: Any = None
    setters: tuple[Setter, ...] = ()
    repeat: bool = False
    pursues: bool = False

    def publication(self, arguments: Mapping[str, Any], stamp_ns: int) -> Publication:
        """Return the output for a call's arguments. Raises Unmappable, which names the argument that does not fit."""
        if self.cls is None:
            return Publication(self.name, GoalOrder(), repeat=False)
        message = self._create_message(arguments, stamp_ns)
        if self.pursues:
            message = GoalOrder(message, repr(self._create_message(arguments, 0)))
        return Publication(self.name, message, self.repeat)

    def _create_message(self, arguments: Mapping[str, Any], stamp_ns: int) -> Any:
        message = self.cls()
        for set_field in self.setters:
            set_field(message, arguments, stamp_ns)
        return message


class Mapper:
    """The compiled mapping of a robot.yaml. Raises Ros2BridgeError, which names file and key, if it is not valid."""

    def __init__(self, config: RobotConfig, where: str) -> None:
        self.config, self._file_name = config, where
        self._type_names: dict[str, str] = {}  # by name in the file: its type
        self.topics: dict[str, Topic] = {}  # topics to which calls are published
        self.actions: dict[str, ActionLink] = {}
        self.services: dict[str, Any] = {}  # by name: the service's class
        self.sources = [self._compile_source(name, spec) for name, spec in config.observe.topics.items()]
        sent = {name: self._outputs_of(name, tool) for name, tool in config.tools.items()}
        # Cancellations are sent first, so that the robot is free for the new messages.
        self._outputs = {name: [*self._cancellations(name, tool), *sent[name]] for name, tool in config.tools.items()}
        self.sources += [self._compile_action_source(name, spec) for name, spec in config.observe.actions.items()]
        self.instructions: Topic | None = None
        if config.instruction_topic is not None:
            qos = Qos(reliability="reliable", depth=10)
            name = config.instruction_topic
            self.instructions = self._compile_topic(name, "std_msgs/msg/String", qos, "instruction_topic")
        self._check_text()
        self._check_safe()

    def client_options(self, instruction: str | None) -> dict[str, Any]:
        """Return values for the client's `Options`. If `instruction` is None, use the file's instruction."""
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
        """Return the observation's text, or None if the file has no template."""
        template = self.config.observe.text
        shown = {name: UNKNOWN if value is None else str(value) for name, value in values.items()}
        return None if template is None else template.format_map(shown)

    def publications(self, name: str, arguments: Mapping[str, Any], stamp_ns: int) -> list[Publication]:
        """Return the messages of a call, with the time stamp `stamp_ns`. Raises Unmappable, which names tool and
        argument, if a message cannot be created; then no part of the call may be published."""
        if name not in self._outputs:
            raise Unmappable(f"{name} is not a tool of this robot")
        return [output.publication(arguments, stamp_ns) for output in self._outputs[name]]

    def max_interval_ms(self, topic: str) -> float | None:
        """Return the longest interval between messages on a topic. After this time without a message, subscribers may
        assume that no call drives the robot. Return None for a topic on which not every call publishes in each tick."""
        steady = all(any(o.repeat and o.name == topic for o in outputs) for outputs in self._outputs.values())
        return max(PROMISE_PERIODS * 1e3 / self.config.hz, PROMISE_MS) if steady else None

    def describe_mapping(self) -> list[str]:
        """Return the lines that `--check` prints: one for each topic, one for each tool, and the safe call."""
        lines = [f"reads     {s.topic.name}  {s.topic.type}  -> {', '.join(s.readers)}" for s in self.sources]
        lines += [f"publishes {topic.name}  {topic.type}" for topic in self.topics.values()]
        for name, tool in self.config.tools.items():
            does = [
                f"no goal of {output.name}" if output.cls is None else output.name for output in self._outputs[name]
            ]
            lines.append(f"tool      {name}({', '.join(tool.parameters)})  -> {', '.join(does) or 'nothing'}")
        return [*lines, f"safe call {self.config.safe.name}"]

    def warnings(self) -> list[str]:
        """Return warnings about mappings that are valid but dangerous."""
        safe = {output.name for output in self._outputs[self.config.safe.name]}
        return [
            f"{self._file_name}: tool {name} keeps publishing {output.name}, but the safe call "
            f"{self.config.safe.name} publishes nothing on it: the robot keeps following the last message."
            for name, outputs in self._outputs.items()
            for output in outputs
            if output.repeat and output.name not in safe
        ]

    # The methods below compile the file.

    def _key_error(self, what: str, key: str) -> Ros2BridgeError:
        return Ros2BridgeError(f"{self._file_name}: {key}: {what}.", "Correct this key.")

    @contextmanager
    def _naming_key(self, key: str) -> Iterator[None]:
        """Convert a ValueError of the `with` block to a Ros2BridgeError that names the file and the key."""
        try:
            yield
        except ValueError as error:
            raise self._key_error(str(error), key) from None

    def _find_class(self, name: str, kind: str, form: str, key: str) -> tuple[str, Any]:
        """Return the full name and the class of the type of `name`, which must be the same in the whole file."""
        with self._naming_key(f"{key}.type"):
            full, cls = find_type(kind, form)
            if (known := self._type_names.setdefault(name, full)) != full:
                raise ValueError(f"{name} has two types, {known} and {full}")
            return full, cls

    def _compile_topic(self, name: str, kind: str, qos: Qos, key: str) -> Topic:
        return Topic(name, *self._find_class(name, kind, "msg", key), qos)

    def _readers(self, cls: Any, specs: Mapping[str, FieldSpec], key: str) -> dict[str, tuple[Reader, FieldSpec]]:
        readers = {}
        for label, spec in specs.items():
            with self._naming_key(f"{key}.fields.{label}"):
                readers[label] = (make_reader(cls, spec), spec)
        return readers

    def _compile_setters(self, cls: Any, specs: Mapping[str, SetSpec], tool: ToolSpec, key: str) -> tuple[Setter, ...]:
        setters = []
        for text, spec in specs.items():
            with self._naming_key(f"{key}.set.{text}"):
                setters.append(make_setter(cls, text, spec, tool))
        return tuple(setters)

    def _compile_source(self, name: str, spec: TopicSpec) -> Source:
        key = f"observe.topics.{name}"
        topic = replace(self._compile_topic(name, spec.type, spec.qos, key), stamped=spec.header_stamp)
        return Source(topic, spec.max_age_ms, spec.required, self._readers(topic.cls, spec.fields, key))

    def _compile_action_source(self, name: str, spec: ActionSpec) -> Source:
        """Return an action as an optional topic. A field without a value is observed as UNKNOWN."""
        key, link = f"observe.actions.{name}", self.actions.get(name)
        if link is None:
            raise self._key_error("no tool has a goal for this action, so its type is unknown", key)
        fields = {
            label: field if field.missing is not None else field.model_copy(update={"missing": UNKNOWN})
            for label, field in spec.fields.items()
        }
        topic = Topic(link.name, link.form, link.view, Qos())
        return Source(topic, math.inf, False, self._readers(link.view, fields, key))

    def _outputs_of(self, tool_name: str, tool: ToolSpec) -> list[_Output]:
        """Return the publications, goals and requests of a tool."""
        outputs = []
        for name, spec in tool.publish.items():
            key = f"tools.{tool_name}.publish.{name}"
            topic = self._compile_topic(name, spec.type, spec.qos, key)
            if self.topics.setdefault(name, topic) != topic:
                raise self._key_error(f"{name} has another QoS in another tool", key)
            outputs.append(_Output(name, topic.cls, self._compile_setters(topic.cls, spec.set, tool, key), spec.repeat))
        for name, goal in tool.goal.items():
            key = f"tools.{tool_name}.goal.{name}"
            full, cls = self._find_class(name, goal.type, "action", key)
            view = type("StateView", (StateView,), {"parts": {"feedback": cls.Feedback, "result": cls.Result}})
            self.actions.setdefault(name, ActionLink(name, full, cls, view))
            outputs.append(_Output(name, cls.Goal, self._compile_setters(cls.Goal, goal.set, tool, key), pursues=True))
        for name, request in tool.request.items():
            key = f"tools.{tool_name}.request.{name}"
            self.services[name] = cls = self._find_class(name, request.type, "srv", key)[1]
            outputs.append(_Output(name, cls.Request, self._compile_setters(cls.Request, request.set, tool, key)))
        return outputs

    def _cancellations(self, tool_name: str, tool: ToolSpec) -> list[_Output]:
        """Return cancellations of the goals of actions: those in the tool's `cancel`, or all for the safe call."""
        for name in tool.cancel:
            if name not in self.actions or name in tool.goal:
                raise self._key_error(f"no other tool has a goal for {name}", f"tools.{tool_name}.cancel")
        wanted = self.actions if tool_name == self.config.safe.name else tool.cancel
        return [_Output(name) for name in wanted if name not in tool.goal]

    def _check_text(self) -> None:
        fields = [field for source in self.sources for field in source.readers]
        if twice := sorted({field for field in fields if fields.count(field) > 1}):
            raise self._key_error(f"the field {twice[0]!r} occurs twice", "observe")
        with self._naming_key("observe.text"):
            try:
                self.text(dict.fromkeys(fields))
            except (LookupError, AttributeError) as error:
                raise ValueError(f"there is no field {error}; there are {', '.join(fields)}") from None

    def _check_safe(self) -> None:
        safe = self.config.safe
        spec = self.config.tools.get(safe.name)
        if spec is None:
            raise self._key_error(f"there is no tool {safe.name!r}; there are {', '.join(self.config.tools)}", "safe")
        with self._naming_key("safe.arguments"):
            if safe.arguments.keys() != spec.parameters.keys():
                raise ValueError(f"{safe.name} takes {', '.join(spec.parameters) or 'none'}")
            self.publications(safe.name, safe.arguments, 0)
