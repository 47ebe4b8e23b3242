"""The paddle game as a `Simulation`: a scripted person plays the left paddle, the controller the right one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.agents.paddle.goals import CANONICAL, PHRASINGS, PaddleGoal
from rtcontrol.envs.base import Episode
from rtcontrol.envs.paddle.world import BOTTOM, LEVEL_SPEED, STEPS_A_SECOND, TOP, PaddleWorld, Person, person
from rtcontrol.envs.skill import GoalWorld

BALLS = {"return": 4, "miss": 8, "up": 4, "down": 4}  # balls that decide an episode
BALLS_S = 40.0  # and how long it may take
WELL_AIMED = 3  # of these, at least so many must fly as asked
AIMED_VY = 5.0  # units a second up or down from which a shot counts as aimed
SETTLE_S, PLACE_S, PLACE_NEAR = 2.0, 8.0, 3.0
MIRROR_S, MIRROR_NEAR = 12.0, 4.0
GAME_POINTS, GAME_S = 5, 60.0  # without a goal
PLACES = {"top": TOP, "bottom": BOTTOM}


class PaddleJudge:
    """Follows one episode step by step; counts begin with the reset or the latest change of the goal.

    return: 4 balls returned, none missed. miss: 8 balls missed, none touched. up, down: of the first 4 balls at least 3
    leave the paddle upwards (downwards) with 5 units a second or more. These end as soon as they are decided, failed
    after 40 s. top, bottom: 8 s; from second 2 on the paddle's mean distance to that end of its range is below 3.
    mirror: 12 s; from second 2 on the mean distance between the paddles' heights is below 4. Without a goal an episode
    is a game to 5 points or 60 s, unjudged.
    """

    def __init__(self, goal: PaddleGoal | None, world: PaddleWorld) -> None:
        self.reset(goal, world)

    def reset(self, goal: PaddleGoal | None, world: PaddleWorld) -> None:
        self.goal = goal
        self.end: str | None = None
        self.returned = self.missed = self.aimed = 0
        self._hits, self._misses = world.own_hits, world.other_score
        self._steps = self._counted = 0
        self._distances = 0.0
        self._success = False

    def change(self, goal: PaddleGoal | None, world: PaddleWorld) -> None:
        """A new goal in flight: its clock starts now."""
        if self.end is None and goal != self.goal:
            self.reset(goal, world)

    @property
    def success(self) -> bool | None:
        """The verdict; None without a goal."""
        return None if self.goal is None else self._success

    @property
    def seconds(self) -> float:
        return self._steps / STEPS_A_SECOND

    def step(self, world: PaddleWorld) -> None:
        """One physics step later; once `end` is set it stays: balls, spoiled (decided early), time, points."""
        if self.end is not None:
            return
        self._steps += 1
        if world.own_hits > self._hits:
            self._hits = world.own_hits
            self.returned += 1
            upwards = world.ball_vy if self.goal is None or self.goal.kind != "up" else -world.ball_vy
            self.aimed += upwards >= AIMED_VY
        if world.other_score > self._misses:
            self._misses = world.other_score
            self.missed += 1
        if self.goal is None:
            points = max(world.own_score, world.other_score) >= GAME_POINTS
            self.end = "points" if points else "time" if self.seconds >= GAME_S else None
        elif self.goal.kind in PLACES or self.goal.kind == "mirror":
            self._near(self.goal, world)
        else:
            self._balls(self.goal)

    def _near(self, goal: PaddleGoal, world: PaddleWorld) -> None:
        mirror = goal.kind == "mirror"
        if self.seconds > SETTLE_S:
            self._distances += abs(world.own_y - (world.other_y if mirror else PLACES[goal.kind]))
            self._counted += 1
        if self.seconds >= (MIRROR_S if mirror else PLACE_S) - 1e-9:
            self.end = "time"
            self._success = self.mean_distance < (MIRROR_NEAR if mirror else PLACE_NEAR)

    def _balls(self, goal: PaddleGoal) -> None:
        wrong = {"return": self.missed, "miss": self.returned}.get(goal.kind, self.returned + self.missed - self.aimed)
        spared = BALLS[goal.kind] - WELL_AIMED if goal.kind in ("up", "down") else 0
        if wrong > spared:
            self.end = "spoiled"
        elif self.returned + self.missed >= BALLS[goal.kind]:
            self.end, self._success = "balls", True
        elif self.seconds >= BALLS_S:
            self.end = "time"

    @property
    def mean_distance(self) -> float:
        """Mean distance over the judged seconds of a place or of mirroring; infinite before them."""
        return self._distances / self._counted if self._counted else float("inf")

    def detail(self, world: PaddleWorld) -> dict[str, Any]:
        """What an episode's record keeps: goal, how it ended, the score, and what the verdict rests on."""
        detail: dict[str, Any] = {
            "goal": None if self.goal is None else self.goal.text(),
            "end": self.end,
            "score": [world.own_score, world.other_score],
            "returned": self.returned,
            "missed": self.missed,
        }
        if self.goal is not None and self.goal.kind in ("up", "down"):
            detail["aimed"] = self.aimed
        if self._counted:
            detail["mean_distance"] = round(self.mean_distance, 3)
        return detail


class PaddleGame(GoalWorld[PaddleGoal]):
    """The `Simulation` of one game, and of whatever the goal asks in it.

    Both paddles start at heights that follow from the seed, as the serves and the person do. The return is the points
    won less those lost. `world` is open to whoever makes starts for training.
    """

    step_s = 1 / STEPS_A_SECOND

    def __init__(self, goal: PaddleGoal | str | None = None) -> None:
        super().__init__(goal, PHRASINGS.meant, "paddle", f"Write one of: {', '.join(CANONICAL.values())}.")
        self.world = PaddleWorld()
        self.person: Person = person(0)
        self._judge = PaddleJudge(self._goal, self.world)
        self._seed = self._steps = 0
        self.bindings: Mapping[str, Callable[..., Any]] = {"move": self.move}

    def move(self, velocity: int) -> None:
        """The model's paddle in steps of 20 units a second, positive is down; it stays so until the next call."""
        self.world.set_model(LEVEL_SPEED * velocity)

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

    def _goal_changed(self) -> None:
        self._judge.change(self._goal, self.world)
