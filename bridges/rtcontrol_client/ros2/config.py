"""The format of `robot.yaml`, which maps topics to observations and tool calls to published messages."""

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
# Factors that convert ROS's units (REP 103: metre, radian, second, ratio) to units in observations.
UNITS = {"deg": 57.29577951308232, "percent": 100.0}


class ConfigPart(BaseModel):
    """Base class of all parts of the file, in which unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, ser_json_inf_nan="constants")


class Qos(ConfigPart):
    """Quality of service of a subscription or publisher. The default `reliability` is best effort for subscriptions and
    reliable for publishers, which is compatible with nodes that use ROS 2's default or sensor profile."""

    reliability: Literal["best_effort", "reliable"] | None = None
    durability: Literal["volatile", "transient_local"] = "volatile"
    depth: Annotated[int, Field(ge=1, le=1000)] = 1


class FieldSpec(ConfigPart):
    """One field of the observation: the path of its value in the message, the conversion and the unit.

    `as` is `yaw`, `pitch` or `roll` of a quaternion (rad), `norm` of a vector, or `sector`, the smallest range of a
    LaserScan from `from_deg` counterclockwise to `to_deg`. A number is converted by `unit` or by `scale` and `offset`,
    clamped to `min` and `max`, and rounded to `digits`; `values` maps each value to the observed value. `missing` is
    the observed value if the message has none; without `missing`, no observation is sent in this case.
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
    def _accept_bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class TopicSpec(ConfigPart):
    """A topic that the bridge subscribes to. Messages older than `max_age_ms` are ignored; the age counts from the
    message's `header.stamp` if it exists, unless `header_stamp` is false. Without a current message on a `required`
    topic, no observation is sent, so the server misses its ticks and the robot falls back to the safe call. Without a
    current message on another topic, the topic's fields are null."""

    type: str
    max_age_ms: Positive = 500.0
    header_stamp: bool = True
    required: bool = True
    qos: Qos = Qos()
    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ActionSpec(ConfigPart):
    """The observation fields of an action, read from its `state`, `feedback` and `result`."""

    fields: Annotated[dict[Name, FieldSpec], Field(min_length=1)]


class ObserveSpec(ConfigPart):
    """The observation. `text` is a template with fields in braces; without it, the server writes `key value` pairs."""

    text: str | None = None
    topics: Annotated[dict[TopicName, TopicSpec], Field(min_length=1)]
    actions: dict[TopicName, ActionSpec] = {}


class SetSpec(ConfigPart):
    """The value of a published field: a constant (in `value`, or directly), the time (`now`), or the call's argument
    that `from` names. An argument becomes `values[argument]`, or `argument * scale + offset` within `min` and `max`."""

    value: Scalar | list[Scalar] | None = None
    source: Annotated[str | None, Field(alias="from")] = None
    scale: Finite = 1.0
    offset: Finite = 0.0
    min: Finite | None = None
    max: Finite | None = None
    values: dict[Scalar, Scalar] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_constant(cls, value: Any) -> Any:
        return value if isinstance(value, dict | cls) else {"value": value}

    @model_validator(mode="after")
    def _check_one_source(self) -> SetSpec:
        if (self.value is None) == (self.source is None):
            raise ValueError("write either a constant or `from: ARGUMENT`")
        return self


class PublishSpec(ConfigPart):
    """A message that a call publishes: with `repeat` in each tick while the call is active (for velocities), otherwise
    once (for goals). `set` maps field paths to a constant, `now`, or an argument."""

    type: str
    repeat: bool = True
    qos: Qos = Qos()
    set: dict[str, SetSpec] = {}


class RequestSpec(ConfigPart):
    """A service request or an action goal. `set` has the same meaning as in PublishSpec."""

    type: str
    set: dict[str, SetSpec] = {}


class ToolSpec(ConfigPart):
    """A tool that the model may call: JSON schemas of its parameters, the messages, action goals and service requests
    that a call sends, and the actions whose goals it cancels."""

    description: str
    parameters: dict[Name, dict[str, Any]] = {}
    publish: dict[TopicName, PublishSpec] = {}
    goal: dict[TopicName, RequestSpec] = {}
    request: dict[TopicName, RequestSpec] = {}
    cancel: list[TopicName] = []

    def openai(self, name: str) -> dict[str, Any]:
        """Return the tool's definition in OpenAI's format, for the server."""
        schema = {"type": "object", "properties": self.parameters, "required": list(self.parameters)}
        return {"name": name, "description": self.description, "parameters": schema}


class SafeSpec(ConfigPart):
    """The safe call, which stops the robot when no current decision is available."""

    name: str
    arguments: dict[str, Any] = {}


class RobotConfig(ConfigPart):
    """The content of `robot.yaml`. `hz` is the rate of observations and requested decisions. `instruction_topic` is a
    topic of type std_msgs/msg/String whose messages change the instruction. `session` holds other client options
    (docs/clients.md), such as `ttl_ms`, `model`, `keys` and `server_key`.

    `connect_timeout_s` is how long to wait for a server at the start (0: without limit), `guard` whether a second
    process stops the robot if the bridge is killed, and `duration_s` how long to run.
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
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("connect")
    @classmethod
    def _check_connect(cls, value: str) -> str:
        check_client(value)
        return value


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, except that duplicate keys are errors and `on`, `off`, `yes`, `no` are strings."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        mapping = super().construct_mapping(node, deep)
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} occurs twice", node.start_mark)
        return mapping


# YAML 1.1 reads `on` and `no` as booleans, which would silently change an enum with these words.
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: Path, changes: Mapping[str, Any] = MappingProxyType({}), settings: Sequence[str] = ()) -> RobotConfig:
    """Load a robot.yaml. Raises Ros2BridgeError, which names the file and the invalid key."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Ros2BridgeError(f"{path} cannot be read ({error}).", f"Copy {EXAMPLE} and adapt it.") from None
    return parse(text, str(path), changes, settings)


def parse(
    text: str, where: str, changes: Mapping[str, Any] = MappingProxyType({}), settings: Sequence[str] = ()
) -> RobotConfig:
    """Parse the text of a robot.yaml; `where` is the file's name in error messages. Raises Ros2BridgeError.

    `changes` and `settings` (such as `session.ttl_ms=300`, with YAML values) replace keys of the file.
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
        raise _config_error(error, where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise Ros2BridgeError(f"{where}: {reason}.", f"Correct the YAML; see {EXAMPLE}.") from None


def _config_error(error: ValidationError, where: str) -> Ros2BridgeError:
    """Convert the first validation error to a Ros2BridgeError that names its key."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or "the file"
    known = {"missing": "it is missing", "extra_forbidden": "it is not a key of this format"}
    return Ros2BridgeError(f"{where}: {key}: {known.get(first['type'], first['msg'])}.", f"See {EXAMPLE}.")
