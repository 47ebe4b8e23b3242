"""The mapping of `robot.yaml`, compiled and checked: messages to an observation, a call to messages. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol_client.ros2 import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.clock import CLOCK
from rtcontrol_client.ros2.config import PublishSpec, Qos, RobotConfig, Scalar, ToolSpec
from rtcontrol_client.ros2.links import Links
from rtcontrol_client.ros2.parts import Publication, Source, Topic
from rtcontrol_client.ros2.paths import compile_path
from rtcontrol_client.ros2.reading import Setter, reader, setter
from rtcontrol_client.ros2.types import find


@dataclass(frozen=True)
class _Output:
    topic: Topic
    repeat: bool
    setters: tuple[Setter, ...]


class Mapper:
    """What the whole file says. Raises Ros2BridgeError, naming file, key and remedy, for what does not fit together."""

    def __init__(self, config: RobotConfig, where: str) -> None:
        self.config, self._where = config, where
        self._once("observe.topics", config.observe.topics)
        for name, tool in config.tools.items():
            self._once(f"tools.{name}.publish", tool.publish)
        self.sources = [self._source(name, spec) for name, spec in config.observe.topics.items()]
        self._outputs = {name: self._tool(name, spec) for name, spec in config.tools.items()}
        self.topics = self._written()
        self.links = Links(config, self._error)
        self.sources += self.links.sources()
        self._apart()
        self.instructions, self.diagnostics = self._own()
        self.clock = self._topic(CLOCK, "rosgraph_msgs/msg/Clock", Qos(), CLOCK) if config.use_sim_time else None
        self.picture = (
            None
            if (camera := config.picture) is None
            else self._topic(camera.topic, "sensor_msgs/msg/CompressedImage", camera.qos, "picture.topic")
        )
        self._check_types()
        self._fields = [field for source in self.sources for field in source.readers]
        twice = sorted({field for field in self._fields if self._fields.count(field) > 1})
        if twice:
            raise self._error(f"the field {twice[0]!r} is given twice", "observe", "Rename one of them.")
        self._template = self._parts()
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
        found = []
        for output in self._outputs[name]:
            message = output.topic.cls()
            for set_field in output.setters:
                set_field(message, arguments, stamp_ns)
            found.append(Publication(output.topic.name, message, output.repeat))
        return found + self.links.publications(name, arguments, stamp_ns)

    def steady(self) -> set[str]:
        """The topics that every call publishes anew each tick, so that their silence means that nobody drives."""
        each = [{out.topic.name for out in outputs if out.repeat} for outputs in self._outputs.values()]
        return set.intersection(*each)

    def warnings(self) -> list[str]:
        """What is allowed, and dangerous."""
        safe = {output.topic.name for output in self._outputs[self.config.safe.name]}
        return [
            f"{self._where}: tool {name} keeps publishing {output.topic.name}, but the safe call "
            f"{self.config.safe.name} publishes nothing there: what the robot heard last stays in force."
            for name, outputs in self._outputs.items()
            for output in outputs
            if output.repeat and output.topic.name not in safe
        ]

    # Compiling.

    def _once(self, key: str, names: Iterable[str]) -> None:
        full = [name.removeprefix("/") for name in names]
        if twice := next((name for name in full if full.count(name) > 1), None):
            raise self._error(f"{twice} and /{twice} are the same topic", key, "Put both into one.")

    def _error(self, what: str, key: str, remedy: str = "") -> Ros2BridgeError:
        return Ros2BridgeError(f"{self._where}: {key}: {what}.", remedy or "Correct it there.")

    def _topic(self, name: str, kind: str, qos: Qos, key: str) -> Topic:
        if name.startswith("~"):
            raise self._error(f"{name} is private to a node", key, "Write the full name, such as /robot/cmd_vel.")
        try:
            full, cls = find(kind, "msg")
        except ValueError as error:
            raise self._error(str(error), f"{key}.type") from None
        relative = not name.startswith("/")
        return Topic(f"/{name}" if relative else name, full, cls, qos, relative)

    def _source(self, name: str, spec: Any) -> Source:
        key = f"observe.topics.{name}"
        topic = self._topic(name, spec.type, spec.qos, key)
        readers = {}
        for label, field_spec in spec.fields.items():
            try:
                readers[label] = (reader(topic.cls, field_spec), field_spec)
            except ValueError as error:
                raise self._error(str(error), f"{key}.fields.{label}") from None
        return Source(topic, spec.max_age_ms, spec.required, readers)

    def _tool(self, name: str, spec: ToolSpec) -> list[_Output]:
        return [self._output(spec, topic, out, f"tools.{name}.publish.{topic}") for topic, out in spec.publish.items()]

    def _output(self, tool: ToolSpec, name: str, spec: PublishSpec, key: str) -> _Output:
        topic = self._topic(name, spec.type, spec.qos, key)
        setters = []
        for text, set_spec in spec.set.items():
            try:
                setters.append(setter(topic.cls, compile_path(topic.cls, text), set_spec, tool))
            except ValueError as error:
                raise self._error(str(error), f"{key}.set.{text}") from None
        return _Output(topic, spec.repeat, tuple(setters))

    def _written(self) -> list[Topic]:
        found: dict[str, Topic] = {}
        for name, outputs in self._outputs.items():
            for output in outputs:
                first = found.setdefault(output.topic.name, output.topic)
                if first != output.topic:
                    what = f"{output.topic.name} has another type or QoS in another tool"
                    raise self._error(what, f"tools.{name}.publish", "A topic has one type: make them the same.")
        return list(found.values())

    def _apart(self) -> None:
        served = [*self.links.actions, *self.links.services]
        topics = {topic.name for topic in self.topics} | {
            "/" + name.removeprefix("/") for name in self.config.observe.topics
        }
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
        written = [output.topic for outputs in self._outputs.values() for output in outputs]
        for topic in [*(source.topic for source in self.sources), *written, *own]:
            if known.setdefault(topic.name, topic.type) != topic.type:
                what = f"it is said to be {known[topic.name]} and {topic.type}"
                raise self._error(what, topic.name, "A topic has one type: correct it, or use another name.")
            if ways.setdefault(topic.name, topic.relative) != topic.relative:
                what = "it is written with / before it and without: in a node with a namespace these are two topics"
                raise self._error(what, topic.name, "Write it in one way everywhere.")

    def _parts(self) -> list[tuple[str, str | None]] | None:
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
            if name not in self._fields:
                raise self._error(f"there is no field {{{name}}}", "observe.text", f"Use {', '.join(self._fields)}.")
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
