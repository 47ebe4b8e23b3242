"""A scripted player for the model's paddle: the bundled controller's teacher, and the ceiling it is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from rtcontrol.agents.paddle_goal import Goal
from rtcontrol.envs.paddle import BALL_HALF, BOTTOM, HEIGHT, LEVEL_SPEED, OWN_PLANE, TOP
from rtcontrol.models.call import Call

LEVELS = (-3, -2, -1, 0, 1, 2, 3)
LOOK_AHEAD_S = 0.3
GAIN = 7.0  # units a second for each unit of distance
AIM = 4.2  # how far off the paddle's centre the ball is taken to send it up or down
SWING = 2.0  # the same, at most, to place a return away from the other paddle
CLEAR = 9.5  # a ball so far off the centre is missed for sure


def expert(data: Mapping[str, float], goal: Goal) -> Call:
    """The call for one observation: no memory, so that a network that sees one observation can imitate it."""
    distance = _target(data, goal) - data["own_y"]
    level = round(GAIN * distance / LEVEL_SPEED)
    return Call("move", {"velocity": max(LEVELS[0], min(LEVELS[-1], level))})


def _target(data: Mapping[str, float], goal: Goal) -> float:
    """The height at which the paddle should be."""
    own, other = data["own_y"], data["other_y"]
    if goal.kind == "top":
        return TOP
    if goal.kind == "bottom":
        return BOTTOM
    if goal.kind == "mirror":
        return other
    if data["ball_vx"] <= 0 or data["ball_x"] > OWN_PLANE:
        return own if goal.kind == "miss" else HEIGHT / 2
    ball = _ahead(data)
    if goal.kind == "miss":
        return _aside(ball, own)
    if goal.kind == "return":
        off = max(-SWING, min(SWING, (other - HEIGHT / 2) / 5))
    else:
        off = AIM if goal.kind == "up" else -AIM
    return max(TOP, min(BOTTOM, ball + off))


def _ahead(data: Mapping[str, float]) -> float:
    """The ball's height when it meets the paddle, or in 0.3 s if that is sooner: near enough to run after."""
    seconds = min((OWN_PLANE - data["ball_x"]) / data["ball_vx"], LOOK_AHEAD_S)
    y = data["ball_y"] + data["ball_vy"] * seconds
    if y < BALL_HALF:
        return 2 * BALL_HALF - y
    return 2 * (HEIGHT - BALL_HALF) - y if y > HEIGHT - BALL_HALF else y


def _aside(ball: float, own: float) -> float:
    """Out of the ball's way by the shorter path that has room."""
    if abs(ball - own) >= CLEAR:
        return own
    above, below = ball - CLEAR - 1, ball + CLEAR + 1
    if above < TOP:
        return below
    if below > BOTTOM:
        return above
    return above if own <= ball else below
