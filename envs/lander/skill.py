"""The lander's expert, and its interface for training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from rtcontrol.agents.lander.goals import HOVER_PLACES, KINDS, PHRASINGS, LanderGoal
from rtcontrol.agents.lander.tools import agent, observe, parse_observation
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call
from rtcontrol.models.schema.random_call import random_call

SIDE_AIM = 0.09


# The expert's gains (P: proportional, D: derivative), from a random search on seeds below 1000. X_* turn distance and
# `vx` into a target angle of at most LEAN radians, A_* turn the error of the angle and the spin (rad/s) into an angular
# acceleration, Y_* turn the error of the height and `vy` into a vertical acceleration. A landing sinks at the speed
# `SINK + SINK_SLOPE * y`, and slower while it is far from the target.
X_P, X_D, LEAN = 1.2, 0.92, 0.45
A_P, A_D = 18.0, 6.8
Y_P, Y_D = 3.5, 4.5
SINK, SINK_SLOPE, SINK_D, DISTANCE_SLOPE = 0.03, 0.55, 4.0, 0.72
MAIN_LEVELS = (0, 50, 60, 70, 80, 90, 100)
SIDE_LEVELS = (-100, -50, 0, 50, 100)


def expert(data: Mapping[str, float], goal: LanderGoal) -> Call:
    """Return the call for an observation and a goal. These are its only inputs, so a model can learn it.

    If a leg is on the ground and the goal is not `hover`, the call turns all engines off.
    """
    if goal.kind != "hover" and (data["left_leg"] or data["right_leg"]):
        return Call("engines", {"main": 0, "side": 0})
    x, y, vx, vy, angle = data["x"], data["y"], data["vx"], data["vy"], data["angle"]
    omega = 2.5 * data["spin"]
    target_x = goal.x if goal.kind == "hover" else {"land": 0.0, "left": -SIDE_AIM, "right": SIDE_AIM}[goal.kind]
    distance = x - target_x
    lean = min(max(X_P * distance + X_D * vx, -LEAN), LEAN)
    alpha = -A_P * (angle - lean) - A_D * omega
    if goal.kind == "hover":
        rise = Y_P * (goal.y - y) - Y_D * vy
    else:
        target_vy = -(SINK + SINK_SLOPE * max(y, 0.0)) + DISTANCE_SLOPE * abs(distance)
        rise = SINK_D * (min(target_vy, 0.3) - vy)
    # Gravity reduces vy by 1.333 per second, and full thrust adds 2.333. A side engine at 100 % gives 5 rad/s^2.
    main = 100.0 * (rise + 1.333) / (2.333 * max(math.cos(angle), 0.3))
    return Call("engines", {"main": _nearest(main, MAIN_LEVELS), "side": _nearest(-20.0 * alpha, SIDE_LEVELS)})


def _nearest(value: float, levels: tuple[int, ...]) -> int:
    return min(levels, key=lambda level: abs(level - value))


LEFT, RIGHT, HOVER = LanderGoal("left"), LanderGoal("right"), LanderGoal("hover", 0.0, 0.7)
SKILL = Skill(
    "lander",
    Lander,
    observe,
    parse_observation,
    PHRASINGS.goal_of,
    expert,
    Call("engines", {"main": 0, "side": 0}),
    partial(random_call, agent.tools.schemas),
    goals=(LanderGoal("land"), LEFT, RIGHT, HOVER),
    opposite={LEFT: RIGHT, RIGHT: LEFT},
    mixed={
        "hover elsewhere": tuple(LanderGoal("hover", x / 100, y / 100) for x, y in HOVER_PLACES if (x, y) != (0, 70))
    },
    kinds=KINDS,
    phrasings={"held-out": PHRASINGS.held_out_words},
)
