"""Every message of protocol 1.1 and its fields. docs/protocol.md explains them to authors of clients.

Absent and null are the same. Unknown fields are ignored, so that a minor version may add some. Instants (`t_*_ns`) are
nanoseconds of the sender's own monotonic clock unless the field says otherwise; durations are milliseconds.
What came with 1.1 is absent in 1.0: both sides speak the lower of their minor versions.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter, model_validator

from rtcontrol_client.wire.base import (
    CallFields,
    CallsPerTick,
    Count,
    Hertz,
    Milliseconds,
    Name,
    Nanoseconds,
    OfSession,
    OnMiss,
    Pacing,
    SafeCalls,
    Seconds,
    Text,
    Title,
    Whole,
    Word,
)
from rtcontrol_client.wire.base import FunctionCall as FunctionCall
from rtcontrol_client.wire.base import MessagePart as MessagePart
from rtcontrol_client.wire.base import Outcomes as Outcomes
from rtcontrol_client.wire.base import Token as Token
from rtcontrol_client.wire.base import whole as whole
from rtcontrol_client.wire.crowd import CallMany, CrowdTerms, CrowdWish, Join, Leave, MemberError, ObserveMany
from rtcontrol_client.wire.errors import Code, WireError
from rtcontrol_client.wire.pictures import PictureFormat, check_picture

PROTOCOL = (1, 1)
Dtype = Literal["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
DTYPES = {dtype: int(dtype[1]) for dtype in get_args(Dtype)}  # bytes an item


class Array(MessagePart):
    """A raw array, C order, little endian. `data` travels outside the header (msgpack: a part of its own; JSON:
    base64). Relation: len(data) = product(shape) x item size of dtype."""

    name: Name
    dtype: Dtype
    shape: Annotated[list[Annotated[Whole, Field(ge=0, le=1 << 30)]], Field(max_length=8)]
    data: bytes


class Program(MessagePart):
    """Who speaks: for logs and reports only."""

    name: Name
    version: Word = ""
    language: Word = ""


class Hello(MessagePart):
    """Client -> server, first on every connection, repeated until answered. Either `agent` or `tools`."""

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
    safe_calls: SafeCalls | None = None  # 1.1; wins over `safe_call`
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
    """Server -> client, the answer to hello: the session and what is in force in it."""

    type: Literal["welcome"] = "welcome"
    protocol: list[Count]
    server: Program
    resumed: bool
    epoch: Count
    t_client_ns: Nanoseconds  # echo of the hello's
    t_server_ns: Nanoseconds
    capabilities: list[Name] = Field(default_factory=list)
    agent: str | None = None
    tools: list[dict[str, Any]]
    instruction: str
    model: str
    model_trained_on_tools: bool
    safe_call: FunctionCall | None = None  # the first of `safe_calls`
    safe_calls: SafeCalls | None = None  # 1.1
    trained: bool | None = None  # 1.1: on exactly these tools; None: not known, or nothing that is trained
    release_ns: Nanoseconds | None = None  # 1.1: of the next tick, once there are ticks
    pacing: Pacing
    hz: Hertz
    period_ms: Milliseconds
    deadline_ms: Milliseconds
    ttl_ms: Milliseconds
    max_age_ms: Milliseconds
    on_miss: OnMiss
    hold_ms: Milliseconds
    calls_per_tick: CallsPerTick | None = None  # None: one
    crowd: CrowdTerms | None = None  # None: there are no members
    heartbeat_ms: Milliseconds
    session_grace_s: Seconds
    limits: dict[str, Whole]
    warnings: list[str] = Field(default_factory=list)


class Observe(OfSession):
    """Client -> server: one look at the world. `text` is what the model reads; where it is absent, the agent makes it
    of `data` (its own rendering), or the server renders `data` as `key value` pairs."""

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
            raise WireError(Code.INVALID, "observe shows nothing.", remedy, field="text", seq=self.seq)
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
    """Where the time went, as the server saw it."""

    age_ms: Milliseconds | None = None  # from the observation's arrival to this call's departure
    decide_ms: Milliseconds | None = None
    late_ms: Milliseconds | None = None  # beyond the deadline, 0 when in time


class CallMessage(OfSession, CallFields):
    """Server -> client: what to do now.

    `fresh`: a new decision (`call` absent: the call in force goes on, its time-to-live renewed). `held`: no decision;
    the call in force may go on until its own time-to-live ends. `safe`: execute the safe calls, `calls` in order (1.0:
    `call`, a message each). `ttl_ms` counts from `t_obs_ns` on the *client's* clock; 0 is no limit.
    """

    type: Literal["call"] = "call"
    release_ns: Nanoseconds | None = None  # 1.1: of this tick, on the server's clock; None off the grid of ticks
    deadline_ns: Nanoseconds  # on the server's clock
    t_server_ns: Nanoseconds  # when it was sent
    timing: Timing = Timing()


class Executed(OfSession):
    """Client -> server: what became of a call. Executed ones feed the model's history."""

    type: Literal["executed"] = "executed"
    tick: Count
    epoch: Count
    outcome: Outcomes
    t_ns: Nanoseconds
    result: Text | None = None
    error: Text | None = None


class Instruct(OfSession):
    """Either way: the goal from now on. Server -> client: it is in force (also where somebody else changed it); with
    `said` it is what that was understood as, by an interpreter of the server's, and in force from the next tick on."""

    type: Literal["instruct"] = "instruct"
    instruction: Text
    said: Text | None = None
    by: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Instruct:
        if not self.instruction.strip():
            remedy = "Say in `instruction` what to do; to stop, end the session."
            raise WireError(Code.INSTRUCTION, "instruct.instruction says nothing.", remedy, field="instruction")
        return self


class Outcome(MessagePart):
    """How an episode ended, for the report."""

    seed: Whole = 0
    ret: Annotated[float, Field(alias="return")] = 0.0
    success: bool | None = None
    seconds: Seconds = 0.0


class Reset(OfSession):
    """Client -> server: a new episode begins; `epoch` is one more than the last. Calls of old epochs are void."""

    type: Literal["reset"] = "reset"
    epoch: Count
    ended: Outcome | None = None  # the episode before


class ControlMessage(OfSession):
    """Either way, where both sides announced the capability `control`. Client -> server: `say`, what a person there
    says; `id` is that of the call that is confirmed or denied. Server -> client: `state`, whoever changed it, and the
    `call` that waits for a yes, for `ttl_ms` from now. `instruction` is of earlier versions, where instructions waited
    for a yes: no server sends it, and a yes or no to one is refused."""

    type: Literal["control"] = "control"
    say: Literal["pause", "resume", "stop", "confirm", "deny"] | None = None
    state: Literal["running", "paused", "stopped"] | None = None
    id: Count | None = None
    call: FunctionCall | None = None
    instruction: Text | None = None
    ttl_ms: Milliseconds | None = None


class PictureFile(MessagePart):
    """A JPEG or PNG file. `data` travels outside the header, as an array's."""

    format: PictureFormat
    data: bytes


class Picture(OfSession):
    """Client -> server, where both sides announced the capability `pictures`: the world, for people. It may come on a
    connection of its own, which has no session: there the token alone says whose it is."""

    type: Literal["picture"] = "picture"
    t_ns: Nanoseconds  # when it was taken
    image: PictureFile

    @model_validator(mode="after")
    def _is_one(self) -> Picture:
        check_picture(self.image.format, self.image.data)
        return self


class Ping(MessagePart):
    """Either way: are you there, and what time is it? The answer is a pong."""

    type: Literal["ping"] = "ping"
    id: Count
    t_ns: Nanoseconds


class Pong(MessagePart):
    """`t_ping_ns` is echoed; received and sent are on the answering side's clock."""

    type: Literal["pong"] = "pong"
    id: Count
    t_ping_ns: Nanoseconds
    t_received_ns: Nanoseconds
    t_sent_ns: Nanoseconds


class ErrorMessage(MessagePart):
    """Either way: a message was refused, or the session is in trouble."""

    type: Literal["error"] = "error"
    code: str
    message: str
    remedy: str = ""
    field: str | None = None
    seq: Count | None = None  # of the observation that was refused
    t_client_ns: Nanoseconds | None = None  # 1.1: of the hello that was refused
    retryable: bool = False
    fatal: bool = False
    dropped: Count = 0  # how many further refusals were not told, since errors are rate-limited
    members: list[MemberError] | None = None  # of a crowd's message: the parts that were refused


class Bye(MessagePart):
    """Either way: the session ends, and cannot be resumed. Server -> client with `reconnect`: the server goes away, so
    connect again, to another one, for a new session."""

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
