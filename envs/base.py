"""What the control loop sees of a place where calls act, and what the author of such a place writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rtcontrol.models.call import Call

ClockKind = Literal["wall", "lockstep"]
# What became of a call: it acted; its epoch (or the whole run of episodes) was over; its time was; people hold it back.
Effect = Literal["acted", "epoch_over", "too_late", "refused"]


class WorldError(RuntimeError):
    """The world's own code (reset, step, observe, outcome) raised `__cause__`: the run ends, safely."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the world.

    `seq` grows by one with every observation made, so a reader of the freshest alone can count the superseded ones;
    `epoch` grows with every reset; `t_capture_ns` is CLOCK_MONOTONIC.
    """

    seq: int
    epoch: int
    t_capture_ns: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Episode:
    """A finished episode. `ret` is the return (sum of rewards); `success` is None where nothing was there to judge."""

    seed: int
    ret: float
    success: bool | None
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)


class Simulation(Protocol):
    """What an environment's author writes: a world that stands still until it is stepped.

    `step_s` is the native physics step in seconds. `bindings` maps a tool's name to the function that acts on the
    world; what it sets stays in force until the next call. `outcome()` is not None from the end of an episode until
    the next `reset`. One that holds on to something has a `close()`, too, which is called once.
    """

    step_s: float
    bindings: Mapping[str, Callable[..., Any]]

    def reset(self, seed: int) -> None: ...

    def step(self) -> None: ...

    def observe(self) -> Mapping[str, Any]: ...

    def outcome(self) -> Episode | None: ...

    def instruct(self, text: str) -> None:
        """The instruction changed: judge accordingly."""


class Barrier(Protocol):
    """What stands between calls and the world. `shut`: why no call may act now (a person paused, say); None: it may."""

    shut: str | None


class Environment(Protocol):
    """A running world, as the control loop sees it.

    `start` takes the seeds of the episodes in order (an iterable, or the first of consecutive ones) and how many
    episodes to run (None: no end). `advance` lets a lockstep world run `dt_ns` (whole native steps, the remainder
    carried); it does nothing under the wall clock. `latest`, `finished` and `episodes` never block, however long the
    world does; they raise WorldError once it broke down. `execute` and `instruct` may block: the actuator's thread
    calls them.
    """

    name: str

    @property
    def bindings(self) -> Mapping[str, Callable[..., Any]]: ...

    @property
    def finished(self) -> bool: ...

    @property
    def episodes(self) -> Sequence[Episode]: ...

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None: ...

    def latest(self) -> Observation | None: ...

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Act, if `epoch` is still on (None: whichever is), `not_after_ns` (CLOCK_MONOTONIC; None: no limit) is not
        over and `barrier` is not shut (None: there is none). All are looked at when nothing else can come before the
        act any more."""

    def advance(self, dt_ns: int) -> None: ...

    def instruct(self, text: str) -> None: ...

    def conclude(self) -> None:
        """The run is over but for its safe call: no further episode begins. Never blocks."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Emission:
    """What became of a tick. `fresh`: a new decision (`call` is None where it leaves the call in force); `held`: the
    call in force goes on; `safe`: the safe call (None where the agent has none), `safe_calls` where it has several.

    `seq` is that of the observation that was looked at (-1: none), `deadline_ns` CLOCK_MONOTONIC, `cause` the miss's,
    `error` what the agent or the decider said; `mistake` what and remedy, where the decider cannot take what it was
    given. `safe_calls`: all of them, with `safe`. `waited_ns`: how long the call waited for a person's yes. `n`: how
    many calls of the tick came before; `more`: another emission of this tick follows.
    """

    tick: int
    epoch: int
    seq: int
    deadline_ns: int
    status: Literal["fresh", "held", "safe"]
    call: Call | None = None
    confidence: float | None = None
    decide_ns: int | None = None
    cause: str | None = None
    error: str | None = None
    safe_calls: tuple[Call, ...] = ()
    mistake: tuple[str, str] | None = None
    waited_ns: int = 0
    n: int = 0
    more: bool = False


@runtime_checkable
class Stepping(Protocol):
    """An environment that steps in this process: a safe call, its own function or one of the agent's, is in force there
    once the world has stepped with what it set."""

    def settle(self, since_ns: int) -> bool | None:
        """Whether a step started after `since_ns` (CLOCK_MONOTONIC); False: it comes when it is due, so ask again;
        None: none comes, as no episode is on. Once the run has concluded, it is made now. Raises what it raises."""


@runtime_checkable
class Emitting(Protocol):
    """An environment that gets every tick's outcome, in order and from the actuator's thread: exactly one
    emission a tick (of several calls: one without `more`, the last), and one more `safe` when a hold ends between two
    ticks or the run is over. Its `execute` and `emit` never block; where `emit` raises, a fresh call has failed, and
    `safe` is repeated until it could be."""

    def emit(self, emission: Emission) -> None: ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What became of the call that was sent for `tick`: the fresh one or a safe one (`why`). `t_ns` is when this
    arrived (CLOCK_MONOTONIC), `result` what the function gave, `n` how many calls of the tick came before it."""

    tick: int
    status: Literal["executed", "expired", "refused", "failed"]
    t_ns: int
    why: Literal["fresh", "safe"] = "fresh"
    error: str | None = None
    result: str | None = None
    n: int = 0


@runtime_checkable
class Acknowledging(Protocol):
    """An environment that reports which calls were really executed. `heard` is what arrived and was not taken: it may
    grow at any time, only the loop takes."""

    heard: deque[Acknowledgement]

    def acknowledged(self) -> Sequence[Call] | None:
        """Those of this epoch since the last time, in order; None: take a call for executed once it was sent."""
