"""An environment that runs a simulation in real time, or in lockstep with the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal

from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.envs.base import Barrier, ClockKind, Effect, Episode, Observation, Simulation, WorldError
from rtcontrol.envs.skill import StepCarry
from rtcontrol.envs.thread import WorldThread
from rtcontrol.models.call import Call

# If steps are late, at most so many run back to back; the other late steps are skipped, and the grid stays.
MAX_BURST = 3


Phase = Literal["new", "between", "playing", "finished"]


@dataclass(slots=True)
class Pace:
    """Counts of the steps under the wall clock: made steps, skipped steps, and the largest delay of a step. The next
    step is due at `due_ns` (CLOCK_MONOTONIC)."""

    steps: int = 0
    skipped: int = 0
    max_late_ms: float = 0.0
    due_ns: int = 0

    def take(self, step_ns: int) -> bool:
        """Return whether a step is due, and count this step as made."""
        late_ns = time.monotonic_ns() - self.due_ns
        if late_ns < 0:
            return False
        skip = max(0, late_ns // step_ns - MAX_BURST)
        self.max_late_ms = max(self.max_late_ms, late_ns / 1e6)
        self.skipped += skip
        self.steps += 1
        self.due_ns += (skip + 1) * step_ns
        return True


@dataclass(slots=True)
class EpisodeRun:
    """A run of episodes: the `done` ones, and the `seeds` of the following ones. No episode starts after the run has
    `concluded`. `epoch` counts started episodes."""

    done: list[Episode] = field(default_factory=list)
    seeds: Iterator[int] = field(default_factory=count)
    concluded: bool = False
    epoch: int = 0


class PacedEnvironment:
    """An `Environment` over a `Simulation`, which runs on one `thread` only.

    Wall clock: the thread steps the simulation on an absolute grid at its native rate, independently of the controller.
    Lockstep: `advance` steps it. An episode that ends is followed at once by an episode with the next seed, until
    `episodes` are done, the seeds run out, or the run has `concluded`. An exception of the simulation, SystemExit too,
    becomes a WorldError at the next observation; calls can still act.

    A safe call is active after the world has made a step with the call (`settle`), at the time when a step is due. Once
    the run has concluded, that step is made at once.
    """

    def __init__(self, name: str, simulation: Simulation, thread: WorldThread | None = None) -> None:
        self.name = name
        self.pace = Pace()
        self.thread = thread or WorldThread(name, simulation)
        self.not_after_ns: int | None = None  # time of the call that acts now
        self._simulation = simulation
        self._carry = StepCarry(simulation.step_s)
        self._run = EpisodeRun()
        self._phase: Phase = "new"
        self._clock: ClockKind = "wall"
        self._stepped_ns = 0  # when the last step started
        self._latest: Observation | None = None
        self._error: BaseException | None = None

    @classmethod
    def of(cls, name: str, make: Callable[[], Simulation]) -> PacedEnvironment:
        """Return an environment around the simulation that `make` returns on the environment's thread. Raises the
        errors of `make`."""
        thread = WorldThread(name)
        try:
            return cls(name, thread.make(make), thread)
        except BaseException:
            thread.close()
            raise

    @property
    def bindings(self) -> Mapping[str, Callable[..., Any]]:
        return self._simulation.bindings

    @property
    def finished(self) -> bool:
        return self._phase == "finished"

    @property
    def episodes(self) -> list[Episode]:
        """Return the finished episodes."""
        return list(self._run.done)

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        """Reset to the first seed and, under the wall clock, start to run. Raises RuntimeError if already started."""
        if self._phase != "new":
            raise RuntimeError(f"environment {self.name} was started already")
        self._phase, self._clock = "between", clock
        self._run.seeds = islice(count(seeds) if isinstance(seeds, int) else seeds, episodes)
        self.thread.do(self._begin)
        self.latest()

    def preview(self, seed: int) -> Observation:
        """Return an observation of the world with `seed`, before `start` resets the world."""

        def look() -> Observation:
            run_to_completion(self._simulation.reset, seed)
            return Observation(0, 0, time.monotonic_ns(), self._simulation.observe())

        return self.thread.do(look)

    def latest(self) -> Observation | None:
        """Return the latest observation; never blocks."""
        if self._error is not None:
            raise WorldError(f"environment {self.name} broke down: {self._error!r}") from self._error
        return self._latest

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Execute a call, unless the limit has passed when the world is free. Raises the errors of the bound
        function."""
        return self.thread.do(lambda: self._act(call, epoch, not_after_ns, barrier))

    def settle(self, since_ns: int) -> bool | None:
        return self.thread.do(lambda: self._settle(since_ns))

    def _act(self, call: Call, epoch: int | None, not_after_ns: int | None, barrier: Barrier | None) -> Effect:
        if self._phase != "playing" or epoch not in (None, self._run.epoch):
            return "epoch_over"
        if not_after_ns is not None and time.monotonic_ns() > not_after_ns:
            return "too_late"
        if barrier is not None and barrier.shut is not None:
            return "refused"
        self.not_after_ns = not_after_ns
        run_to_completion(self._simulation.bindings[call.name], **call.arguments)
        return "acted"

    def _settle(self, since_ns: int) -> bool | None:
        if self._stepped_ns > since_ns:
            return True
        if self._phase != "playing":
            return None
        if self._run.concluded:
            try:
                self._step()
            except BaseException as error:
                self._error = self._error or error
                raise
            self._guarded(self._look)  # errors after the step do not belong to the call
        return self._run.concluded

    def advance(self, dt_ns: int) -> None:
        """Run `dt_ns` of simulated time in whole physics steps (lockstep), carry the remainder, and observe once.

        If an episode ends within this time, the next one starts and the rest of `dt_ns` is dropped, so that an episode
        depends only on its seed and calls.
        """
        if self._clock == "lockstep":
            self.thread.do(lambda: self._guarded(lambda: self._advance(dt_ns)))
            self.latest()

    def instruct(self, text: str) -> None:
        """Inform the judge of the controller's instruction, before the start or during an episode."""
        self.thread.do(lambda: self._simulation.instruct(text))

    def conclude(self) -> None:
        self._run.concluded = True

    def close(self) -> None:
        """Stop and close the world. May be called twice, and raises nothing; `thread.fault` has an error at closing."""
        self.thread.close()

    # -- on the world's thread ----------------------------------------------------------------------------------------

    def _guarded(self, *acts: Callable[[], Any]) -> None:
        try:
            for act in acts:
                act()
        except BaseException as error:  # also SystemExit, since a world must not end the controller
            self._error = self._error or error

    def _begin(self) -> None:
        self._guarded(self._next_episode)
        if self._clock == "wall" and self._phase == "playing":
            self.pace.due_ns = time.monotonic_ns() + self._carry.step_ns
            self.thread.due = self._on_grid

    def _on_grid(self) -> float | None:
        """Make a step if one is due; return the seconds until the next step."""
        if self._phase != "playing" or self._error is not None:
            return None
        if self.pace.take(self._carry.step_ns):
            self._guarded(self._step, self._look)
        return max(0, self.pace.due_ns - time.monotonic_ns()) / 1e9

    def _advance(self, dt_ns: int) -> None:
        if self._phase != "playing":
            return
        for _ in range(self._carry.steps(dt_ns)):
            self._step()
            if self._ended():
                return
        self._observe()

    def _step(self) -> None:
        began_ns = time.monotonic_ns()
        run_to_completion(self._simulation.step)
        self._stepped_ns = began_ns

    def _look(self) -> None:
        if not self._ended():
            self._observe()

    def _ended(self) -> bool:
        """Return whether the step ended the episode; if so, start the next episode if there is one."""
        episode = self._simulation.outcome()
        if episode is None:
            return False
        self._run.done.append(episode)
        self._next_episode()
        return True

    def _next_episode(self) -> None:
        self._phase = "between"
        if self._run.concluded or (seed := next(self._run.seeds, None)) is None:
            # The last observation stays, so that the final state can still be read.
            self._observe()
            self._phase = "finished"
            return
        run_to_completion(self._simulation.reset, seed)
        self._carry.reset()
        self._run.epoch += 1
        self._phase = "playing"
        self._observe()

    def _observe(self) -> None:
        seq = 1 if self._latest is None else self._latest.seq + 1
        self._latest = Observation(seq, self._run.epoch, time.monotonic_ns(), self._simulation.observe())
