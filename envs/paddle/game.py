"""The paddle game as a `Simulation`: a scripted player moves the left paddle, the controller the right one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.agents.paddle.goals import CANONICAL, PHRASINGS, PaddleGoal
from rtcontrol.envs.judge import GoalWorld, Judge
from rtcontrol.envs.paddle.world import BOTTOM, LEVEL_SPEED, STEPS_A_SECOND, TOP, PaddleWorld, Person, make_person

BALLS = {"return": 4, "miss": 8, "up": 4, "down": 4}  # number of balls in an episode, by goal
BALLS_S = 40.0  # time limit for these balls, in seconds
WELL_AIMED = 3  # for the goals up and down, this number of balls must leave in that direction
AIMED_VY = 5.0  # minimum vertical speed of a shot that counts as aimed, in units per second
SETTLE_S, PLACE_S, PLACE_NEAR = 2.0, 8.0, 3.0
MIRROR_S, MIRROR_NEAR = 12.0, 4.0
GAME_POINTS, GAME_S = 5, 60.0  # an episode without a goal ends at 5 points or after 60 seconds
PLACES = {"top": TOP, "bottom": BOTTOM}


class PaddleJudge(Judge[PaddleGoal]):
    """Judges an episode of the paddle game.

    `return` succeeds if 4 balls are returned and none is missed, `miss` if 8 balls are missed and none is touched, `up`
    and `down` if at least 3 of the first 4 balls leave the paddle in that direction with 5 units per second or more.
    These episodes end when the result is certain, and fail after 40 s. An episode of `top` or `bottom` lasts 8 s, and
    succeeds if the paddle's mean distance to that end is below 3 from second 2 on. An episode of `mirror` lasts 12 s,
    and succeeds if the paddles' mean distance in y is below 4 from second 2 on. Without a goal, an episode ends at 5
    points or after 60 s, and is neither a success nor a failure.
    """

    steps_a_second = STEPS_A_SECOND

    def __init__(self, world: PaddleWorld) -> None:
        self._world = world

    def reset(self, goal: PaddleGoal | None) -> None:
        super().reset(goal)
        self._returned_count = self._missed_count = self._aimed_count = 0
        self._hits, self._misses = self._world.own_hits, self._world.other_score

    def step(self) -> None:
        """Judge one physics step. May set `end` to balls, spoiled (the goal can no longer succeed), time or points."""
        if self.end is not None:
            return
        self._steps += 1
        self._count_balls()
        if self.goal is None:
            points = max(self._world.own_score, self._world.other_score) >= GAME_POINTS
            self.end = "points" if points else "time" if self.seconds >= GAME_S else None
        elif self.goal.kind in PLACES or self.goal.kind == "mirror":
            self._judge_place(self.goal)
        else:
            self._judge_balls(self.goal)

    def _count_balls(self) -> None:
        world = self._world
        if world.own_hits > self._hits:
            self._hits = world.own_hits
            self._returned_count += 1
            upwards = world.ball.vy if self.goal is None or self.goal.kind != "up" else -world.ball.vy
            self._aimed_count += upwards >= AIMED_VY
        if world.other_score > self._misses:
            self._misses = world.other_score
            self._missed_count += 1

    def _judge_place(self, goal: PaddleGoal) -> None:
        mirror = goal.kind == "mirror"
        if self.seconds > SETTLE_S:
            self.add_distance(abs(self._world.own_y - (self._world.other_y if mirror else PLACES[goal.kind])))
        if self.seconds >= (MIRROR_S if mirror else PLACE_S) - 1e-9:
            self.end = "time"
            self._succeeded = self.mean_distance < (MIRROR_NEAR if mirror else PLACE_NEAR)

    def _judge_balls(self, goal: PaddleGoal) -> None:
        balls = self._returned_count + self._missed_count
        wrong = {"return": self._missed_count, "miss": self._returned_count}.get(goal.kind, balls - self._aimed_count)
        allowed = BALLS[goal.kind] - WELL_AIMED if goal.kind in ("up", "down") else 0
        if wrong > allowed:
            self.end = "spoiled"
        elif balls >= BALLS[goal.kind]:
            self.end, self._succeeded = "balls", True
        elif self.seconds >= BALLS_S:
            self.end = "time"

    def detail(self) -> dict[str, Any]:
        score = [self._world.own_score, self._world.other_score]
        detail = {**super().detail(), "score": score, "returned": self._returned_count, "missed": self._missed_count}
        if self.goal is not None and self.goal.kind in ("up", "down"):
            detail["aimed"] = self._aimed_count
        if self._measured_count:
            detail["mean_distance"] = round(self.mean_distance, 3)
        return detail


class PaddleGame(GoalWorld[PaddleGoal]):
    """The paddle game as a simulation.

    The seed determines the start positions of both paddles, the serves and the scripted player. The return is points
    won minus points lost. `world` is public, so that training can set its state.
    """

    step_s = 1 / STEPS_A_SECOND
    judge: PaddleJudge

    def __init__(self, goal: PaddleGoal | str | None = None) -> None:
        self.world = PaddleWorld()
        hint = f"Write one of: {', '.join(CANONICAL.values())}."
        super().__init__(PaddleJudge(self.world), goal, PHRASINGS.goal_of, "paddle", hint)
        self.person: Person = make_person(0)
        self.bindings: Mapping[str, Callable[..., Any]] = {"move": self.move}

    def move(self, velocity: int) -> None:
        """Set the velocity of the model's paddle until the next call, in multiples of 20 units/s; positive is down."""
        self.world.set_model(LEVEL_SPEED * velocity)

    def observe(self) -> dict[str, float]:
        return self.world.observe()

    def _start(self, seed: int) -> None:
        self.world.reset(seed)
        self.person = make_person(seed)
        start = random.Random(f"start {seed}")
        self.world.own_y, self.world.other_y = start.uniform(TOP, BOTTOM), start.uniform(TOP, BOTTOM)

    def _advance(self) -> None:
        self.person.step(self.world)
        self.world.step()
        self.judge.step()

    def _sum_rewards(self) -> float:
        return float(self.world.own_score - self.world.other_score)
