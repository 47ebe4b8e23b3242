"""The judge of an episode, and the base class of bundled worlds, which have instructions and a judge."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from rtcontrol.envs.base import Episode, Simulation
from rtcontrol.models.errors import UserError

GoalT = TypeVar("GoalT", bound="Task")


class Task(Protocol):
    """A goal, whose `text()` is the canonical instruction."""

    def text(self) -> str: ...


class Judged(Simulation, Protocol):
    """A simulation that may be judged by another goal than the controller's instruction."""

    def judge_by(self, goal: Any) -> None: ...


class Judge(ABC, Generic[GoalT]):
    """A judge of one episode at a time, step by step.

    Counts start at the reset, or when the goal changes. `end` is how the episode ended; once set, it stays. Without a
    goal an episode ends without a judgement.
    """

    steps_a_second: int
    goal: GoalT | None = None
    end: str | None = None

    def reset(self, goal: GoalT | None) -> None:
        """Start counting for `goal`."""
        self.goal, self.end = goal, None
        self._steps = self._measured = 0
        self._distances = 0.0
        self._succeeded = False

    def change(self, goal: GoalT | None) -> None:
        """Take a new goal during the episode."""
        if self.end is None and goal != self.goal:
            self.reset(goal)

    @property
    def seconds(self) -> float:
        """Return the simulated seconds since the goal was set."""
        return self._steps / self.steps_a_second

    @property
    def success(self) -> bool | None:
        """Return whether the episode succeeded; None without a goal."""
        return None if self.goal is None else self._succeeded

    @property
    def mean_distance(self) -> float:
        """Return the mean of the measured distances, or infinity before the first one."""
        return self._distances / self._measured if self._measured else math.inf

    def measure(self, distance: float) -> None:
        """Add a distance from the goal."""
        self._distances += distance
        self._measured += 1

    def detail(self) -> dict[str, Any]:
        """Return the details for an episode's record: the goal, the end, and the figures of the judgement."""
        return {"goal": None if self.goal is None else self.goal.text(), "end": self.end}


class GoalWorld(ABC, Generic[GoalT]):
    """A `Simulation` whose episodes a `judge` ends.

    The goal is read from the instruction by `meant`, unless `goal` fixes it. Raises UserError with the `hint` for an
    unknown `goal`.
    """

    step_s: float
    bindings: Mapping[str, Callable[..., Any]]

    def __init__(
        self, judge: Judge[GoalT], goal: GoalT | str | None, meant: Callable[[str], GoalT | None], title: str, hint: str
    ) -> None:
        if isinstance(goal, str):
            if (named := meant(goal)) is None:
                raise UserError(f"The {title}'s option goal={goal!r} names no goal.", hint)
            goal = named
        self.judge, self._meant, self._title = judge, meant, title
        self._fixed = self.goal = goal
        self._seed = self._steps = 0
        judge.reset(goal)

    def judge_by(self, goal: GoalT | None) -> None:
        """Judge by `goal` from now on and ignore the instruction. None: judge by the next instructions."""
        self._fixed = self.goal = goal
        self.judge.change(goal)

    def instruct(self, text: str) -> None:
        """Judge by the goal of `text` from now on; an instruction without a goal is not judged."""
        if self._fixed is None:
            self.goal = self._meant(text)
            self.judge.change(self.goal)

    def reset(self, seed: int) -> None:
        """Start an episode, whose random numbers all depend on the seed. Raises UserError for a negative seed."""
        if seed < 0:
            raise UserError(f"The {self._title} has no seed {seed}.", "Give 0 or more.")
        self._seed, self._steps = seed, 0
        self._start(seed)
        self.judge.reset(self.goal)

    def step(self) -> None:
        """Make one physics step, or none if the episode is over."""
        if self.judge.end is None:
            self._steps += 1
            self._advance()

    def outcome(self) -> Episode | None:
        """Return the finished episode, None while it runs. `seconds` is simulated time."""
        if self.judge.end is None:
            return None
        seconds = self._steps * self.step_s
        return Episode(self._seed, self._score(), self.judge.success, seconds, self.judge.detail())

    @abstractmethod
    def _start(self, seed: int) -> None: ...

    @abstractmethod
    def _advance(self) -> None:
        """Make one physics step and inform the judge."""

    @abstractmethod
    def _score(self) -> float:
        """Return the episode's return."""
