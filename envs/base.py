"""The interfaces of an environment (for the control loop) and of a simulation (for the author of a world)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rtcontrol.models.call import Call

ClockKind = Literal["wall", "lockstep"]
# The result of a call: it acted; its epoch (or the run of episodes) was over; its deadline had passed; an operator
# holds it back.
Effect = Literal["acted", "epoch_over", "too_late", "refused"]


class WorldError(RuntimeError):
    """An error in the world's code (reset, step, observe, outcome), which raised `__cause__`. The run ends safely."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of the world.

    `seq` grows by one with every observation, so that a reader of the latest one can count the skipped ones; `epoch`
    grows with every reset; `t_capture_ns` is CLOCK_MONOTONIC.
    """

    seq: int
    epoch: int
    t_capture_ns: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Episode:
    """A finished episode. `ret` is the return (sum of rewards); `success` is None for an episode that was not
    judged."""

    seed: int
    ret: float
    success: bool | None
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)


class Simulation(Protocol):
    """A world that changes only when it is stepped. The author of a world implements these methods.

    `step_s` is the physics step in seconds. `bindings` maps the name of a tool to the function that acts on the world;
    the effect lasts until the next call. `outcome()` is not None from the end of an episode until the next `reset`. An
    optional `close()` releases resources and is called once.
    """

    step_s: float
    bindings: Mapping[str, Callable[..., Any]]

    def reset(self, seed: int) -> None: ...

    def step(self) -> None: ...

    def observe(self) -> Mapping[str, Any]: ...

    def outcome(self) -> Episode | None: ...

    def instruct(self, text: str) -> None:
        """Judge by a new instruction from now on."""


class Barrier(Protocol):
    """A switch that can keep calls from acting. `shut` is the reason why no call may act now, for example an operator's
    pause, or None if calls may act."""

    shut: str | None


class Environment(Protocol):
    """A running world, with the interface that the control loop uses.

    `start` takes the seeds of the episodes in order (an iterable, or the first of consecutive ones) and the number of
    episodes (None: no end). `advance` runs a lockstep world for `dt_ns` (whole physics steps, the remainder is
    carried), and does nothing under the wall clock. `latest`, `finished` and `episodes` never block; they raise
    WorldError once the world failed. `execute` and `instruct` may block: the actuator's thread calls them.
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
        """Execute a call if `epoch` is current (None: any), `not_after_ns` (CLOCK_MONOTONIC; None: no limit) has not
        passed, and `barrier` is open (None: no barrier). All conditions are checked immediately before the action."""

    def advance(self, dt_ns: int) -> None: ...

    def instruct(self, text: str) -> None: ...

    def conclude(self) -> None:
        """End the run except for its safe call, so that no further episode starts. Never blocks."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Emission:
    """The outcome of a tick. `fresh`: a new decision (`call` is None if the active call stays); `held`: the active call
    continues; `safe`: the safe call (None if the agent has none), with `safe_calls` for several.

    `seq` is the number of the observation (-1: none), `deadline_ns` is CLOCK_MONOTONIC, `cause` the cause of a miss,
    `error` the error text of the agent or decider; `mistake` is problem and hint if the decider cannot use its input.
    `safe_calls`: all safe calls, if `safe`. `waited_ns`: how long the call waited for an operator's approval. `n`:
    number of earlier calls of the tick; `more`: another emission of this tick follows.
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
    """An environment that steps in this process. A safe call is active after the world has made a step with the
    call."""

    def settle(self, since_ns: int) -> bool | None:
        """Return whether a step started after `since_ns` (CLOCK_MONOTONIC); False: the step is not due yet, call again;
        None: no step will come, as no episode is running. Once the run has concluded, make the step now and raise its
        errors."""


@runtime_checkable
class Emitting(Protocol):
    """An environment that gets the outcome of every tick, in order, from the actuator's thread: exactly one emission
    per tick (for several calls: one without `more`, the last), and another `safe` one when a hold ends between two
    ticks or the run is over. `execute` and `emit` never block; if `emit` raises, a fresh call has failed, and `safe` is
    repeated until it succeeds."""

    def emit(self, emission: Emission) -> None: ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The report of a client that executed the call of `tick`, a fresh or a safe one (`why`). `t_ns` is the arrival of
    the report (CLOCK_MONOTONIC), `result` the result of the function, `n` the number of earlier calls of the tick."""

    tick: int
    status: Literal["executed", "expired", "refused", "failed"]
    t_ns: int
    why: Literal["fresh", "safe"] = "fresh"
    error: str | None = None
    result: str | None = None
    n: int = 0


@runtime_checkable
class Acknowledging(Protocol):
    """An environment that reports which calls were executed. `heard` has the reports that the loop has not read yet,
    and may grow at any time."""

    heard: deque[Acknowledgement]

    def acknowledged(self) -> Sequence[Call] | None:
        """Return the executed calls of this epoch since the last time, in order. None means that a call counts as
        executed once it is sent."""
