"""All messages of protocol 1.1 with their fields. docs/protocol.md explains the messages to authors of clients.

Absent and null are the same. Unknown fields are ignored, so that a minor version may add fields. Instants (`t_*_ns`)
are nanoseconds of the sender's own monotonic clock unless the field says otherwise; durations are milliseconds.
Both sides use the lower of their minor versions; version 1.0 is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from rtcontrol_client.wire.errors import Code, WireError, refusal_of
from rtcontrol_client.wire.limits import Limits, check_value, large
from rtcontrol_client.wire.pictures import PictureFormat, check_picture

PROTOCOL = (1, 1)
Dtype = Literal["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
DTYPES = {dtype: int(dtype[1]) for dtype in get_args(Dtype)}  # bytes per item


def spoken(version: list[Any]) -> bool:
    """Return whether this program supports a version: the same major version, and no earlier minor one."""
    return version[:1] == [PROTOCOL[0]] and all(minor >= PROTOCOL[1] for minor in version[1:2])


def whole(value: Any) -> Any:
    """Return a float without a fraction as an integer (some languages have only floats), other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def count_of(value: Any, limit: int = 1 << 53) -> int | None:
    """Return the value if it is a count below the limit, else None."""
    value = whole(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


Whole = Annotated[int, BeforeValidator(whole)]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Word = Annotated[str, Field(max_length=64)]
Title = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=65_536)]
Token = Annotated[str, Field(min_length=16, max_length=128)]
Count = Annotated[Whole, Field(ge=0, lt=1 << 53)]
Nanoseconds = Annotated[Whole, Field(ge=0, lt=1 << 63)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Seconds = Annotated[float, Field(ge=0)]
Hertz = Annotated[float, Field(ge=0.001, le=10_000)]
Pacing = Literal["server", "client"]
OnMiss = Literal["hold", "safe"]
CallsPerTick = Annotated[Whole, Field(ge=1, le=7)]
Outcomes = Literal["executed", "expired", "failed", "refused"]


class MessagePart(BaseModel):
    """Base of all messages and their parts: frozen, strict types, finite numbers; a null field counts as absent."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class OfSession(MessagePart):
    """Base of messages within a session; `session` is the welcome's token."""

    session: Token


class FunctionCall(MessagePart):
    """A function call: `arguments` by name, optional ones left out."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


SafeCalls = Annotated[list[FunctionCall], Field(min_length=1, max_length=16)]


class CallFields(MessagePart):
    """The fields of a call, for a session or for a member of a crowd: what to do, and until when."""

    tick: Count
    epoch: Count
    seq_obs: Count | None = None  # the `seq` of the observation that this answers
    t_obs_ns: Nanoseconds | None = None  # the observation's `t_ns`, echoed
    status: Literal["fresh", "held", "safe"]
    call: FunctionCall | None = None
    calls: SafeCalls | None = None  # 1.1, with `safe`: all safe calls; `call` is the first one
    more: bool | None = None  # with `calls_per_tick` alone: another message of this tick follows
    ttl_ms: Milliseconds
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    cause: str | None = None  # the cause of the miss


# A crowd: many characters over one connection (docs/crowds.md). A message has one part per member. A wrong part is
# refused separately: it is left out of the message's list and listed in `faults`.

MEMBERS = 4096  # the most members of a crowd
PARTS = 1024  # the most parts of a message
# We send fewer parts, and so few bytes of JSON that a message cannot exceed the limit of items.
SENT, SENT_BYTES = 256, 32_000
Members = Annotated[Whole, Field(ge=1, le=MEMBERS)]
Priority = Annotated[Whole, Field(ge=0, le=9)]


class CrowdWish(MessagePart):
    """In a hello: the request for a crowd with at most `members` members."""

    members: Members | None = None


class CrowdTerms(MessagePart):
    """In a welcome: the most `members` of the crowd, and the most `parts` of a message."""

    members: Members
    parts: Members


class Member(MessagePart):
    """One character of a crowd. Absent fields default to the hello's. A new character under the same `id` has a higher
    `epoch`."""

    id: Name
    epoch: Count = 0
    instruction: Text | None = None
    hz: Hertz | None = None
    deadline_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    priority: Priority = 0  # 9 is the most urgent
    every_tick: bool = False  # keep the full rate even while nothing happens
    safe_calls: SafeCalls | None = None


class MemberLook(MessagePart):
    """The observation of one member: `text`, or `data` that the agent turns into text."""

    id: Name
    seq: Count  # grows with each observation of the member
    t_ns: Nanoseconds  # when it was captured, by the client's clock
    text: Text | None = None
    data: dict[str, Any] | None = None


class MemberCall(CallFields):
    """The call for one member of a crowd."""

    id: Name


class MemberError(MessagePart):
    """The reason why the part of one member was refused; `field` is a field of that part."""

    id: str | None = None
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None


@dataclass(frozen=True, slots=True)
class PartFault:
    """A refused part of a message: the part's `id` and `seq`, as far as known, and the error."""

    id: str | None
    seq: int | None
    error: WireError

    @classmethod
    def of(cls, part: Any, error: WireError) -> Self:
        """Return the fault for a part as it was received."""
        fields = part if isinstance(part, dict) else {}
        name = fields.get("id")
        return cls(name[:64] if isinstance(name, str) else None, count_of(fields.get("seq")), error)

    def message_part(self) -> MemberError:
        """Return the fault in the form that an `error` message carries."""
        error = self.error
        field = error.field and error.field[:100]
        words = {"message": error.message[:300], "remedy": error.remedy[:300]}
        return MemberError(id=self.id, code=error.code.value, field=field, seq=self.seq, **words)


class OfParts(OfSession):
    """Base of messages with parts, which are of type `part` and in the list field named `parts_field`."""

    parts_field: ClassVar[str]
    part: ClassVar[Any]
    _faults: tuple[PartFault, ...] = PrivateAttr(default=())

    @property
    def faults(self) -> tuple[PartFault, ...]:
        """The refused parts of this message."""
        return self._faults

    @model_validator(mode="wrap")
    @classmethod
    def _each_by_itself(cls, value: Any, handler: Callable[[Any], Self]) -> Self:
        parts = value.get(cls.parts_field) if isinstance(value, dict) else None
        if not isinstance(parts, list) or len(parts) > PARTS:
            return handler(value)
        valid: list[MessagePart] = []
        faults: list[PartFault] = []
        for part in parts:
            try:
                if isinstance(part, PartFault):  # `check_parts` has refused this part
                    faults.append(part)
                else:
                    valid.append(cls.part.model_validate(part))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                faults.append(PartFault.of(part, refusal_of(first, first["loc"], cls.model_fields["type"].default)))
        message = handler({**value, cls.parts_field: valid})
        message._faults = tuple(faults)
        return message


class Join(OfParts):
    """Client -> server: add members. A member that has joined already with the same epoch gets these settings."""

    type: Literal["join"] = "join"
    parts_field: ClassVar[str] = "members"
    part: ClassVar[Any] = Member
    members: Annotated[list[Member], Field(max_length=PARTS)]


class Leave(OfSession):
    """Client -> server: remove members. Unknown ids are ignored."""

    type: Literal["leave"] = "leave"
    ids: Annotated[list[Name], Field(max_length=MEMBERS)]


class ObserveMany(OfParts):
    """Client -> server: observations of members."""

    type: Literal["observe_many"] = "observe_many"
    parts_field: ClassVar[str] = "looks"
    part: ClassVar[Any] = MemberLook
    looks: Annotated[list[MemberLook], Field(max_length=PARTS)]


class CallMany(OfParts):
    """Server -> client: calls that members must execute now."""

    type: Literal["call_many"] = "call_many"
    parts_field: ClassVar[str] = "calls"
    part: ClassVar[Any] = MemberCall
    t_server_ns: Nanoseconds  # when it was sent
    calls: Annotated[list[MemberCall], Field(max_length=PARTS)]


# The messages of single sessions.


class Array(MessagePart):
    """A raw array in C order, little endian. `data` travels outside the header (msgpack: in a separate part; JSON: as
    base64), and len(data) = product(shape) x item size of dtype."""

    name: Name
    dtype: Dtype
    shape: Annotated[list[Annotated[Whole, Field(ge=0, le=1 << 30)]], Field(max_length=8)]
    data: bytes


class Program(MessagePart):
    """The name and version of the sending program, for logs and reports only."""

    name: Name
    version: Word = ""
    language: Word = ""


class Hello(MessagePart):
    """Client -> server: the first message on every connection, repeated until answered, with `agent` or `tools`."""

    type: Literal["hello"] = "hello"
    protocol: Annotated[list[Count], Field(min_length=2, max_length=2)]
    client: Program
    t_client_ns: Nanoseconds
    capabilities: list[Name] = Field(default_factory=list, max_length=32)
    agent: Title | None = None
    tools: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    instruction: Text | None = None
    model: Title | None = None
    safe_call: FunctionCall | None = None
    safe_calls: SafeCalls | None = None  # 1.1; takes precedence over `safe_call`
    pacing: Pacing = "server"
    hz: Hertz | None = None
    deadline_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    max_age_ms: Milliseconds | None = None
    on_miss: OnMiss | None = None
    hold_ms: Milliseconds | None = None
    calls_per_tick: CallsPerTick | None = None
    crowd: CrowdWish | None = None
    robot: Name | None = None
    resume: Token | None = None


class Welcome(OfSession):
    """Server -> client: the answer to a hello, with the session's token and the negotiated settings."""

    type: Literal["welcome"] = "welcome"
    protocol: list[Count]
    server: Program
    resumed: bool
    epoch: Count
    t_client_ns: Nanoseconds  # echo of the hello's `t_client_ns`
    t_server_ns: Nanoseconds
    capabilities: list[Name] = Field(default_factory=list)
    agent: str | None = None
    tools: list[dict[str, Any]]
    instruction: str
    model: str
    model_trained_on_tools: bool
    safe_call: FunctionCall | None = None  # the first of `safe_calls`
    safe_calls: SafeCalls | None = None  # 1.1
    trained: bool | None = None  # 1.1: whether trained on exactly these tools; None: unknown, or not a trained model
    release_ns: Nanoseconds | None = None  # 1.1: the instant of the next tick, once there are ticks
    pacing: Pacing
    hz: Hertz
    period_ms: Milliseconds
    deadline_ms: Milliseconds
    ttl_ms: Milliseconds
    max_age_ms: Milliseconds
    on_miss: OnMiss
    hold_ms: Milliseconds
    calls_per_tick: CallsPerTick | None = None  # None: one
    crowd: CrowdTerms | None = None  # None: the session is not a crowd
    heartbeat_ms: Milliseconds
    session_grace_s: Seconds
    limits: dict[str, Whole]
    warnings: list[str] = Field(default_factory=list)


class Observe(OfSession):
    """Client -> server: one observation of the world. The model reads `text`; without `text` the agent renders `data`,
    or the server writes `data` as `key value` pairs."""

    type: Literal["observe"] = "observe"
    seq: Count  # grows with every observation of the session
    epoch: Count
    t_ns: Nanoseconds  # when it was captured
    text: Text | None = None
    data: dict[str, Any] | None = None
    arrays: list[Array] = Field(default_factory=list, max_length=16)

    @model_validator(mode="after")
    def _shows_something(self) -> Observe:
        if self.text is None and self.data is None and not self.arrays:
            remedy = "Give at least one of text, data and arrays."
            raise WireError(Code.INVALID, "The observation is empty.", remedy, field="text", seq=self.seq)
        for i, array in enumerate(self.arrays):
            need, have = math.prod(array.shape) * DTYPES[array.dtype], len(array.data)
            if need != have:
                what = (
                    f"observe.arrays has an array {array.name!r} of {have} bytes, but its shape and dtype need {need}."
                )
                remedy = "Send product(shape) x size bytes."
                raise WireError(Code.INVALID, what, remedy, field=f"arrays[{i}]", seq=self.seq)
        return self


class Timing(MessagePart):
    """The time that a call took in the server, step by step."""

    age_ms: Milliseconds | None = None  # from the observation's arrival to this call's departure
    decide_ms: Milliseconds | None = None
    late_ms: Milliseconds | None = None  # time beyond the deadline, 0 if in time


class CallMessage(OfSession, CallFields):
    """Server -> client: the call to execute now.

    `fresh`: a new decision (without `call` the active call continues, with a renewed time-to-live). `held`: no
    decision; the active call may continue until the time-to-live of that call ends. `safe`: execute the safe `calls`
    in order. `ttl_ms` counts from `t_obs_ns` on the *client's* clock; 0 means no limit.
    """

    type: Literal["call"] = "call"
    release_ns: Nanoseconds | None = None  # 1.1: this tick's instant on the server's clock; None off the tick grid
    deadline_ns: Nanoseconds  # on the server's clock
    t_server_ns: Nanoseconds  # when it was sent
    timing: Timing = Timing()


class Executed(OfSession):
    """Client -> server: the outcome of a call. Executed calls enter the model's history."""

    type: Literal["executed"] = "executed"
    tick: Count
    epoch: Count
    outcome: Outcomes
    t_ns: Nanoseconds
    result: Text | None = None
    error: Text | None = None


class Instruct(OfSession):
    """Either way: the new goal. Server -> client: this goal is active (also if another client or a person changed the
    goal); with `said`, the server's interpreter made this goal of that text, and it is active from the next tick on."""

    type: Literal["instruct"] = "instruct"
    instruction: Text
    said: Text | None = None
    by: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Instruct:
        if not self.instruction.strip():
            remedy = "Say in `instruction` what to do; to stop, end the session."
            raise WireError(Code.INSTRUCTION, "instruct.instruction is empty.", remedy, field="instruction")
        return self


class Outcome(MessagePart):
    """The outcome of an episode, for the report."""

    seed: Whole = 0
    ret: Annotated[float, Field(alias="return")] = 0.0
    success: bool | None = None
    seconds: Seconds = 0.0


class Reset(OfSession):
    """Client -> server: a new episode starts; `epoch` is one more than the last. Calls of old epochs are ignored."""

    type: Literal["reset"] = "reset"
    epoch: Count
    ended: Outcome | None = None  # the outcome of the previous episode


class ControlMessage(OfSession):
    """Either way, if both sides announced the capability `control`. Client -> server: `say` is a command that a person
    gave at the client; `id` names the call to confirm or deny. Server -> client: the new `state`, whichever side
    changed it, and the `call` that waits `ttl_ms` for a confirmation. `instruction` is not used."""

    type: Literal["control"] = "control"
    say: Literal["pause", "resume", "stop", "confirm", "deny"] | None = None
    state: Literal["running", "paused", "stopped"] | None = None
    id: Count | None = None
    call: FunctionCall | None = None
    instruction: Text | None = None
    ttl_ms: Milliseconds | None = None


class PictureFile(MessagePart):
    """A JPEG or PNG file. `data` travels outside the header, like the data of an array."""

    format: PictureFormat
    data: bytes


class Picture(OfSession):
    """Client -> server, if both sides announced the capability `pictures`: a picture of the world, for people. It may
    come on another connection without a session, where only the token identifies the client."""

    type: Literal["picture"] = "picture"
    t_ns: Nanoseconds  # when it was taken
    image: PictureFile

    @model_validator(mode="after")
    def _is_one(self) -> Picture:
        check_picture(self.image.format, self.image.data)
        return self


class Ping(MessagePart):
    """Either way: ask whether the other side is alive, and for its clock. The answer is a pong."""

    type: Literal["ping"] = "ping"
    id: Count
    t_ns: Nanoseconds


class Pong(MessagePart):
    """Answer to a ping: `t_ping_ns` is echoed; `t_received_ns` and `t_sent_ns` are of the answering side's clock."""

    type: Literal["pong"] = "pong"
    id: Count
    t_ping_ns: Nanoseconds
    t_received_ns: Nanoseconds
    t_sent_ns: Nanoseconds


class ErrorMessage(MessagePart):
    """Either way: a message was refused, or the session has a problem."""

    type: Literal["error"] = "error"
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None  # the number of the refused observation
    t_client_ns: Nanoseconds | None = None  # 1.1: that of the refused hello
    retryable: bool = False
    fatal: bool = False
    dropped: Count = 0  # how many further refusals were not sent, since errors are rate-limited
    members: list[MemberError] | None = None  # the refused parts of a crowd's message


class Bye(MessagePart):
    """Either way: the session ends, and cannot be resumed. Server -> client with `reconnect`: the server is shutting
    down, so connect to another server for a new session."""

    type: Literal["bye"] = "bye"
    session: Token | None = None
    reason: Annotated[str, Field(max_length=1024)] = ""
    reconnect: bool | None = None  # 1.1


Message = (
    Hello
    | Welcome
    | Observe
    | CallMessage
    | Executed
    | Instruct
    | Reset
    | ControlMessage
    | Picture
    | Join
    | Leave
    | ObserveMany
    | CallMany
    | Ping
    | Pong
    | ErrorMessage
    | Bye
)
MODELS: dict[str, type[BaseModel]] = {model.model_fields["type"].default: model for model in get_args(Message)}
ANY: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])
WITH_PARTS = {kind: model.parts_field for kind, model in MODELS.items() if issubclass(model, OfParts)}


def check_parts(header: dict[str, Any], field: str, limits: Limits) -> None:
    """Check the limits of a message whose list `field` has one part per member; replace wrong parts by their refusals.

    Raises WireError if the message as a whole is wrong.
    """
    parts: list[Any] = header[field]
    total = check_value({**header, field: [None] * len(parts)}, limits)
    inner = replace(limits, max_depth=limits.max_depth - 2)
    for i, part in enumerate(parts):
        try:
            total += check_value(part, inner)
        except WireError as error:
            parts[i] = PartFault.of(part, error)
        if total > limits.max_total_items:
            raise large("the message's items together", "max_total_items", limits)


Part = TypeVar("Part", bound=MessagePart)


def in_messages(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts in order, in batches that fit one message each."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        part_size = len(part.model_dump_json(exclude_none=True).encode())
        if batch and (len(batch) >= SENT or size + part_size > SENT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part_size
    if batch:
        yield batch
