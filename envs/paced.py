"""The environment around a simulation: it runs on in real time, or waits for the controller in lockstep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from rtcontrol.envs.base import Barrier, ClockKind, Effect, Episode, Observation, Simulation, WorldError
from rtcontrol.envs.stepping import StepCarry
from rtcontrol.models.call import Call

# A late stepper runs at most this many steps back to back; the rest of its debt is skipped, the grid is kept.
MAX_BURST = 3
# How long the step under way may take when the world is closed.
CLOSE_S = 3.0


@dataclass(slots=True)
class Pace:
    """How well the wall clock was kept: steps made, native steps skipped, and the latest start of a step."""

    steps: int = 0
    skipped: int = 0
    max_late_ms: float = 0.0


class PacedEnvironment:
    """Implements `Environment` over a `Simulation`.

    Wall clock: a thread steps the simulation on an absolute grid at its native rate, whatever the controller does.
    Lockstep: `advance` steps it. Either way an episode that ends is followed at once by one with the next seed,
    until `episodes` are done or the seeds run out. An exception of the simulation's, SystemExit too, is a WorldError
    from the next look at it; a call can act all the same.

    One lock keeps steps and calls apart. Whoever wants to act takes `_turn` too, and the stepper lets it go first: a
    world that needs all its time for its steps takes calls nevertheless, after the step under way.
    """

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.name = name
        self.pace = Pace()
        self._simulation = simulation
        self._carry = StepCarry(simulation.step_s)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._clock: ClockKind = "wall"
        self._seeds: Iterator[int] = count()
        self._wanted: int | None = None
        self._episodes: list[Episode] = []
        self._latest: Observation | None = None
        self._seq = 0
        self._epoch = 0
        self._finished = False
        self._error: BaseException | None = None

    @property
    def bindings(self) -> Mapping[str, Callable[..., Any]]:
        return self._simulation.bindings

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def episodes(self) -> list[Episode]:
        """The finished episodes so far."""
        return list(self._episodes)

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        """Reset to the first seed and, under the wall clock, begin to run. RuntimeError when started already."""
        if self._epoch or self._thread is not None:
            raise RuntimeError(f"environment {self.name} was started already")
        self._clock = clock
        self._seeds = count(seeds) if isinstance(seeds, int) else iter(seeds)
        self._wanted = episodes
        with self._lock, self._guarded():
            self._next_episode()
        if clock == "wall" and not self._finished:
            self._thread = threading.Thread(target=self._run, name=f"env-{self.name}", daemon=True)
            self._thread.start()

    def preview(self, seed: int) -> Observation:
        """What the world of `seed` looks like before `start`, which resets it again; it counts for nothing."""
        with self._lock:
            self._simulation.reset(seed)
            return Observation(0, 0, time.monotonic_ns(), self._simulation.observe())

    def latest(self) -> Observation | None:
        """The freshest observation; never blocks."""
        if self._error is not None:
            raise WorldError(f"environment {self.name} broke down: {self._error!r}") from self._error
        return self._latest

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Act, unless it is too late once the world's lock is had. The bound function's errors go to the caller."""
        with self._turn, self._lock:
            if self._finished or epoch not in (None, self._epoch):
                return "epoch_over"
            if not_after_ns is not None and time.monotonic_ns() > not_after_ns:
                return "too_late"
            if barrier is not None and barrier.shut is not None:
                return "refused"
            self._simulation.bindings[call.name](**call.arguments)
            return "acted"

    def advance(self, dt_ns: int) -> None:
        """Lockstep: run `dt_ns` of simulated time in whole native steps and look once; the remainder is carried.

        An episode that ends on the way is followed by the next one at its very start, the rest of `dt_ns` forgotten,
        so that an episode depends on its seed and calls alone.
        """
        if self._clock == "wall":
            return
        with self._lock, self._guarded():
            if self._finished:
                return
            for _ in range(self._carry.steps(dt_ns)):
                if self._step():
                    return
            self._observe()

    def instruct(self, text: str) -> None:
        """Tell the judge what the controller is asked to do, before the start or in flight."""
        with self._turn, self._lock:
            self._simulation.instruct(text)

    def close(self) -> None:
        """Stop the world; twice does no harm. A step that hangs ends with the process: its thread is a daemon."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:  # ours: this is the loop's thread
            raise
        except BaseException as error:  # also SystemExit: a world does not end its controller
            self._error = error
            self.latest()

    def _run(self) -> None:
        try:
            self._run_on_grid()
        except BaseException as error:
            self._error = error

    def _run_on_grid(self) -> None:
        step_ns = self._carry.step_ns
        due_ns = time.monotonic_ns() + step_ns
        while not self._finished:
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0 and self._stop.wait(wait_ns / 1e9):
                return
            if self._stop.is_set():
                return
            late_ns = time.monotonic_ns() - due_ns
            self.pace.max_late_ms = max(self.pace.max_late_ms, late_ns / 1e6)
            skip = late_ns // step_ns - MAX_BURST
            if skip > 0:
                self.pace.skipped += skip
                due_ns += skip * step_ns
            due_ns += step_ns
            with self._turn:
                pass
            with self._lock:
                self.pace.steps += 1
                if not self._step():
                    self._observe()

    def _step(self) -> bool:
        """One native step; True when it ended the episode (and the next one has begun, or all is finished)."""
        self._simulation.step()
        episode = self._simulation.outcome()
        if episode is None:
            return False
        self._episodes.append(episode)
        self._next_episode()
        return True

    def _next_episode(self) -> None:
        seed = None if self._wanted is not None and len(self._episodes) >= self._wanted else next(self._seeds, None)
        if seed is None:
            # The last look stays: what the final state was can still be read.
            self._observe()
            self._finished = True
            return
        self._simulation.reset(seed)
        self._carry.reset()
        self._epoch += 1
        self._observe()

    def _observe(self) -> None:
        self._seq += 1
        self._latest = Observation(self._seq, self._epoch, time.monotonic_ns(), self._simulation.observe())
