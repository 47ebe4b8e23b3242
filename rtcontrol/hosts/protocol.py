"""Protocols (interfaces) of hosts, deciders and pools, and the requests and replies between them."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, Protocol

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

MAX_SESSIONS = 64  # default maximum number of sessions in a pool
MAX_DURATIONS = 64  # number of the newest decisions whose durations are stored
LOSSES = ("timeout", "connection", "http", "refused", "malformed", "server_error", "not_finite", "repeated")


class DecoderUnavailable(UserError):
    """The error that a decoder cannot decide now, but may be able to later. `full`: it has no free session."""

    def __init__(self, problem: str, hint: str, full: bool = False) -> None:
        super().__init__(problem, hint)
        self.full = full


class DecisionLost(Exception):
    """The error that a remote decider returned no decision. `loss` (one of LOSSES) is the sub-cause of the miss."""

    def __init__(self, loss: str, message: str) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(slots=True)
class DecisionRequest:
    """A request for one decision.

    `observation`: the agent's text; `data`: the raw observation, which is not sent to another process; `seq` and
    `captured_ns`: number and capture time of the observation. `received_ns`: when the decider's process received the
    request. `within_ns`: how long the loop waits for the reply (0: no limit). `active_call`: the active call if
    hysteresis is enabled, else None. `members`: the members' requests, if this is the request of a crowd."""

    tick: int
    epoch: int
    observation: str
    instruction: str
    history: tuple[str, ...] = ()
    data: Mapping[str, Any] | None = None
    received_ns: int = 0
    within_ns: int = 0
    seq: int = -1
    captured_ns: int = 0
    active_call: Call | None = None
    members: tuple[DecisionRequest, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the request without the raw observation."""
        head = (self.tick, self.epoch, self.observation, self.instruction, self.history, None)
        stamps = (self.received_ns, self.within_ns, self.seq, self.captured_ns)
        return DecisionRequest, (*head, *stamps, self.active_call, self.members)


@dataclass(slots=True)
class DecisionReply:
    """The reply to the request of `tick`: a decision, or the error that the decider raised.

    `user_error`: message and hint, if the decider raised a UserError. `loss`: the sub-cause, if it raised a
    DecisionLost. `batch_size`: how many requests were decided in one batch; `decide_ns`: the duration of this batch.
    `decided_by`: `first` or `backup` if there are two deciders. `older_request`: the request of the plan, if the call
    is a step of an older plan. `steps`: index of this step and number of steps; `ahead_ns`: how long after the
    observation the step is due. `members`: the replies to a crowd's members.

    `received_ns`, `started_ns`: when the decider received the request and started to decide, by CLOCK_MONOTONIC (0 if
    the decider is on another machine). `gaps`: times (start, end) in which the decider's process did not run."""

    tick: int
    decision: Decision | None
    error: str | None
    decide_ns: int
    user_error: tuple[str, str] | None = None
    received_ns: int = 0
    started_ns: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    batch_size: int = 1
    loss: str | None = None
    decided_by: str = ""
    older_request: DecisionRequest | None = None
    steps: tuple[int, int] | None = None
    ahead_ns: int = 0
    members: tuple[DecisionReply, ...] = ()


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The event that a decoder was lost, or was restarted after `seconds`. `decider`: which of two (first, backup)."""

    t_ns: int
    event: Literal["lost", "restarted"]
    seconds: float
    decider: str = ""


class Decider(Protocol):
    """An object that chooses a tick's call. If `decide` raises an error, the tick is a miss with the cause `decide`."""

    def decide(self, request: DecisionRequest) -> Decision: ...


class DeciderSource(Protocol):
    """A picklable object that builds deciders in the decoder's process: one per worker, and again after each restart.

    The decider may have a method `info() -> dict` with fields for the report, and a method `close()`, which is called
    when the session ends, on any thread and even during a decision. `build` raises UserError if the user can correct
    the error."""

    def build(self) -> Decider: ...


class Host(Protocol):
    """The handle by which the loop uses the decider of one session. The decider runs outside the loop's thread.

    Only `start` and `close` may block. Any thread may call `wake`. A host with N workers makes at most N decisions at
    once; a newer request replaces a waiting one. `incarnation`: how often the decoder was restarted; `events`: losses
    and restarts of the decoder. `gave_up`: why the decoder cannot be restarted, or None; the run must then end.
    `threads`: process and thread ids of the deciding threads. `durations_ns`: durations of the last decisions (for a
    batch: its duration divided by its size)."""

    name: str

    @property
    def incarnation(self) -> int: ...
    @property
    def events(self) -> list[HostEvent]: ...
    @property
    def gave_up(self) -> str | None: ...
    @property
    def durations_ns(self) -> deque[float]: ...
    @property
    def threads(self) -> Sequence[tuple[int, int]]: ...

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Build the decider if there is none. Return its fields for the report. Raises UserError.

        If `stopped()` becomes true, return an empty dict soon. Then only `close` may be called."""

    def submit(self, request: DecisionRequest) -> None: ...
    def wait(self, timeout_ns: int) -> DecisionReply | None: ...
    def wake(self) -> None:
        """End the current or the next `wait` early, without a reply. Never blocks."""

    def alive(self) -> bool: ...
    def cancel(self, tick: int) -> None:
        """Cancel the request of a tick. If its decision has not started, the decider skips it."""

    def close(self) -> None:
        """Free the decider. Close the pool, too, if the host started it."""


class HostBase:
    """Base class of hosts, with the decider's state (`up`), its losses and restarts, and the durations of decisions."""

    def __init__(self, name: str, up: bool = False) -> None:
        self.name = name
        self.up = up
        self.incarnation = 0
        self.gave_up: str | None = None
        self.events: list[HostEvent] = []
        self.lost_ns: int | None = None  # when the decider was lost; None while it is up
        self._durations_ns: deque[float] = deque(maxlen=MAX_DURATIONS)

    @property
    def durations_ns(self) -> deque[float]:
        return self._durations_ns

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return ()

    def alive(self) -> bool:
        return self.up

    def mark_lost(self, now_ns: int) -> None:
        """Record the loss of the decider as an event."""
        self.up, self.lost_ns = False, now_ns
        self.events.append(HostEvent(now_ns, "lost", 0.0))

    def mark_ready(self, now_ns: int) -> None:
        """Record that the decider is ready, for the first time or after a restart."""
        if self.lost_ns is not None:
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self.lost_ns) / 1e9))
            self.lost_ns = None
        self.up = True

    def record_reply(self, reply: DecisionReply | None) -> DecisionReply | None:
        """Add the duration of the reply's decision to `durations_ns`. Return the reply unchanged."""
        if reply is not None:
            self._durations_ns.append(reply.decide_ns / reply.batch_size)
        return reply


class DecoderPool(Protocol):
    """A pool that opens hosts for sessions. Each session has its own decider, and all sessions share the workers.

    Requests are decided by earliest deadline first; requests to the same model may share a batch. A session's newer
    request replaces its waiting request. `open` returns a started host with the name `session` for logs, and raises
    UserError or DecoderUnavailable. Any thread may call `open`, `alive` (whether the pool can decide now) and `close`
    (once). `gave_up`: why the pool cannot be restarted, or None."""

    name: str

    @property
    def gave_up(self) -> str | None: ...
    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]: ...
    def open(self, session: str, source: DeciderSource) -> Host: ...
    def alive(self) -> bool: ...
    def close(self) -> None: ...


# -- messages to and from the decoder's process -----------------------------------------------------------------------

# Messages are pickled tuples, not dataclasses: with cold caches, pickling takes 15 us instead of 40 to 65 us.
_DECISION, _REPLY = (attrgetter(*(field.name for field in fields(cls))) for cls in (Decision, DecisionReply))


def pack_request(message: DecisionRequest | int) -> bytes:
    """Pack a request without its raw observation, or the number of a tick to cancel."""
    if isinstance(message, int):
        return pickle.dumps(message)
    return pickle.dumps(message.__reduce__()[1])


def unpack_request(body: bytes) -> DecisionRequest | int:
    message = pickle.loads(body)
    return message if isinstance(message, int) else DecisionRequest(*message)


def pack_reply(reply: DecisionReply) -> bytes:
    """Pack a reply. If the reply cannot be pickled, pack a reply with an error instead."""
    tick, decision, *rest = _REPLY(reply)
    if decision is not None:
        call, *others = _DECISION(decision)
        decision = (call and (call.name, call.arguments), *others)
    try:
        return pickle.dumps((tick, decision, *rest))
    except Exception as error:
        text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
        return pack_reply(DecisionReply(tick, None, text, 0))


def unpack_reply(body: bytes) -> DecisionReply:
    tick, decision, *rest = pickle.loads(body)
    return DecisionReply(tick, decision and _decision(*decision), *rest)


def _decision(call: tuple[Any, ...] | None, *rest: Any) -> Decision:
    return Decision(None if call is None else Call(*call), *rest)
