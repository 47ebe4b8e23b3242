"""The paddle game as a `Simulation`: a scripted person plays the left paddle, the controller the right one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.agents.paddle.goals import CANONICAL, PaddleGoal
from rtcontrol.agents.paddle.phrasings import meant
from rtcontrol.envs.base import Episode
from rtcontrol.envs.paddle.judge import PaddleJudge
from rtcontrol.envs.paddle.person import Person, person
from rtcontrol.envs.paddle.world import BOTTOM, LEVEL_SPEED, STEPS_A_SECOND, TOP, PaddleWorld
from rtcontrol.models.errors import UserError


class PaddleGame:
    """The `Simulation` of one game, and of whatever the goal asks in it.

    Both paddles start at heights that follow from the seed, as the serves and the person do. The goal that an episode
    is judged by is read off the instruction, unless `goal` sets it for good. The return is the points won less those
    lost. `world` is open to whoever makes starts for training.
    """

    step_s = 1 / STEPS_A_SECOND

    def __init__(self, goal: PaddleGoal | str | None = None) -> None:
        if isinstance(goal, str):
            named = meant(goal)
            if named is None:
                raise UserError(
                    f"The paddle's option goal={goal!r} names no goal.",
                    f"Write one of: {', '.join(CANONICAL.values())}.",
                )
            goal = named
        self._fixed = self._goal = goal
        self.world = PaddleWorld()
        self.person: Person = person(0)
        self._judge = PaddleJudge(goal, self.world)
        self._seed = self._steps = 0
        self.bindings: Mapping[str, Callable[..., Any]] = {"move": self.move}

    @property
    def goal(self) -> PaddleGoal | None:
        """What the present episode is judged by."""
        return self._goal

    def move(self, velocity: int) -> None:
        """The model's paddle in steps of 20 units a second, positive is down; it stays so until the next call."""
        self.world.set_own(LEVEL_SPEED * velocity)

    def reset(self, seed: int) -> None:
        self.world.reset(seed)
        self.person = person(seed)
        start = random.Random(f"start {seed}")
        self.world.own_y, self.world.other_y = start.uniform(TOP, BOTTOM), start.uniform(TOP, BOTTOM)
        self._seed, self._steps = seed, 0
        self._judge.reset(self._goal, self.world)

    def step(self) -> None:
        """One physics step, the person first; nothing once the episode is over."""
        if self._judge.end is not None:
            return
        self.person.step(self.world)
        self.world.step()
        self._steps += 1
        self._judge.step(self.world)

    def observe(self) -> dict[str, float]:
        return self.world.observe()

    def outcome(self) -> Episode | None:
        """The finished episode, None while it runs. `seconds` is simulated time."""
        if self._judge.end is None:
            return None
        points = float(self.world.own_score - self.world.other_score)
        return Episode(
            self._seed, points, self._judge.success, self._steps * self.step_s, self._judge.detail(self.world)
        )

    def judge_by(self, goal: PaddleGoal | None) -> None:
        """Judge by `goal` from now on, whatever the instruction says; None: by the instructions still to come."""
        self._fixed = self._goal = goal
        self._judge.change(goal, self.world)

    def instruct(self, text: str) -> None:
        """Judge by what `text` asks for, from now on; an instruction that names no goal is not judged."""
        if self._fixed is None:
            self._goal = meant(text)
            self._judge.change(self._goal, self.world)
