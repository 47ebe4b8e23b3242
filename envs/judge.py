"""Base classes for bundled worlds: a judge decides whether an episode succeeded, and a world takes instructions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from rtcontrol.envs.base import Episode, Simulation
from rtcontrol.models.errors import UserError

GoalT = TypeVar("GoalT", bound="Task")


class Task(Protocol):
    """A goal of an episode. `text()` returns its canonical instruction."""

    def text(self) -> str: ...


class JudgedSimulation(Simulation, Protocol):
    """A simulation whose episodes can be judged by a goal that differs from the controller's instruction."""

    def judge_by(self, goal: Any) -> None: ...


class Judge(ABC, Generic[GoalT]):
    """Decides after each physics step whether an episode has ended and whether it succeeded.

    `reset` and a change of the goal set all counts to zero. `end` is the reason why the episode ended, or None while
    the episode runs. If `goal` is None, the episode is neither a success nor a failure.
    """

    steps_a_second: int
    goal: GoalT | None = None
    end: str | None = None

    def reset(self, goal: GoalT | None) -> None:
        """Set the goal and set all counts to zero, at the start of an episode or when the goal changes."""
        self.goal, self.end = goal, None
        self._steps = self._measured_count = 0
        self._distance_sum = 0.0
        self._succeeded = False

    def change_goal(self, goal: GoalT | None) -> None:
        """Replace the goal during an episode, and set all counts to zero if the new goal is different."""
        if self.end is None and goal != self.goal:
            self.reset(goal)

    @property
    def seconds(self) -> float:
        """Return the simulated seconds since the goal was set."""
        return self._steps / self.steps_a_second

    @property
    def success(self) -> bool | None:
        """Return whether the episode succeeded, or None if there is no goal."""
        return None if self.goal is None else self._succeeded

    @property
    def mean_distance(self) -> float:
        """Return the mean of the distances passed to `add_distance`, or infinity if there are none."""
        return self._distance_sum / self._measured_count if self._measured_count else math.inf

    def add_distance(self, distance: float) -> None:
        """Include a measured distance from the goal in `mean_distance`."""
        self._distance_sum += distance
        self._measured_count += 1

    def detail(self) -> dict[str, Any]:
        """Return details of the episode for the record: the goal, why the episode ended, and measured values."""
        return {"goal": None if self.goal is None else self.goal.text(), "end": self.end}


class GoalWorld(ABC, Generic[GoalT]):
    """Base class of bundled worlds: a `Simulation` that takes instructions, and whose `judge` ends the episodes.

    `parse` returns the goal of an instruction, or None. If `goal` is set, it is the goal of all episodes, and `parse`
    is not used for instructions. Raises UserError with `hint` if `goal` is a text in which `parse` recognises no goal.
    """

    step_s: float
    bindings: Mapping[str, Callable[..., Any]]

    def __init__(
        self, judge: Judge[GoalT], goal: GoalT | str | None, parse: Callable[[str], GoalT | None], title: str, hint: str
    ) -> None:
        if isinstance(goal, str):
            if (named := parse(goal)) is None:
                raise UserError(f"The option goal={goal!r} of the {title} does not name a goal.", hint)
            goal = named
        self.judge, self._parse_goal, self._title = judge, parse, title
        self._fixed_goal = self.goal = goal
        self._seed = self._steps = 0
        judge.reset(goal)

    def judge_by(self, goal: GoalT | None) -> None:
        """Judge episodes by `goal` and ignore instructions, or use the goals of instructions again if it is None."""
        self._fixed_goal = self.goal = goal
        self.judge.change_goal(goal)

    def instruct(self, text: str) -> None:
        """Judge episodes by the goal of the instruction `text`; do not judge them if it has no goal."""
        if self._fixed_goal is None:
            self.goal = self._parse_goal(text)
            self.judge.change_goal(self.goal)

    def reset(self, seed: int) -> None:
        """Start an episode; its random numbers depend only on `seed`. Raises UserError for a negative seed."""
        if seed < 0:
            raise UserError(f"The {self._title} cannot use the seed {seed}.", "Use a seed of 0 or more.")
        self._seed, self._steps = seed, 0
        self._start(seed)
        self.judge.reset(self.goal)

    def step(self) -> None:
        """Make one physics step, unless the episode has ended."""
        if self.judge.end is None:
            self._steps += 1
            self._advance()

    def outcome(self) -> Episode | None:
        """Return the episode if it has ended, else None; its `seconds` are simulated time."""
        if self.judge.end is None:
            return None
        seconds = self._steps * self.step_s
        return Episode(self._seed, self._sum_rewards(), self.judge.success, seconds, self.judge.detail())

    @abstractmethod
    def _start(self, seed: int) -> None: ...

    @abstractmethod
    def _advance(self) -> None:
        """Make one physics step and call the judge's `step`."""

    @abstractmethod
    def _sum_rewards(self) -> float:
        """Return the sum of the episode's rewards, its return."""
