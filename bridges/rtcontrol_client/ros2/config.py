"""The file that maps a robot (`robot.yaml`): topics to what the model reads, tools to what is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rtcontrol_client.ros2 import EXAMPLE, Ros2BridgeError
from rtcontrol_client.wire.endpoint import check_client

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
TopicName = Annotated[str, Field(pattern=r"^/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$", max_length=200)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$", max_length=64)]
Scalar = bool | int | float | str
As = Literal["value", "yaw", "pitch", "roll", "norm", "sector"]
# Factor from ROS's unit (REP 103: metre, radian, second, ratio) to the one shown.
UNITS = {"deg": 57.29577951308232, "percent": 100.0}


class ConfigPart(BaseModel):
    """Base of all: unknown keys are errors."""

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
    unit: Literal["deg", "percent"] | None = None
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


class TopicSpec(ConfigPart):
    """A topic that is read. `max_age_ms`: an older message is no news; `required`: without news nothing is observed,
    so that the server misses its ticks and the robot ends in the safe call; else its fields are null."""

    type: str
    max_age_ms: Positive = 500.0
    required: bool = True
    qos: Qos = Qos()
    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ActionSpec(ConfigPart):
    """What is observed of an action: fields of its `state`, `feedback` and `result`."""

    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ObserveSpec(ConfigPart):
    """What the model reads. `text`: with each field in braces; without it the server writes `key value` pairs."""

    text: str | None = None
    topics: Annotated[dict[TopicName, TopicSpec], Field(min_length=1)]
    actions: dict[TopicName, ActionSpec] = {}


class SetSpec(ConfigPart):
    """What a published field becomes: a constant (`value`, or the constant alone), `now`, or an argument:
    `argument * scale + offset` (or `values[argument]`), clamped to `min` and `max`."""

    value: Scalar | list[Scalar] | None = None
    source: Annotated[str | None, Field(alias="from")] = None
    scale: Finite = 1.0
    offset: Finite = 0.0
    min: Finite | None = None
    max: Finite | None = None
    values: dict[Scalar, Scalar] | None = None

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
    """A message that a call publishes. `repeat`: again each tick while the call is active (velocities), else once
    when it starts (goals). `set`: field path to a constant, `now`, or an argument's mapping."""

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
    requests that it sends, and the actions whose goals it cancels."""

    description: str
    parameters: dict[Name, dict[str, Any]] = {}
    publish: dict[TopicName, PublishSpec] = {}
    goal: dict[TopicName, RequestSpec] = {}
    request: dict[TopicName, RequestSpec] = {}
    cancel: list[TopicName] = []

    def openai(self, name: str) -> dict[str, Any]:
        """Return the definition for the server."""
        schema = {"type": "object", "properties": self.parameters, "required": list(self.parameters)}
        return {"name": name, "description": self.description, "parameters": schema}


class SafeSpec(ConfigPart):
    """The call that stops the robot."""

    name: str
    arguments: dict[str, Any] = {}


class RobotConfig(ConfigPart):
    """The whole file. `hz`: observations, and requested decisions, a second; `instruction_topic`: a std_msgs/msg/String
    that changes the instruction; `session`: further options of the client (docs/clients.md), such as `ttl_ms`, `model`,
    `keys` and `server_key`.

    `connect` to `duration_s`: the server, how long its first welcome is waited for (0: for ever), whether a guard stops
    the robot of a killed bridge, and when to end.
    """

    robot: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    hz: Annotated[float, Field(ge=0.1, le=200)] = 16.0
    instruction: str
    instruction_topic: TopicName | None = None
    observe: ObserveSpec
    tools: Annotated[dict[Name, ToolSpec], Field(min_length=1)]
    safe: SafeSpec
    session: dict[str, Any] = {}
    connect: str = "tcp://127.0.0.1:5555"
    connect_timeout_s: Annotated[Finite, Field(ge=0)] = 6.0
    guard: bool = True
    duration_s: Annotated[Finite, Field(ge=0)] | None = None

    @field_validator("safe", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("connect")
    @classmethod
    def _reachable(cls, value: str) -> str:
        check_client(value)
        return value


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but a key given twice is an error, and `on`, `off`, `yes`, `no` are words."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        mapping = super().construct_mapping(node, deep)
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} is given twice", node.start_mark)
        return mapping


# YAML 1.1 takes `on` and `no` for booleans: an enum of those words would silently change.
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: Path, changes: Mapping[str, Any] = MappingProxyType({}), settings: Sequence[str] = ()) -> RobotConfig:
    """Return the file's config. Raises Ros2BridgeError naming file and key."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Ros2BridgeError(f"{path} cannot be read ({error}).", f"Copy {EXAMPLE} and adapt it.") from None
    return parse(text, str(path), changes, settings)


def parse(
    text: str, where: str, changes: Mapping[str, Any] = MappingProxyType({}), settings: Sequence[str] = ()
) -> RobotConfig:
    """Return the config in a text; `where` names it in errors. Raises Ros2BridgeError.

    `changes` and `settings` (`session.ttl_ms=300`, as YAML) take the place of the file's keys.
    """
    try:
        values = yaml.load(text, _Loader)
        if isinstance(values, dict):
            values |= changes
            for setting in settings:
                key, _, value = setting.partition("=")
                *outer, last = key.split(".")
                place = reduce(lambda inner, name: inner.setdefault(name, {}), outer, values)
                place[last] = yaml.load(value, _Loader)
        return RobotConfig.model_validate(values)
    except ValidationError as error:
        raise _refused(error, where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        reason = " ".join(str(error).split())
        raise Ros2BridgeError(f"{where}: {reason}.", f"Correct the YAML there; see {EXAMPLE}.") from None


def _refused(error: ValidationError, where: str) -> Ros2BridgeError:
    """Return the first error, with its key."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or "the file"
    known = {"missing": "it is missing", "extra_forbidden": "it is not a key of this format"}
    return Ros2BridgeError(f"{where}: {key}: {known.get(first['type'], first['msg'])}.", f"See {EXAMPLE}.")
