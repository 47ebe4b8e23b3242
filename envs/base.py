"""The interfaces of an environment (for the control loop) and of a simulation (for the author of a world)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rtcontrol.models.call import Call

ClockKind = Literal["wall", "lockstep"]
# The result of a call is "acted" if it was executed, "epoch_over" if its episode (or the run) had ended, "too_late"
# if its deadline had passed, "refused" if a barrier such as an operator's pause prevented it.
Effect = Literal["acted", "epoch_over", "too_late", "refused"]


class WorldError(RuntimeError):
    """The world's code (reset, step, observe or outcome) raised an exception, which is `__cause__`. The run then ends
    with a safe call."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of the world.

    `seq` increases by 1 with each observation, so that a reader can count skipped observations; `epoch` increases with
    every reset of the world; `t_capture_ns` is the time of the observation (CLOCK_MONOTONIC).
    """

    seq: int
    epoch: int
    t_capture_ns: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Episode:
    """A finished episode. `ret` is its return (the sum of rewards); `success` is None if the episode was not judged."""

    seed: int
    ret: float
    success: bool | None
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)


class Simulation(Protocol):
    """A world that changes only in `step`. The author of a world implements these methods.

    `step_s` is the physics step in seconds. `bindings` maps a tool's name to the function that executes its calls; the
    effect of a call lasts until the next call. `outcome()` returns the episode from its end until the next `reset`, and
    None before. A world may have a `close()`, which is called once to release resources.
    """

    step_s: float
    bindings: Mapping[str, Callable[..., Any]]

    def reset(self, seed: int) -> None: ...

    def step(self) -> None: ...

    def observe(self) -> Mapping[str, Any]: ...

    def outcome(self) -> Episode | None: ...

    def instruct(self, text: str) -> None:
        """Use the instruction `text` from now on to judge whether the episode succeeds."""


class Barrier(Protocol):
    """A switch that can block all calls. `block_reason`: why calls are blocked, such as an operator's pause, or None if
    calls may be executed."""

    block_reason: str | None


class Environment(Protocol):
    """A running world, as the control loop uses it.

    `start` takes the seeds of the episodes in order (an iterable, or the first of consecutive seeds) and the number of
    episodes (None: endless). `advance` runs a lockstep world for `dt_ns` in whole physics steps and keeps the remainder
    for its next call; with the wall clock it does nothing. `latest`, `finished` and `episodes` never block, and raise
    WorldError if the world has failed. `execute` and `instruct` may block; the actuator's thread calls them.
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
        """Execute a call if `epoch` is current (None: any epoch), `not_after_ns` has not passed (CLOCK_MONOTONIC; None:
        no limit), and `barrier` (if given) allows calls; check all of this immediately before the call."""

    def advance(self, dt_ns: int) -> None: ...

    def instruct(self, text: str) -> None: ...

    def conclude(self) -> None:
        """Start no further episodes, and execute only the final safe call from now on. Never blocks."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Emission:
    """The outcome of a tick, for a remote client. Its `status` is `fresh` for a new decision (if `call` is None, the
    active call continues), `held` if the active call continues because the tick missed, or `safe` for the safe call.

    `seq` is the number of the observation (-1: none), `deadline_ns` the tick's deadline (CLOCK_MONOTONIC), `cause` the
    cause of a miss, `error` the error text of the agent or decider, `input_error` a problem and a hint if the decider
    cannot use its input, `safe_calls` all safe calls of a `safe` tick, `waited_ns` the time until an operator's
    approval, `n` the number of earlier calls of the tick. If `more` is True, another emission of the tick follows.
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
    input_error: tuple[str, str] | None = None
    waited_ns: int = 0
    n: int = 0
    more: bool = False


@runtime_checkable
class SteppingEnvironment(Protocol):
    """An environment that steps its world in this process. A safe call counts as active after the next step."""

    def has_stepped(self, since_ns: int) -> bool | None:
        """Return True if a step has started after `since_ns` (CLOCK_MONOTONIC), False if no step was due yet (call
        again later), or None if no episode is running, so that no step will follow. After `conclude`, make the step
        immediately, and raise its errors."""


@runtime_checkable
class EmittingEnvironment(Protocol):
    """An environment whose `emit` gets the outcome of every tick, in order, from the actuator's thread.

    Each tick has one emission, or several, of which all but the last have `more=True`. An additional `safe` emission
    follows if `loop.hold_ms` ends between two ticks, and at the end of the run. `execute` and `emit` never block. An
    exception of `emit` makes a fresh call fail; a `safe` emission is repeated until `emit` succeeds."""

    def emit(self, emission: Emission) -> None: ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A client's report on the execution of the call of `tick`. `why` is whether the call was fresh or safe, `t_ns` the
    time when the report arrived (CLOCK_MONOTONIC), `result` the return value of the client's function, and `n` the
    number of earlier calls of the tick."""

    tick: int
    status: Literal["executed", "expired", "refused", "failed"]
    t_ns: int
    why: Literal["fresh", "safe"] = "fresh"
    error: str | None = None
    result: str | None = None
    n: int = 0


@runtime_checkable
class AcknowledgingEnvironment(Protocol):
    """An environment that reports which calls a client executed. `acknowledgements` is the queue of reports that the
    loop has not read yet; other threads may append reports at any time."""

    acknowledgements: deque[Acknowledgement]

    def pop_acknowledged_calls(self) -> Sequence[Call] | None:
        """Return the calls of this epoch that were executed since the previous call of this method, in order. Return
        None if clients do not acknowledge calls; a call then counts as executed when it is sent."""
