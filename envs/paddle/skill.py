"""The paddle game's expert, and its interface for training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rtcontrol.agents.paddle.goals import KINDS, PHRASINGS, PaddleGoal
from rtcontrol.agents.paddle.tools import agent, observe, parse_observation
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.paddle.world import BALL_HALF, BOTTOM, HEIGHT, LEVEL_SPEED, OWN_PLANE, TOP
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call
from rtcontrol.models.schema.random_call import random_call

LEVELS = (-3, -2, -1, 0, 1, 2, 3)
LOOK_AHEAD_S, FAR_AHEAD_S = 0.3, 0.5  # seconds for which the ball's path is predicted: to hit, and to avoid the ball
GAIN = 7.0  # paddle speed in units per second for each unit of distance to the target
AIM = 4.2  # to send the ball up or down, hit it at this distance from the paddle's centre
SWING = 2.0  # maximum of this distance when the ball is returned away from the other paddle
CROWDED = 13.0  # if the ball comes nearer than this to the top or bottom, the paddle must not wait there


def expert(data: Mapping[str, float], goal: PaddleGoal) -> Call:
    """Return the call for an observation and a goal. These are its only inputs, so a model can learn it."""
    distance = _target_y(data, goal) - data["own_y"]
    level = round(GAIN * distance / LEVEL_SPEED)
    return Call("move", {"velocity": max(LEVELS[0], min(LEVELS[-1], level))})


def _target_y(data: Mapping[str, float], goal: PaddleGoal) -> float:
    """Return the y that the paddle should move to."""
    own, other = data["own_y"], data["other_y"]
    if goal.kind == "top":
        return TOP
    if goal.kind == "bottom":
        return BOTTOM
    if goal.kind == "mirror":
        return other
    coming = data["ball_vx"] > 0 and data["ball_x"] <= OWN_PLANE
    if goal.kind == "miss":
        return _evading_y(own, _predicted_ball_y(data, FAR_AHEAD_S) if coming else HEIGHT / 2)
    if not coming:
        return HEIGHT / 2
    ball = _predicted_ball_y(data, LOOK_AHEAD_S)
    if goal.kind == "return":
        offset = max(-SWING, min(SWING, (other - HEIGHT / 2) / 5))
    else:
        offset = AIM if goal.kind == "up" else -AIM
    return max(TOP, min(BOTTOM, ball + offset))


def _predicted_ball_y(data: Mapping[str, float], limit_s: float) -> float:
    """Return the ball's y when it reaches the paddle, or after `limit_s` if that is sooner."""
    seconds = min((OWN_PLANE - data["ball_x"]) / data["ball_vx"], limit_s)
    y = data["ball_y"] + data["ball_vy"] * seconds
    if y < BALL_HALF:
        return 2 * BALL_HALF - y
    return 2 * (HEIGHT - BALL_HALF) - y if y > HEIGHT - BALL_HALF else y


def _evading_y(own: float, ball: float) -> float:
    """Return a y that avoids the ball: the nearer of top and bottom, or the middle if the ball comes close to it."""
    if own < HEIGHT / 2:
        return TOP if ball > TOP + CROWDED else HEIGHT / 2
    return BOTTOM if ball < BOTTOM - CROWDED else HEIGHT / 2


_PAIRS = (("return", "miss"), ("up", "down"), ("top", "bottom"))
SKILL = Skill(
    "paddle",
    PaddleGame,
    observe,
    parse_observation,
    PHRASINGS.goal_of,
    expert,
    Call("move", {"velocity": 0}),
    partial(random_call, agent.tools.schemas),
    goals=tuple(PaddleGoal(kind) for kind in KINDS),
    opposite={PaddleGoal(a): PaddleGoal(b) for pair in _PAIRS for a, b in (pair, pair[::-1])},  # type: ignore[arg-type]
    kinds=KINDS,
    phrasings={"held-out": PHRASINGS.held_out_words},
)
