"""The messages of protocol 1.1 with their fields; docs/protocol.md explains them to authors of clients.

An absent field and null are the same. Unknown fields are ignored, so that a minor version can add fields. Time stamps
(`t_*_ns`) are nanoseconds of the sender's monotonic clock unless a comment names another clock; durations are in
milliseconds. Client and server use the lower of their minor versions; version 1.0 is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from rtcontrol_client.wire.errors import Code, WireError, wire_error_at
from rtcontrol_client.wire.limits import Limits, check_value, size_error
from rtcontrol_client.wire.pictures import PictureFormat, check_picture

PROTOCOL = (1, 1)
Dtype = Literal["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
DTYPES = {dtype: int(dtype[1]) for dtype in get_args(Dtype)}  # bytes per item


def is_supported(version: list[Any]) -> bool:
    """Return whether this program supports a protocol version: the same major and at least the same minor version."""
    return version[:1] == [PROTOCOL[0]] and all(minor >= PROTOCOL[1] for minor in version[1:2])


def to_integer(value: Any) -> Any:
    """Convert a float such as 3.0 to an integer, since some languages have only floats; return other values as is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def to_count(value: Any, limit: int = 1 << 53) -> int | None:
    """Return the value as an integer if it is a whole number from 0 to `limit - 1`, else None."""
    value = to_integer(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


Whole = Annotated[int, BeforeValidator(to_integer)]
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
    """Base class of all messages and parts of messages, which are immutable and strictly typed; null means absent."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if isinstance(value, dict) and None in value.values():
            return {k: v for k, v in value.items() if v is not None}
        return value


class SessionMessage(MessagePart):
    """Base class of messages within a session; `session` is the token from the welcome message."""

    session: Token


class FunctionCall(MessagePart):
    """A function call with its arguments by name; optional arguments may be absent."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


SafeCalls = Annotated[list[FunctionCall], Field(min_length=1, max_length=16)]


class CallFields(MessagePart):
    """The common fields of call messages for single sessions and for crowd members."""

    tick: Count
    epoch: Count
    seq_obs: Count | None = None  # the `seq` of the observation that led to this call
    t_obs_ns: Nanoseconds | None = None  # the `t_ns` of that observation
    status: Literal["fresh", "held", "safe"]
    call: FunctionCall | None = None
    calls: SafeCalls | None = None  # since 1.1: all safe calls, if `status` is safe; `call` is the first
    more: bool | None = None  # whether another call of this tick follows; only if the client set `calls_per_tick`
    ttl_ms: Milliseconds
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    cause: str | None = None  # why the tick missed its deadline


# A crowd has many members (such as the characters of a game), which one client drives over one connection
# (docs/crowds.md). A message has one part per member; a part that is not valid is moved to `faults`.

MEMBERS = 4096  # maximum number of members in a crowd
PARTS = 1024  # maximum number of parts in a received message
MAX_FAULTS = 64  # a message with more invalid parts is refused as a whole: invalid parts take long
# Sent messages have at most this number of parts and bytes, so that they never exceed the receiver's limits.
BATCH_PARTS, BATCH_BYTES = 256, 32_000
Members = Annotated[Whole, Field(ge=1, le=MEMBERS)]
Priority = Annotated[Whole, Field(ge=0, le=9)]


class CrowdRequest(MessagePart):
    """A part of hello: the request for a crowd with at most `members` members."""

    members: Members | None = None


class CrowdTerms(MessagePart):
    """A part of welcome: the maximum numbers of `members` in the crowd and of `parts` in a message."""

    members: Members
    parts: Members


class Member(MessagePart):
    """One member of a crowd. Absent fields have the values of the hello message. If a member leaves and a new member
    joins with the same `id`, the new member has a higher `epoch`."""

    id: Name
    epoch: Count = 0
    instruction: Text | None = None
    hz: Hertz | None = None
    deadline_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    priority: Priority = 0  # 9 is the most urgent
    every_tick: bool = False  # decide at the full rate, even while the observation does not change
    safe_calls: SafeCalls | None = None


class ObservationPart(MessagePart):
    """The observation of one member: `text`, or `data` that the agent converts to text."""

    id: Name
    seq: Count  # increases with each observation of the member
    t_ns: Nanoseconds  # when the observation was captured, by the client's clock
    text: Text | None = None
    data: dict[str, Any] | None = None


class MemberCall(CallFields):
    """The call for one member of a crowd."""

    id: Name


class MemberError(MessagePart):
    """The reason why the part of one member was refused; `field` is the invalid field of this part."""

    id: str | None = None
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None


@dataclass(frozen=True, slots=True)
class RefusedPart:
    """A part of a crowd's message that is not valid: the part's `id` and `seq` (None: unknown), and the error."""

    id: str | None
    seq: int | None
    error: WireError

    @classmethod
    def from_part(cls, part: Any, error: WireError) -> Self:
        """Return the RefusedPart for a received part that caused this error."""
        fields = part if isinstance(part, dict) else {}
        name = fields.get("id")
        return cls(name[:64] if isinstance(name, str) else None, to_count(fields.get("seq")), error)

    def message_part(self) -> MemberError:
        """Return the refusal as a part of an `error` message."""
        error = self.error
        field = error.field and error.field[:100]
        words = {"message": error.message[:300], "remedy": error.remedy[:300]}
        return MemberError(id=self.id, code=error.code.value, field=field, seq=self.seq, **words)


def too_many_faults(faults: Sequence[RefusedPart]) -> WireError:
    """Return the error for a message with more than MAX_FAULTS invalid parts, with the reason of the last of them."""
    problem = f"More than {MAX_FAULTS} parts of the message are not valid; the last one: {faults[-1].error.message}"
    return WireError(Code.INVALID, problem, f"Correct the parts. Up to {MAX_FAULTS} errors are reported separately.")


class MessageWithParts(SessionMessage):
    """Base class of messages with a part for each member. The field named `parts_field` is a list of `part` objects."""

    parts_field: ClassVar[str]
    part: ClassVar[Any]
    _faults: tuple[RefusedPart, ...] = PrivateAttr(default=())

    @property
    def faults(self) -> tuple[RefusedPart, ...]:
        """Return the parts that were removed from this message because they are not valid."""
        return self._faults

    @model_validator(mode="wrap")
    @classmethod
    def _validate_each_part(cls, value: Any, handler: Callable[[Any], Self]) -> Self:
        parts = value.get(cls.parts_field) if isinstance(value, dict) else None
        if not isinstance(parts, list) or len(parts) > PARTS:
            return handler(value)
        valid: list[MessagePart] = []
        faults: list[RefusedPart] = []
        for part in parts:
            try:
                if isinstance(part, RefusedPart):  # `check_parts` has refused this part
                    faults.append(part)
                else:
                    valid.append(cls.part.model_validate(part))
            except ValidationError as error:
                first, kind = error.errors(include_url=False)[0], cls.model_fields["type"].default
                faults.append(RefusedPart.from_part(part, wire_error_at(first, first["loc"], kind)))
            if len(faults) > MAX_FAULTS:
                raise too_many_faults(faults)
        message = handler({**value, cls.parts_field: valid})
        message._faults = tuple(faults)
        return message


class Join(MessageWithParts):
    """Client -> server: add members, or change the settings of members that have joined with the same epoch."""

    type: Literal["join"] = "join"
    parts_field: ClassVar[str] = "members"
    part: ClassVar[Any] = Member
    members: Annotated[list[Member], Field(max_length=PARTS)]


class Leave(SessionMessage):
    """Client -> server: remove members; unknown ids are ignored."""

    type: Literal["leave"] = "leave"
    ids: Annotated[list[Name], Field(max_length=MEMBERS)]


class ObserveMany(MessageWithParts):
    """Client -> server: observations of members."""

    type: Literal["observe_many"] = "observe_many"
    parts_field: ClassVar[str] = "looks"
    part: ClassVar[Any] = ObservationPart
    looks: Annotated[list[ObservationPart], Field(max_length=PARTS)]


class CallMany(MessageWithParts):
    """Server -> client: calls for members to execute now."""

    type: Literal["call_many"] = "call_many"
    parts_field: ClassVar[str] = "calls"
    part: ClassVar[Any] = MemberCall
    t_server_ns: Nanoseconds  # when the server sent this message
    calls: Annotated[list[MemberCall], Field(max_length=PARTS)]


# -- messages of sessions that are not crowds -------------------------------------------------------------------------


class Array(MessagePart):
    """A raw array in C order, little endian. `data` has product(shape) x (item size of dtype) bytes, and is sent
    outside the header (msgpack: as a separate part; JSON: as base64)."""

    name: Name
    dtype: Dtype
    shape: Annotated[list[Annotated[Whole, Field(ge=0, le=1 << 30)]], Field(max_length=8)]
    data: bytes


class Program(MessagePart):
    """The name and version of the program that sends the message, for logs and reports."""

    name: Name
    version: Word = ""
    language: Word = ""


class Hello(MessagePart):
    """Client -> server: the first message on every connection, which requests a session with an `agent` or with
    `tools`; repeated until the server responds."""

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
    safe_calls: SafeCalls | None = None  # since 1.1; takes precedence over `safe_call`
    pacing: Pacing = "server"
    hz: Hertz | None = None
    deadline_ms: Milliseconds | None = None
    ttl_ms: Milliseconds | None = None
    max_age_ms: Milliseconds | None = None
    on_miss: OnMiss | None = None
    hold_ms: Milliseconds | None = None
    calls_per_tick: CallsPerTick | None = None
    crowd: CrowdRequest | None = None
    robot: Name | None = None
    resume: Token | None = None


class Welcome(SessionMessage):
    """Server -> client: the response to hello, with the session's token and the negotiated settings."""

    type: Literal["welcome"] = "welcome"
    protocol: list[Count]
    server: Program
    resumed: bool
    epoch: Count
    t_client_ns: Nanoseconds  # the `t_client_ns` of the hello
    t_server_ns: Nanoseconds
    capabilities: list[Name] = Field(default_factory=list)
    agent: str | None = None
    tools: list[dict[str, Any]]
    instruction: str
    model: str
    model_trained_on_tools: bool
    safe_call: FunctionCall | None = None  # the first of `safe_calls`
    safe_calls: SafeCalls | None = None  # since 1.1
    trained: bool | None = None  # since 1.1: whether the model was trained on exactly these tools (None: unknown)
    release_ns: Nanoseconds | None = None  # since 1.1: when the next tick starts; None before the first tick
    pacing: Pacing
    hz: Hertz
    period_ms: Milliseconds
    deadline_ms: Milliseconds
    ttl_ms: Milliseconds
    max_age_ms: Milliseconds
    on_miss: OnMiss
    hold_ms: Milliseconds
    calls_per_tick: CallsPerTick | None = None  # None means one call
    crowd: CrowdTerms | None = None  # None: the session is not a crowd
    heartbeat_ms: Milliseconds
    session_grace_s: Seconds
    limits: dict[str, Whole]
    warnings: list[str] = Field(default_factory=list)


class Observe(SessionMessage):
    """Client -> server: an observation of the world. The model reads `text`. Without `text`, the agent converts `data`
    to text, or the server writes `data` as `key value` pairs."""

    type: Literal["observe"] = "observe"
    seq: Count  # increases with every observation of the session
    epoch: Count
    t_ns: Nanoseconds  # when the observation was captured
    text: Text | None = None
    data: dict[str, Any] | None = None
    arrays: list[Array] = Field(default_factory=list, max_length=16)

    @model_validator(mode="after")
    def _check_content(self) -> Observe:
        if self.text is None and self.data is None and not self.arrays:
            hint = "Send at least one of text, data and arrays."
            raise WireError(Code.INVALID, "The observation is empty.", hint, field="text", seq=self.seq)
        for i, array in enumerate(self.arrays):
            need, have = math.prod(array.shape) * DTYPES[array.dtype], len(array.data)
            if need != have:
                problem = f"observe.arrays: {array.name!r} has {have} bytes, but its shape and dtype need {need}."
                hint = "Send product(shape) x (item size) bytes."
                raise WireError(Code.INVALID, problem, hint, field=f"arrays[{i}]", seq=self.seq)
        return self


class Timing(MessagePart):
    """How long a call took in the server."""

    age_ms: Milliseconds | None = None  # from the arrival of the observation until the call was sent
    decide_ms: Milliseconds | None = None  # duration of the decision
    late_ms: Milliseconds | None = None  # time after the deadline, 0 if in time


class CallMessage(SessionMessage, CallFields):
    """Server -> client: the outcome of a tick, usually a call to execute now.

    The status `fresh` means a new decision; without `call`, the active call continues and its time-to-live starts
    again. The status `held` means that the tick missed; the active call continues until its time-to-live ends. With the
    status `safe`, the client executes the safe `calls` in order. `ttl_ms` starts at `t_obs_ns` on the client's clock; 0
    means no limit.
    """

    type: Literal["call"] = "call"
    release_ns: Nanoseconds | None = None  # since 1.1: when this tick started, by the server's clock (None: not a tick)
    deadline_ns: Nanoseconds  # deadline of the tick, by the server's clock
    t_server_ns: Nanoseconds  # when the server sent this message
    timing: Timing = Timing()


class Executed(SessionMessage):
    """Client -> server: the outcome of a call. The server adds executed calls to the model's history."""

    type: Literal["executed"] = "executed"
    tick: Count
    epoch: Count
    outcome: Outcomes
    t_ns: Nanoseconds
    result: Text | None = None
    error: Text | None = None


class Instruct(SessionMessage):
    """Client -> server: set a new instruction. Server -> client: this instruction is now active; a person or another
    client may have set it. If `said` is set, the server's interpreter converted this text to the instruction, which is
    active from the next tick on."""

    type: Literal["instruct"] = "instruct"
    instruction: Text
    said: Text | None = None
    by: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check_instruction(self) -> Instruct:
        if not self.instruction.strip():
            hint = "Write in `instruction` what to do; to stop, end the session."
            raise WireError(Code.INSTRUCTION, "instruct.instruction is empty.", hint, field="instruction")
        return self


class Outcome(MessagePart):
    """The outcome of an episode, for the report."""

    seed: Whole = 0
    ret: Annotated[float, Field(alias="return")] = 0.0
    success: bool | None = None
    seconds: Seconds = 0.0


class Reset(SessionMessage):
    """Client -> server: a new episode starts, with the next `epoch`. The client ignores calls of earlier epochs."""

    type: Literal["reset"] = "reset"
    epoch: Count
    ended: Outcome | None = None  # the outcome of the previous episode


class ControlMessage(SessionMessage):
    """Operator control, if client and server announced the capability `control`. Client -> server: `say` is the command
    of a person at the client, and `id` the call to confirm or deny. Server -> client: the new `state`, and the `call`
    that may be confirmed within `ttl_ms`. `instruction` is not used."""

    type: Literal["control"] = "control"
    say: Literal["pause", "resume", "stop", "confirm", "deny"] | None = None
    state: Literal["running", "paused", "stopped"] | None = None
    id: Count | None = None
    call: FunctionCall | None = None
    instruction: Text | None = None
    ttl_ms: Milliseconds | None = None


class PictureFile(MessagePart):
    """A JPEG or PNG file. `data` is sent outside the header, like the data of an array."""

    format: PictureFormat
    data: bytes


class Picture(SessionMessage):
    """Client -> server: a picture of the world for people, if both announced the capability `pictures`. It may be sent
    on another connection than the session's, since `session` identifies the client."""

    type: Literal["picture"] = "picture"
    t_ns: Nanoseconds  # when the picture was taken
    image: PictureFile

    @model_validator(mode="after")
    def _check_image(self) -> Picture:
        check_picture(self.image.format, self.image.data)
        return self


class Ping(MessagePart):
    """In both directions: request a pong, which shows that the peer is alive and the time of its clock."""

    type: Literal["ping"] = "ping"
    id: Count
    t_ns: Nanoseconds


class Pong(MessagePart):
    """The response to a ping: `t_ping_ns` is the ping's `t_ns`; the other two times are by the responder's clock."""

    type: Literal["pong"] = "pong"
    id: Count
    t_ping_ns: Nanoseconds
    t_received_ns: Nanoseconds
    t_sent_ns: Nanoseconds


class ErrorMessage(MessagePart):
    """In both directions: a message was refused, or the session has a problem."""

    type: Literal["error"] = "error"
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None  # the number of the refused observation
    t_client_ns: Nanoseconds | None = None  # since 1.1: the `t_client_ns` of the refused hello
    retryable: bool = False
    fatal: bool = False
    dropped: Count = 0  # number of errors that were not sent, because their rate is limited
    members: list[MemberError] | None = None  # the refused parts of a crowd's message


class Bye(MessagePart):
    """In both directions: the session ends, and cannot be resumed. If the server sets `reconnect`, it is shutting down,
    and the client should connect to another server."""

    type: Literal["bye"] = "bye"
    session: Token | None = None
    reason: Annotated[str, Field(max_length=1024)] = ""
    reconnect: bool | None = None  # since 1.1


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
MESSAGE_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])
PARTS_FIELDS = {kind: model.parts_field for kind, model in MODELS.items() if issubclass(model, MessageWithParts)}


def check_parts(header: dict[str, Any], field: str, limits: Limits) -> None:
    """Check the limits of a crowd's message, whose list `field` has a part for each member. Replace a part that exceeds
    a limit by a RefusedPart. Raises WireError if the whole message is too large, or if another field is not valid."""
    parts: list[Any] = header[field]
    total = check_value({**header, field: [None] * len(parts)}, limits)
    inner, faults = replace(limits, max_depth=limits.max_depth - 2), list[RefusedPart]()
    for i, part in enumerate(parts):
        try:
            total += check_value(part, inner)
        except WireError as error:
            parts[i] = RefusedPart.from_part(part, error)
            faults.append(parts[i])
        if len(faults) > MAX_FAULTS:
            raise too_many_faults(faults)
        if total > limits.max_total_items:
            raise size_error("the total number of items in the message", "max_total_items", limits)


Part = TypeVar("Part", bound=MessagePart)


def split_into_batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts in order, in batches that each fit into one message."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        part_size = len(part.model_dump_json(exclude_none=True).encode())
        if batch and (len(batch) >= BATCH_PARTS or size + part_size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part_size
    if batch:
        yield batch
