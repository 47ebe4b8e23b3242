"""Run a simulation as an environment, in real time or in lockstep with the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal

from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.envs.base import Barrier, ClockKind, Effect, Episode, Observation, Simulation, WorldError
from rtcontrol.envs.skill import StepAccumulator
from rtcontrol.envs.thread import WorldThread
from rtcontrol.models.call import Call

# Of the steps that are overdue, at most this number are made; the others are skipped.
MAX_OVERDUE_STEPS = 3


Phase = Literal["new", "between", "playing", "finished"]


@dataclass(slots=True)
class StepSchedule:
    """The schedule of steps with the wall clock. `steps` is the number of steps made, `skipped` of steps skipped,
    `max_late_ms` the largest delay of a step, and `due_ns` the time of the next step (CLOCK_MONOTONIC)."""

    steps: int = 0
    skipped: int = 0
    max_late_ms: float = 0.0
    due_ns: int = 0

    def count_due_step(self, step_ns: int) -> bool:
        """Return whether a step is due; if so, count it as made and schedule the next step."""
        late_ns = time.monotonic_ns() - self.due_ns
        if late_ns < 0:
            return False
        skip = max(0, late_ns // step_ns - MAX_OVERDUE_STEPS)
        self.max_late_ms = max(self.max_late_ms, late_ns / 1e6)
        self.skipped += skip
        self.steps += 1
        self.due_ns += (skip + 1) * step_ns
        return True


@dataclass(slots=True)
class EpisodeProgress:
    """The episodes of a run. `done` is the list of finished episodes, `seeds` yields the seeds of the next episodes,
    and `epoch` is the number of started episodes. If `concluded` is True, no further episode starts."""

    done: list[Episode] = field(default_factory=list)
    seeds: Iterator[int] = field(default_factory=count)
    concluded: bool = False
    epoch: int = 0


class PacedEnvironment:
    """An `Environment` that runs a `Simulation` on a single thread.

    With the wall clock, the thread makes a step every `step_s` seconds on a fixed time grid. In lockstep, `advance`
    makes the steps. When an episode ends, the next one starts immediately, until `episodes` are finished, there are no
    more seeds, or `conclude` was called. If the simulation raises an exception (even SystemExit), the next call of
    `latest` raises a WorldError, but calls can still be executed.

    A safe call counts as active after the next step (`has_stepped`), which is made when it is due, or immediately after
    `conclude`.
    """

    def __init__(self, name: str, simulation: Simulation, thread: WorldThread | None = None) -> None:
        self.name = name
        self.pace = StepSchedule()
        self.thread = thread or WorldThread(name, simulation)
        self.not_after_ns: int | None = None  # the deadline of the call that is being executed
        self._simulation = simulation
        self._accumulator = StepAccumulator(simulation.step_s)
        self._episode_progress = EpisodeProgress()
        self._phase: Phase = "new"
        self._clock: ClockKind = "wall"
        self._stepped_ns = 0  # when the last step started
        self._latest: Observation | None = None
        self._error: BaseException | None = None

    @classmethod
    def from_factory(cls, name: str, make: Callable[[], Simulation]) -> PacedEnvironment:
        """Call `make` on a new world thread, and return an environment for the simulation that it creates. Errors of
        `make` are raised."""
        thread = WorldThread(name)
        try:
            return cls(name, thread.create_world(make), thread)
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
        return list(self._episode_progress.done)

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        """Reset to the first seed; with the wall clock, start the steps. Raises RuntimeError if already started."""
        if self._phase != "new":
            raise RuntimeError(f"The environment {self.name} has already been started.")
        self._phase, self._clock = "between", clock
        self._episode_progress.seeds = islice(count(seeds) if isinstance(seeds, int) else seeds, episodes)
        self.thread.run(self._start_first_episode)
        self.latest()

    def preview(self, seed: int) -> Observation:
        """Reset the world to `seed` and return an observation; used before `start`."""

        def reset_and_observe() -> Observation:
            run_to_completion(self._simulation.reset, seed)
            return Observation(0, 0, time.monotonic_ns(), self._simulation.observe())

        return self.thread.run(reset_and_observe)

    def latest(self) -> Observation | None:
        """Return the latest observation without blocking. Raises WorldError if the simulation has raised an error."""
        if self._error is not None:
            raise WorldError(f"The environment {self.name} failed: {self._error!r}") from self._error
        return self._latest

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Execute a call on the world's thread; return "too_late" if `not_after_ns` has passed by then. Raises the
        errors of the bound function."""
        return self.thread.run(lambda: self._execute_now(call, epoch, not_after_ns, barrier))

    def has_stepped(self, since_ns: int) -> bool | None:
        return self.thread.run(lambda: self._has_stepped(since_ns))

    def _execute_now(self, call: Call, epoch: int | None, not_after_ns: int | None, barrier: Barrier | None) -> Effect:
        if self._phase != "playing" or epoch not in (None, self._episode_progress.epoch):
            return "epoch_over"
        if not_after_ns is not None and time.monotonic_ns() > not_after_ns:
            return "too_late"
        if barrier is not None and barrier.block_reason is not None:
            return "refused"
        self.not_after_ns = not_after_ns
        run_to_completion(self._simulation.bindings[call.name], **call.arguments)
        return "acted"

    def _has_stepped(self, since_ns: int) -> bool | None:
        if self._stepped_ns > since_ns:
            return True
        if self._phase != "playing":
            return None
        if self._episode_progress.concluded:
            try:
                self._step()
            except BaseException as error:
                self._error = self._error or error
                raise
            self._record_errors(self._observe_unless_ended)  # not raised, because the call did not cause them
        return self._episode_progress.concluded

    def advance(self, dt_ns: int) -> None:
        """In lockstep, run `dt_ns` of simulated time in whole physics steps, keep the remainder, and observe once.

        If the episode ends within this time, start the next one and drop the rest of `dt_ns`, so that an episode
        depends only on its seed and calls. With the wall clock, do nothing.
        """
        if self._clock == "lockstep":
            self.thread.run(lambda: self._record_errors(lambda: self._advance(dt_ns)))
            self.latest()

    def picture(self) -> Any:
        """Call the simulation's `picture` on the world's thread; return None if it has no such method."""
        paint = getattr(self._simulation, "picture", None)
        return None if paint is None else self.thread.run(paint)

    def instruct(self, text: str) -> None:
        """Pass the agent's instruction to the simulation; allowed before the start and during an episode."""
        self.thread.run(lambda: self._simulation.instruct(text))

    def conclude(self) -> None:
        self._episode_progress.concluded = True

    def close(self) -> None:
        """Stop and close the world; later calls do nothing. Never raises; `thread.close_error` is the error text."""
        self.thread.close()

    # -- on the world's thread ----------------------------------------------------------------------------------------

    def _record_errors(self, *acts: Callable[[], Any]) -> None:
        try:
            for act in acts:
                act()
        except BaseException as error:  # even SystemExit, because a world must not end the process
            self._error = self._error or error

    def _start_first_episode(self) -> None:
        self._record_errors(self._next_episode)
        if self._clock == "wall" and self._phase == "playing":
            self.pace.due_ns = time.monotonic_ns() + self._accumulator.step_ns
            self.thread.due_work = self._step_on_grid

    def _step_on_grid(self) -> float | None:
        """Make a step if one is due; return the seconds until the next step, or None if there is none."""
        if self._phase != "playing" or self._error is not None:
            return None
        if self.pace.count_due_step(self._accumulator.step_ns):
            self._record_errors(self._step, self._observe_unless_ended)
        return max(0, self.pace.due_ns - time.monotonic_ns()) / 1e9

    def _advance(self, dt_ns: int) -> None:
        if self._phase != "playing":
            return
        for _ in range(self._accumulator.steps(dt_ns)):
            self._step()
            if self._handle_episode_end():
                return
        self._observe()

    def _step(self) -> None:
        started_ns = time.monotonic_ns()
        run_to_completion(self._simulation.step)
        self._stepped_ns = started_ns

    def _observe_unless_ended(self) -> None:
        if not self._handle_episode_end():
            self._observe()

    def _handle_episode_end(self) -> bool:
        """Return whether the episode has ended; if so, start the next episode, or finish the run."""
        episode = self._simulation.outcome()
        if episode is None:
            return False
        self._episode_progress.done.append(episode)
        self._next_episode()
        return True

    def _next_episode(self) -> None:
        self._phase = "between"
        if self._episode_progress.concluded or (seed := next(self._episode_progress.seeds, None)) is None:
            # Observe once more, so that the final state can be read.
            self._observe()
            self._phase = "finished"
            return
        run_to_completion(self._simulation.reset, seed)
        self._accumulator.reset()
        self._episode_progress.epoch += 1
        self._phase = "playing"
        self._observe()

    def _observe(self) -> None:
        seq = 1 if self._latest is None else self._latest.seq + 1
        self._latest = Observation(seq, self._episode_progress.epoch, time.monotonic_ns(), self._simulation.observe())
