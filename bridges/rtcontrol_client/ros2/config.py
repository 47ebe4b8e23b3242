"""The file that maps a robot (`robot.yaml`): topics to what the model reads, tools to what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rtcontrol_client.ros2 import EXAMPLE, Ros2BridgeError
from rtcontrol_client.wire.pictures import MAX_PICTURES_HZ

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
# A name that begins with ~ is told apart by the mapper.
TopicName = Annotated[str, Field(pattern=r"^~?/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$", max_length=200)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$", max_length=64)]
Scalar = bool | int | float | str
JSON_TYPES = ("integer", "number", "string", "boolean", "array", "object", "null")
As = Literal["value", "yaw", "pitch", "roll", "norm", "sector"]
# Factor from ROS's unit (REP 103: metre, radian, second, ratio) to the one shown.
UNITS = {
    "deg": 57.29577951308232,
    "cm": 100.0,
    "mm": 1000.0,
    "km/h": 3.6,
    "percent": 100.0,
    "ms": 1000.0,
}


class ConfigPart(BaseModel):
    """Base of all: unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, ser_json_inf_nan="constants")


class Qos(ConfigPart):
    """Quality of service of a reader or writer; None: best effort and depth 1 to read, reliable and depth 1 to
    write, volatile both, which match what ROS 2 nodes use by default and for sensors."""

    reliability: Literal["best_effort", "reliable"] | None = None
    durability: Literal["volatile", "transient_local"] = "volatile"
    depth: Annotated[int, Field(ge=1, le=1000)] = 1


class FieldSpec(ConfigPart):
    """One observation field: where in the message, as what, in which unit.

    `as`: `yaw`, `pitch`, `roll` of a quaternion (rad); `norm` of a vector; `sector`: the smallest range of a LaserScan
    between `from_deg` and `to_deg`, counterclockwise. Then `unit` or `scale` and `offset`, `min` and `max`, `digits`
    after the point; or `values`: what is shown for each value. `missing` is shown where the message has no such
    value; without it the whole observation waits.
    """

    path: str = ""
    kind: Annotated[As, Field(alias="as")] = "value"
    from_deg: Finite | None = None
    to_deg: Finite | None = None
    unit: Literal["deg", "cm", "mm", "km/h", "percent", "ms"] | None = None
    scale: Finite = 1.0
    offset: Finite = 0.0
    min: Finite | None = None
    max: Finite | None = None
    digits: Annotated[int, Field(ge=0, le=9)] = 2
    values: dict[Scalar, Scalar] | None = None
    missing: Scalar | None = None

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _in_order(self) -> FieldSpec:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is above max")
        return self


class TopicSpec(ConfigPart):
    """A topic that is read. `max_age_ms`: an older message is no news; `required`: without news nothing is observed,
    so that the server misses its ticks and the robot ends in the safe call; else its fields are null."""

    type: str
    max_age_ms: Positive = 500.0
    required: bool = True
    qos: Qos = Qos()
    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ServedSpec(ConfigPart):
    """What is observed of an action or a service: fields of its `state`, `feedback` and `result`, or `response`."""

    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ObserveSpec(ConfigPart):
    """What the model reads. `text`: with each field in braces; without it the server writes `key value` pairs."""

    text: str | None = None
    topics: Annotated[dict[TopicName, TopicSpec], Field(min_length=1)]
    actions: dict[TopicName, ServedSpec] = {}
    services: dict[TopicName, ServedSpec] = {}


class SetSpec(ConfigPart):
    """What a published field becomes: a constant (`value`, or the constant alone), `now` (of a number of microseconds
    `now_us`), or an argument:
    `argument * scale + offset` (or `values[argument]`), clamped to `min` and `max`. `default`: the argument where the
    call leaves it out."""

    value: Scalar | list[Scalar] | None = None
    source: Annotated[str | None, Field(alias="from")] = None
    scale: Finite = 1.0
    offset: Finite = 0.0
    min: Finite | None = None
    max: Finite | None = None
    values: dict[Scalar, Scalar] | None = None
    default: Scalar | None = None

    @model_validator(mode="before")
    @classmethod
    def _constant_alone(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"value": value}

    @model_validator(mode="after")
    def _either(self) -> SetSpec:
        if (self.value is None) == (self.source is None):
            raise ValueError("give a constant, or `from: ARGUMENT`")
        return self


class PublishSpec(ConfigPart):
    """A message that a call publishes. `repeat`: anew each tick while the call is in force (velocities), else once
    when it begins (goals). `set`: field path to a constant, `now`, or an argument's mapping."""

    type: str
    repeat: bool = True
    qos: Qos = Qos()
    set: dict[str, SetSpec] = {}


class RequestSpec(ConfigPart):
    """A request of a service, or a goal of an action. `set` as in a publication."""

    type: str
    set: dict[str, SetSpec] = {}


class ToolSpec(ConfigPart):
    """A function the model may call: JSON schemas of its parameters, what it publishes, the goals that it pursues, the
    services that it asks, and the actions whose goals it cancels."""

    description: str
    parameters: dict[Name, dict[str, Any]] = {}
    required: list[str] | None = None
    publish: dict[TopicName, PublishSpec] = {}
    goal: dict[TopicName, RequestSpec] = {}
    request: dict[TopicName, RequestSpec] = {}
    cancel: list[TopicName] = []

    @field_validator("parameters")
    @classmethod
    def _schemas(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, schema in value.items():
            kind, listed = schema.get("type"), schema.get("enum")
            for one in kind if isinstance(kind, list) else [kind]:
                if one is not None and one not in JSON_TYPES:
                    raise ValueError(f"{name}.type: {one!r} is none of {', '.join(JSON_TYPES)}")
            if listed is not None and not (isinstance(listed, list) and listed):
                raise ValueError(f"{name}.enum: {listed!r} is no list of values")
        return value

    @field_validator("required")
    @classmethod
    def _known(cls, value: list[str] | None, info: Any) -> list[str] | None:
        for name in value or []:
            if name not in info.data.get("parameters", {}):
                raise ValueError(f"there is no parameter {name!r}")
        return value

    def needs(self) -> list[str]:
        """The parameters that every call has."""
        return list(self.parameters) if self.required is None else self.required

    def openai(self, name: str) -> dict[str, Any]:
        """The definition that the server is told."""
        schema = {"type": "object", "properties": self.parameters, "required": self.needs()}
        return {"name": name, "description": self.description, "parameters": schema}


class SafeSpec(ConfigPart):
    """The call that stops the robot."""

    name: str
    arguments: dict[str, Any] = {}


class DiagnosticsSpec(ConfigPart):
    """Where and how often the bridge tells how it is (diagnostic_msgs/msg/DiagnosticArray); `hz: 0`: never."""

    topic: TopicName = "/diagnostics"
    hz: Annotated[float, Field(ge=0, le=10)] = 1.0


class PictureSpec(ConfigPart):
    """A camera for people to see: a topic of sensor_msgs/msg/CompressedImage (JPEG or PNG); `hz`: at most."""

    topic: TopicName
    hz: Annotated[float, Field(gt=0, le=MAX_PICTURES_HZ, allow_inf_nan=False)] = 2.0
    qos: Qos = Qos()

    @model_validator(mode="before")
    @classmethod
    def _topic_alone(cls, value: Any) -> Any:
        return {"topic": value} if isinstance(value, str) else value


class SessionSpec(ConfigPart):
    """What the hello asks for; None: the server's. docs/protocol.md has the fields."""

    model: str | None = None
    deadline_ms: Positive | None = None
    ttl_ms: Positive | None = None
    max_age_ms: Positive | None = None
    on_miss: Literal["hold", "safe"] | None = None
    hold_ms: Positive | None = None


class RobotConfig(ConfigPart):
    """The whole file. `hz`: observations, and decisions asked for, a second; `instruction_topic`: a
    std_msgs/msg/String on which the instruction may be changed in flight; `use_sim_time`: ages and stamps are by
    /clock; `picture`: a camera that people see; `answer_ms`: so long the answer of a service or of an action's server
    is waited for."""

    robot: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    hz: Annotated[float, Field(ge=0.1, le=200)] = 16.0
    instruction: str
    instruction_topic: TopicName | None = None
    use_sim_time: bool = False
    answer_ms: Positive = 2000.0
    observe: ObserveSpec
    tools: Annotated[dict[Name, ToolSpec], Field(min_length=1)]
    safe: SafeSpec
    picture: PictureSpec | None = None
    session: SessionSpec = SessionSpec()
    diagnostics: DiagnosticsSpec = DiagnosticsSpec()

    @field_validator("safe", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but a key given twice is a mistake, and `on`, `off`, `yes`, `no` are words."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            try:
                twice = key in seen
            except TypeError:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word", key_node.start_mark
                ) from None
            if twice:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes `on` and `no` for booleans: an enum of those words would silently change.
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: Path) -> RobotConfig:
    """The file's config. Raises Ros2BridgeError naming file, key and remedy."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if "\0" in text[:4]:  # UTF-16 has a mark of its own, or none
            raise ValueError
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        remedy = f"Copy {EXAMPLE} and adapt it, and save it as UTF-8."
        raise Ros2BridgeError(f"{path} cannot be read ({reason}).", remedy) from None
    return parse(text, str(path))


def parse(text: str, where: str) -> RobotConfig:
    """The config in a text; `where` names it in errors. Raises Ros2BridgeError."""
    try:
        value = yaml.load(text, _Loader)
    except RecursionError:
        raise Ros2BridgeError(f"{where}: it is nested too deeply.", f"See {EXAMPLE}.") from None
    except ValueError as error:  # a date that is none
        raise Ros2BridgeError(f"{where}: {error}.", "Put words that look like a date or a number in quotes.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise Ros2BridgeError(f"{where}{line}: {reason}.", "Correct the YAML there.") from None
    if not isinstance(value, dict):
        what = "is empty" if value is None else "has no keys at its top"
        raise Ros2BridgeError(f"{where} {what}.", f"Copy {EXAMPLE} and adapt it.")
    try:
        return RobotConfig.model_validate(value)
    except ValidationError as error:
        raise _told(error, where) from None


def _told(error: ValidationError, where: str) -> Ros2BridgeError:
    """The first mistake, in words."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"]]
    # pydantic names the arm of a union last.
    while len(parts) > 1 and parts[-1] in ("bool", "int", "float", "str", "[key]"):
        parts.pop()
    key = ".".join(parts) or "the file"
    if first["type"] == "missing":
        return Ros2BridgeError(f"{where}: {key} is missing.", f"Add it; {EXAMPLE} shows where.")
    if first["type"] == "extra_forbidden":
        return Ros2BridgeError(
            f"{where}: {key} is no key of this format.", f"Remove it or correct its name ({EXAMPLE})."
        )
    message = first["msg"].removeprefix("Value error, ")
    return Ros2BridgeError(f"{where}: {key}: {message[0].lower()}{message[1:]}.", f"See {EXAMPLE}.")
