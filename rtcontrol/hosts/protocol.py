"""Protocols of hosts, deciders and pools, with their requests and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

MAX_SESSIONS = 64  # sessions of one pool
SHARES = 64  # how many decision times are remembered
LOSSES = ("timeout", "connection", "http", "refused", "malformed", "server_error", "not_finite", "repeated")


class DecoderUnavailable(UserError):
    """An error of a decoder that cannot serve now but may later. `full`: the limit of open sessions is reached."""

    def __init__(self, what: str, remedy: str, full: bool = False) -> None:
        super().__init__(what, remedy)
        self.full = full


class DecisionLost(Exception):
    """An error of a remote decider that gave no decision. `loss`, one of LOSSES, is the sub-cause of the miss."""

    def __init__(self, loss: str, message: str) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(slots=True)
class DecisionRequest:
    """One question to the decider.

    The raw observation `data` never leaves the process; `seq` is the observation's number, `captured_ns` its instant.
    `received_ns` is when the decider's process got the request (CLOCK_MONOTONIC). The loop waits `within_ns` for the
    answer (0: for ever). `standing`: the active call, if there is hysteresis. `members`: the requests of a crowd, which
    this one request combines."""

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
    """The answer to the request of `tick`: a decision, or the error that the decider raised.

    `mistake` holds `what` and `remedy` of a UserError, `loss` is that of a DecisionLost. `decide_ns`: the time for all
    requests that were decided `together` (1: alone). `by`: which of two deciders (first, backup). `answers`: the older
    request that decides this tick, too. For a step of a plan, `steps` are its index and the number of steps, and
    `ahead_ns` is how long after the observation the step is due. For a crowd, `members` are the members' replies.

    Stamps are from CLOCK_MONOTONIC of the loop's machine, 0 for a decider elsewhere: when the request was `received`
    and `begun`. `gaps` (start, end) are the recent times in which a separate decider process did not run."""

    tick: int
    decision: Decision | None
    error: str | None
    decide_ns: int
    user_error: tuple[str, str] | None = None
    received_ns: int = 0
    begun_ns: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    together: int = 1
    loss: str | None = None
    by: str = ""
    older_request: DecisionRequest | None = None
    steps: tuple[int, int] | None = None
    ahead_ns: int = 0
    members: tuple[DecisionReply, ...] = ()


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The event that the decoder was lost, or came back after `seconds`. `decider` says which of two decoders."""

    t_ns: int
    event: Literal["lost", "restarted"]
    seconds: float
    decider: str = ""


class Decider(Protocol):
    """Anything that decides on a call. If `decide` raises, the tick is a miss with cause `decide`."""

    def decide(self, request: DecisionRequest) -> Decision: ...


class DeciderSource(Protocol):
    """A picklable recipe of a decider: `build` runs in the deciding process, for each worker and after each restart.

    The decider may have `info() -> dict` for the report, and `close()`, which any thread may call when the session
    ends, also during a decision. `build` raises UserError if the user can correct the error."""

    def build(self) -> Decider: ...


class Host(Protocol):
    """Decide for one session, off the loop's thread. Only `start` and `close` may block; any thread may call `wake`.

    A host with N workers makes at most N decisions at once; the newest requests win. `incarnation` grows with every
    restart of the decoder, and `events` lists losses and returns. If `gave_up` says why the decoder will not come back,
    the loop must end. `threads` are the deciding threads on this machine (process and thread id). `shares` are the
    newest decisions' times in ns; decisions made together share their time equally."""

    name: str

    @property
    def incarnation(self) -> int: ...
    @property
    def events(self) -> list[HostEvent]: ...
    @property
    def gave_up(self) -> str | None: ...
    @property
    def shares(self) -> deque[float]: ...
    @property
    def threads(self) -> Sequence[tuple[int, int]]: ...

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Build the decider if there is none; return the lines that it adds to the report. Raises UserError.

        Returns an empty dict soon after `stopped()` is true: only `close` may then be called."""

    def submit(self, request: DecisionRequest) -> None: ...
    def wait(self, timeout_ns: int) -> DecisionReply | None: ...
    def wake(self) -> None:
        """End the current or the next `wait` early and without a reply. Never blocks."""

    def alive(self) -> bool: ...
    def cancel(self, tick: int) -> None:
        """Give up this tick's request. If its decision has not started, it never starts."""

    def close(self) -> None:
        """Free the decider, and end the pool if the host started that pool."""


class HostBase:
    """Base of hosts: keeps whether the decider is `up`, when it was lost and came back, and how long it decided."""

    def __init__(self, name: str, up: bool = False) -> None:
        self.name = name
        self.up = up
        self.incarnation = 0
        self.gave_up: str | None = None
        self.events: list[HostEvent] = []
        self.lost_ns: int | None = None  # when the decider was lost; None while it is there
        self._shares: deque[float] = deque(maxlen=SHARES)

    @property
    def shares(self) -> deque[float]:
        return self._shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return ()

    def alive(self) -> bool:
        return self.up

    def mark_lost(self, now_ns: int) -> None:
        """Note that the decider is gone."""
        self.up, self.lost_ns = False, now_ns
        self.events.append(HostEvent(now_ns, "lost", 0.0))

    def mark_ready(self, now_ns: int) -> None:
        """Note that the decider is ready, for the first time or again."""
        if self.lost_ns is not None:
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self.lost_ns) / 1e9))
            self.lost_ns = None
        self.up = True

    def count_reply(self, reply: DecisionReply | None) -> DecisionReply | None:
        """Return the reply, and note the reply's share of the decider's time."""
        if reply is not None:
            self._shares.append(reply.decide_ns / reply.together)
        return reply


class DecoderPool(Protocol):
    """Make hosts for sessions that come and go: each session has its own decider, and all share the same workers.

    A session's newest request wins; the session whose time ends first is served first, together with others of the same
    model, and none starves another. `open` returns a started host, which logs call by the session's name; `open` delays
    decisions only while a model is loaded, and raises UserError or DecoderUnavailable. Any thread may call `open`,
    `alive` (whether the pool can decide now) and `close` (once). `gave_up` says why the pool will never decide again.
    """

    name: str

    @property
    def gave_up(self) -> str | None: ...
    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]: ...
    def open(self, session: str, source: DeciderSource) -> Host: ...
    def alive(self) -> bool: ...
    def close(self) -> None: ...
