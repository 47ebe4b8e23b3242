"""What the control loop sees of a decoder host, what a host sees of a decider, and where hosts come from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rtcontrol.models.call import Call, Decision, pickled_by_fields
from rtcontrol.models.errors import UserError

# Sessions of one pool.
LIMIT = 64
SHARES = 64  # so many are remembered
LOSSES = ("timeout", "connection", "http", "refused", "malformed", "server_error", "not_finite", "repeated")


class DecoderUnavailable(UserError):
    """The place of decision cannot serve now: nothing is wrong with what was asked of it, and it may work later.
    `full`: as many sessions are open as may be."""

    def __init__(self, what: str, remedy: str, full: bool = False) -> None:
        super().__init__(what, remedy)
        self.full = full


class DecisionLost(Exception):
    """A decider elsewhere gave no decision: `loss`, one of LOSSES, is the sub-cause of the miss."""

    def __init__(self, loss: str, what: str) -> None:
        super().__init__(what)
        self.loss = loss


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """One question to the decider. The raw observation `data`, its number `seq` and its instant `captured_ns` never
    leave the process. `received_ns`: when the decider's process had it (its CLOCK_MONOTONIC); `within_ns`: how long the
    answer is waited for from when it was asked (0: for ever); `standing`: the call in force, where there is hysteresis;
    `members`: the requests of a crowd, of which this one is for all.
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
    """The answer to the request of `tick`: a decision, or the error that the decider raised; `mistake` is a UserError's
    what and remedy, `loss` a DecisionLost's. `decide_ns` is how long the decider took, for all that were decided
    `together` (1: alone). Of two deciders, `by` is which one it is (first, backup). `answers` is the older request that
    decides this tick, too. Of a plan, `steps` are which of how many steps this one is, `ahead_ns` how long after the
    observation it is meant for.

    On the loop's own machine, stamps of its CLOCK_MONOTONIC: when the request was `received` and `begun` (0 elsewhere),
    and the `gaps` (begin, end) in which the decider's process, where it is another, stood still lately.
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


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The decoder was lost or came back after `seconds`; of two deciders `decider` is which."""

    t_ns: int
    event: Literal["lost", "restarted"]
    seconds: float
    decider: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class HostState:
    """What became of a host's decider: how often it came back, why it will not any more, and when it was lost."""

    incarnation: int = 0
    gave_up: str | None = None
    events: list[HostEvent] = field(default_factory=list)


class Decider(Protocol):
    """Anything that decides. It may raise: the tick is then a miss with cause `decide`."""

    def decide(self, request: DecisionRequest) -> Decision: ...


class DeciderSource(Protocol):
    """A picklable recipe of a decider: `build` runs where the decisions are made, once a lane and a restart.

    The decider may have `info() -> dict`, which goes into the report, and `close()`, which an `InProcessHost` calls at
    its end, from any thread, also while it decides. Raises UserError for what the user can mend.
    """

    def build(self) -> Decider: ...


class Host(Protocol):
    """Decides for one session, off its loop's thread. Only `start` and `close` may block; all but `wake` are called
    from the loop's thread.

    A host with L lanes has at most L decisions under way; the newest requests win. `incarnation` grows with every
    restart of the decoder, `events` lists losses and returns, `gave_up` says why it will not come back: the loop must
    then end. `threads` are the deciding ones on this machine (process and thread number), `shares` the newest
    decisions' parts of their time, in ns.
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
        """Build the decider, unless it is there; gives what the report says about it. Raises UserError.

        Returns early, and empty, soon after `stopped` says so: the host is then good for `close` only.
        """

    def submit(self, request: DecisionRequest) -> None: ...

    def wait(self, timeout_ns: int) -> DecisionReply | None: ...

    def wake(self) -> None:
        """End a `wait` under way, or the next one, early and without a reply. Any thread may call it; never blocks."""

    def alive(self) -> bool: ...

    def cancel(self, tick: int) -> None:
        """Nobody waits for this tick any more; one not yet begun is not begun."""

    def close(self) -> None:
        """Free the decider, and end the pool where it is this host's own."""


class StatefulHost:
    """The base of hosts whose `state` a core keeps."""

    def __init__(self, name: str, state: HostState) -> None:
        self.name, self._state = name, state

    @property
    def incarnation(self) -> int:
        return self._state.incarnation

    @property
    def events(self) -> list[HostEvent]:
        return self._state.events

    @property
    def gave_up(self) -> str | None:
        return self._state.gave_up


class DecoderPool(Protocol):
    """Makes hosts for sessions that come and go: each has its own decider, all share one place of decision.

    A session's newest request wins; the session whose time ends first is served first, with others of its model, and
    none starves another. `open` holds up the decisions of others only where it loads a model. `gave_up` says why it
    will never decide again.
    """

    name: str

    @property
    def gave_up(self) -> str | None: ...

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """As a host's `start`, of the place of decision."""

    def open(self, session: str, source: DeciderSource) -> Host:
        """Build a decider; gives the started host of this session alone. `session` names it in logs. Any thread may
        call it; it blocks. Raises UserError from the build, DecoderUnavailable where the place is at fault."""

    def alive(self) -> bool:
        """Whether it can decide now; any thread may ask."""

    def close(self) -> None:
        """End all sessions, and what decided for them. Any thread may call it, once."""
