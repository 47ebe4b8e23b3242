"""The driver's expert, and its interface for training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from rtcontrol.agents.road.goals import GAPS, KINDS, PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import agent, observe, parse_observation
from rtcontrol.envs.road.game import RoadGame
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call
from rtcontrol.models.schema.random_call import random_call
from rtcontrol_client.carla.intent import KMH

JUNCTION_KMH, JUNCTION_NEAR_M = 50, 130.0
TURN_KMH, TURN_NEAR_M = 20, 40.0
HOLD_M = 3.0  # the car stops at this distance before the stop line
CHANGE_M, OVERTAKE_M = 30.0, 45.0  # minimum distance from a junction, for lane changes and for overtaking


def expert(data: Mapping[str, Any], goal: RoadGoal) -> Call:
    """Return the call for an observation and a goal.

    The goal `stop` has priority, then a red light, then a car ahead that requires hard braking, then other goals.
    """
    if goal.kind == "stop":
        return Call("stop", {})
    if (call := _call_for_light(data) or _call_for_slow_car(data)) is not None:
        return call
    limit = int(data["limit_kmh"])
    match goal.kind:
        case "speed":
            return _drive_call(data, int(goal.value or 0))
        case "follow":
            kmh = _limit_at_junction(data, limit)
            free = data["ahead_m"] is None and kmh < limit
            return _set_speed(kmh) if free or _is_turning(data) else Call("follow", {"gap": goal.value})
        case "lane":
            lanes = data["lanes"]
            return _call_towards_lane(data, {"left": 1, "right": lanes}.get(str(goal.value), (lanes + 1) // 2), limit)
        case "turn":
            if data["turn"] != goal.value and data["junction_m"] != 0:
                return Call("turn", {"at_next_junction": goal.value})
            target = {"left": 1, "right": data["lanes"]}.get(str(goal.value), data["lane"])
            return _call_towards_lane(data, target, limit)
        case "overtake":
            return _overtake_call(data, limit)
        case _:
            return _drive_call(data, limit)


def _call_for_light(data: Mapping[str, Any]) -> Call | None:
    stop_line_m = data["junction_m"]
    if data["light"] not in ("red", "yellow") or stop_line_m is None or stop_line_m == 0:
        return None
    speed = data["speed_kmh"] / KMH
    distance_m = stop_line_m - HOLD_M
    deceleration = math.inf if distance_m <= 0 else speed * speed / (2 * distance_m)
    if data["light"] == "yellow" and deceleration > 4.0:
        return None
    if data["ahead_m"] is not None and data["ahead_m"] + 3.0 < stop_line_m:
        return _call_for_slow_car(data) or Call("follow", {"gap": GAPS[0]})
    if distance_m <= 1.0 and speed < 1.5:
        return Call("stop", {})
    return _brake_call(deceleration) if deceleration >= 1.2 else _set_speed(10 if distance_m < 8.0 else 20)


def _call_for_slow_car(data: Mapping[str, Any]) -> Call | None:
    """Return a brake call if the car ahead is so slow or near that `follow` would brake too late, else None."""
    if data["ahead_m"] is None or (data["junction_m"] == 0 and _is_turning(data)):
        return None
    closing_speed = (data["speed_kmh"] - data["ahead_kmh"]) / KMH
    distance_m = data["ahead_m"] - 3.0
    if closing_speed <= 0:
        return None
    deceleration = math.inf if distance_m <= 0 else closing_speed * closing_speed / (2 * distance_m)
    return _brake_call(deceleration) if deceleration > 2.5 else None


def _brake_call(deceleration: float) -> Call:
    level = 100 if deceleration > 6.4 else 20 * max(1, math.ceil(deceleration / 1.6))
    return Call("brake", {"level": level})


def _is_turning(data: Mapping[str, Any]) -> bool:
    return data["turn"] != "straight"


def _limit_at_junction(data: Mapping[str, Any], kmh: int) -> int:
    """Return the target speed `kmh`, reduced if a junction is near."""
    junction = data["junction_m"]
    if junction is None or junction >= JUNCTION_NEAR_M:
        return kmh
    if _is_turning(data) and junction <= TURN_NEAR_M:
        return min(kmh, TURN_KMH)
    return min(kmh, JUNCTION_KMH)


def _set_speed(kmh: float) -> Call:
    return Call("set_speed", {"kmh": max(10, min(120, int(kmh / 10) * 10))})


def _drive_call(data: Mapping[str, Any], kmh: int) -> Call:
    """Return a call to drive at `kmh`, or to follow a slower car ahead."""
    kmh = _limit_at_junction(data, kmh)
    gap = data["ahead_m"]
    if gap is None:
        return _set_speed(kmh)
    speed_ms, other = data["speed_kmh"] / KMH, data["ahead_kmh"] / KMH
    near = 6.0 + 1.6 * speed_ms + max(0.0, speed_ms - other) * 2.0
    # Do not follow a car that is faster than the target speed, unless the car is very close.
    if gap > near or (other * KMH > kmh + 3 and gap > 5.0 + 0.8 * speed_ms):
        return _set_speed(kmh)
    return Call("follow", {"gap": _gap_for_speed(data["ahead_kmh"])})


def _gap_for_speed(kmh: float) -> int:
    for gap, below in ((5, 8), (10, 22), (15, 38), (20, 58), (30, 80)):
        if kmh < below:
            return gap
    return 40


def _call_towards_lane(data: Mapping[str, Any], target: int, kmh: int) -> Call:
    """Return a call to change one step towards the lane `target`, or to slow down if a car blocks the change."""
    step = (target > data["lane"]) - (target < data["lane"])
    if step == 0 or data["shift"] or not _far_from_junction(data, CHANGE_M) or data["speed_kmh"] < 8:
        return _drive_call(data, max(kmh, 10))
    side = "left" if step < 0 else "right"
    if _has_room(data, side):
        return Call("change_lane", {"direction": side})
    return _drive_call(data, max(20, min(kmh, int(data["speed_kmh"])) - 20))


def _overtake_call(data: Mapping[str, Any], limit: int) -> Call:
    lane, lanes, ahead = data["lane"], data["lanes"], data["ahead_m"]
    if data["shift"] or not _far_from_junction(data, OVERTAKE_M) or data["speed_kmh"] < 8:
        return _drive_call(data, limit)
    slow = ahead is not None and ahead < 80 and data["ahead_kmh"] < limit - 4
    if slow:
        # Overtake on the left if there is more room, and on the right only if there is much more room.
        for side, more_m in (("left", 10), ("right", 25)):
            other = data[f"{side}_ahead_m"]
            faster = other is None or other > ahead + more_m or data[f"{side}_ahead_kmh"] > data["ahead_kmh"] + 5
            if (lane > 1 if side == "left" else lane < lanes) and faster and _has_room(data, side):
                return Call("change_lane", {"direction": side})
    elif lane < lanes and _has_room(data, "right"):
        other = data["right_ahead_m"]
        if (other is None or other > 90) and (data["right_behind_m"] is None or data["right_behind_m"] > 15):
            return Call("change_lane", {"direction": "right"})
    return _drive_call(data, limit)


def _far_from_junction(data: Mapping[str, Any], metres: float) -> bool:
    return data["junction_m"] is None or data["junction_m"] > metres


def _has_room(data: Mapping[str, Any], side: str) -> bool:
    speed_ms = data["speed_kmh"] / KMH
    ahead, behind = data[f"{side}_ahead_m"], data[f"{side}_behind_m"]
    if ahead is not None and ahead < 8.0 + 1.8 * max(0.0, speed_ms - data[f"{side}_ahead_kmh"] / KMH):
        return False
    return behind is None or behind > 7.0 + 2.2 * max(0.0, data[f"{side}_behind_kmh"] / KMH - speed_ms)


# A call without effect: `straight` is the default direction at junctions.
STILL = Call("turn", {"at_next_junction": "straight"})
_LEFT, _RIGHT = RoadGoal("lane", "left"), RoadGoal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = RoadGoal("turn", "left"), RoadGoal("turn", "right")
SKILL = Skill(
    "road",
    RoadGame,
    observe,
    parse_observation,
    PHRASINGS.goal_of,
    expert,
    STILL,
    partial(random_call, agent.tools.schemas),
    goals=(
        RoadGoal("drive"),
        RoadGoal("speed", 30),
        RoadGoal("speed", 60),
        _LEFT,
        RoadGoal("lane", "middle"),
        _RIGHT,
        RoadGoal("follow", 10),
        RoadGoal("follow", 30),
        _TURN_LEFT,
        _TURN_RIGHT,
        RoadGoal("turn", "straight"),
        RoadGoal("overtake"),
        RoadGoal("stop"),
    ),
    opposite={_LEFT: _RIGHT, _RIGHT: _LEFT, _TURN_LEFT: _TURN_RIGHT, _TURN_RIGHT: _TURN_LEFT},
    kinds=KINDS,
    phrasings={"held-out": PHRASINGS.held_out_words},
)
