"""Protocols of hosts, deciders and pools, with their requests and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rtcontrol.models.call import Call, Decision, pickled_by_fields
from rtcontrol.models.errors import UserError

LIMIT = 64  # sessions of one pool
SHARES = 64  # decisions whose time is remembered
LOSSES = ("timeout", "connection", "http", "refused", "malformed", "server_error", "not_finite", "repeated")


class DecoderUnavailable(UserError):
    """The place of decision cannot serve now, and may later. `full`: as many sessions are open as may be."""

    def __init__(self, what: str, remedy: str, full: bool = False) -> None:
        super().__init__(what, remedy)
        self.full = full


class DecisionLost(Exception):
    """A remote decider gave no decision: `loss`, one of LOSSES, is the sub-cause of the miss."""

    def __init__(self, loss: str, message: str) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """One question to the decider.

    The raw observation `data`, its number `seq` and its instant `captured_ns` never leave the process. `received_ns` is
    of the decider's process (its CLOCK_MONOTONIC). The answer is awaited for `within_ns` (0: for ever). `standing`: the
    active call, where there is hysteresis. `members`: the requests of a crowd, of which this one is for all.
    """

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
    standing: Call | None = None
    members: tuple[DecisionRequest, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it without the raw observation."""
        head = (self.tick, self.epoch, self.observation, self.instruction, self.history, None)
        stamps = (self.received_ns, self.within_ns, self.seq, self.captured_ns)
        return DecisionRequest, (*head, *stamps, self.standing, self.members)


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class DecisionReply:
    """The answer to the request of `tick`: a decision, or the error that the decider raised.

    `mistake` is a UserError's `what` and `remedy`, `loss` a DecisionLost's. `decide_ns`: how long the decider took, for
    all that were decided `together` (1: alone). `by`: which of two deciders (first, backup). `answers`: the older
    request that decides this tick, too. Of a plan, `steps` are the number of this step and of all, `ahead_ns` how long
    after the observation it is due. Of a crowd, `members` are the replies to each.

    On the loop's own machine, stamps of its CLOCK_MONOTONIC: when the request was `received` and `begun` (0 elsewhere),
    and the recent `gaps` (start, end) in which the decider's process, where it is another, was stopped.
    """

    tick: int
    decision: Decision | None
    error: str | None
    decide_ns: int
    mistake: tuple[str, str] | None = None
    received_ns: int = 0
    begun_ns: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    together: int = 1
    loss: str | None = None
    by: str = ""
    answers: DecisionRequest | None = None
    steps: tuple[int, int] | None = None
    ahead_ns: int = 0
    members: tuple[DecisionReply, ...] = ()


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The decoder was lost, or came back after `seconds`. `decider`: which of two it was."""

    t_ns: int
    event: Literal["lost", "restarted"]
    seconds: float
    decider: str = ""


class Decider(Protocol):
    """Anything that decides. It may raise: the tick is then a miss with cause `decide`."""

    def decide(self, request: DecisionRequest) -> Decision: ...


class DeciderSource(Protocol):
    """A picklable recipe of a decider: `build` runs in the deciding process, for each worker and after each restart.

    The decider may have `info() -> dict` for the report, and `close()`, which is called when its session ends, from any
    thread, also while it decides. Raises UserError for what the user can correct.
    """

    def build(self) -> Decider: ...


class Host(Protocol):
    """Decide for one session, off its loop's thread. Only `start` and `close` may block; any thread may call `wake`.

    A host with N workers has at most N decisions under way; the newest requests win. `incarnation` grows with every
    restart of the decoder, `events` lists losses and returns, `gave_up` says why it will not come back: the loop must
    then end. `threads` decide on this machine (process and thread number), `shares` are the newest decisions' parts of
    their time, in ns.
    """

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
        """Build the decider, unless it is there; return its lines of the report. Raises UserError.

        Returns early, and empty, soon after `stopped` says so: the host is then good for `close` only.
        """

    def submit(self, request: DecisionRequest) -> None: ...
    def wait(self, timeout_ns: int) -> DecisionReply | None: ...
    def wake(self) -> None:
        """End a `wait` under way, or the next one, early and without a reply. Never blocks."""

    def alive(self) -> bool: ...
    def cancel(self, tick: int) -> None:
        """Give up this tick's request; one that is not started is not started."""

    def close(self) -> None:
        """Free the decider, and end its pool if the host started it."""


class HostBase:
    """Keep what every host shows of its decider: whether it is `up`, its losses and returns, its decisions' times."""

    def __init__(self, name: str, up: bool = False) -> None:
        self.name = name
        self.up = up
        self.incarnation = 0
        self.gave_up: str | None = None
        self.events: list[HostEvent] = []
        self.lost_ns: int | None = None  # since when the decider is away
        self._shares: deque[float] = deque(maxlen=SHARES)

    @property
    def shares(self) -> deque[float]:
        return self._shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return ()

    def alive(self) -> bool:
        return self.up

    def lost(self, now_ns: int) -> None:
        """Note that the decider is gone."""
        self.up, self.lost_ns = False, now_ns
        self.events.append(HostEvent(now_ns, "lost", 0.0))

    def ready(self, now_ns: int) -> None:
        """Note that the decider is there, for the first time or again."""
        if self.lost_ns is not None:
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self.lost_ns) / 1e9))
            self.lost_ns = None
        self.up = True

    def received(self, reply: DecisionReply | None) -> DecisionReply | None:
        """Return the reply, and note its part of the decider's time."""
        if reply is not None:
            self._shares.append(reply.decide_ns / reply.together)
        return reply


class DecoderPool(Protocol):
    """Make hosts for sessions that come and go: each has its own decider, all share one place of decision.

    A session's newest request wins; the session whose time ends first is served first, with others of its model, and
    none starves another. `open` returns a started host, which is named in logs, and holds up decisions only where it
    loads a model; it raises UserError, DecoderUnavailable. Any thread may call `open`, `alive` (whether it can decide
    now) and `close` (once). `gave_up` says why it will never decide again.
    """

    name: str

    @property
    def gave_up(self) -> str | None: ...
    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]: ...
    def open(self, session: str, source: DeciderSource) -> Host: ...
    def alive(self) -> bool: ...
    def close(self) -> None: ...
