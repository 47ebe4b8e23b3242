"""The driver as a skill to train and to evaluate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from rtcontrol.agents.road.goals import GAPS, KINDS, PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import agent, observe, read_back
from rtcontrol.envs.road.game import RoadGame
from rtcontrol.envs.skill import Skill
from rtcontrol.models.call import Call
from rtcontrol.models.schema.domain import ClosedDomain

KMH = 3.6
JUNCTION_KMH, JUNCTION_NEAR_M = 50, 130.0
TURN_KMH, TURN_NEAR_M = 20, 40.0
HOLD_M = 3.0  # how far before the line to stand
CHANGE_M, OVERTAKE_M = 30.0, 45.0  # no lane change, no overtaking is asked for nearer to a junction


def expert(seen: Mapping[str, Any], goal: RoadGoal) -> Call:
    """What to call, from the data of `agents.driver.read_back`.

    A halt; else a red light; else a car ahead that only hard braking avoids; else what the goal asks for.
    """
    if goal.kind == "stop":
        return Call("stop", {})
    if (call := _light(seen) or _close(seen)) is not None:
        return call
    limit = int(seen["limit_kmh"])
    match goal.kind:
        case "speed":
            return _proceed(seen, int(goal.value or 0))
        case "follow":
            cap = _cap(seen, limit)
            free = seen["ahead_m"] is None and cap < limit
            return _set(cap) if free or _turning(seen) else Call("follow", {"gap": goal.value})
        case "lane":
            lanes = seen["lanes"]
            return _towards(seen, {"left": 1, "right": lanes}.get(str(goal.value), (lanes + 1) // 2), limit)
        case "turn":
            if seen["turn"] != goal.value and seen["junction_m"] != 0:
                return Call("turn", {"at_next_junction": goal.value})
            target = {"left": 1, "right": seen["lanes"]}.get(str(goal.value), seen["lane"])
            return _towards(seen, target, limit)
        case "overtake":
            return _overtake(seen, limit)
        case _:
            return _proceed(seen, limit)


def _light(seen: Mapping[str, Any]) -> Call | None:
    line = seen["junction_m"]
    if seen["light"] not in ("red", "yellow") or line is None or line == 0:
        return None
    speed = seen["speed_kmh"] / KMH
    left = line - HOLD_M
    needed = math.inf if left <= 0 else speed * speed / (2 * left)
    if seen["light"] == "yellow" and needed > 4.0:
        return None
    if seen["ahead_m"] is not None and seen["ahead_m"] + 3.0 < line:
        return _close(seen) or Call("follow", {"gap": GAPS[0]})
    if left <= 1.0 and speed < 1.5:
        return Call("stop", {})
    return _brake(needed) if needed >= 1.2 else _set(10 if left < 8.0 else 20)


def _close(seen: Mapping[str, Any]) -> Call | None:
    """Brake where comfortable following would be too late."""
    if seen["ahead_m"] is None or (seen["junction_m"] == 0 and _turning(seen)):
        return None
    closing = (seen["speed_kmh"] - seen["ahead_kmh"]) / KMH
    left = seen["ahead_m"] - 3.0
    if closing <= 0:
        return None
    needed = math.inf if left <= 0 else closing * closing / (2 * left)
    return _brake(needed) if needed > 2.5 else None


def _brake(needed: float) -> Call:
    level = 100 if needed > 6.4 else 20 * max(1, math.ceil(needed / 1.6))
    return Call("brake", {"level": level})


def _turning(seen: Mapping[str, Any]) -> bool:
    return seen["turn"] != "straight"


def _cap(seen: Mapping[str, Any], kmh: int) -> int:
    """No faster than junctions allow."""
    junction = seen["junction_m"]
    if junction is None or junction >= JUNCTION_NEAR_M:
        return kmh
    if _turning(seen) and junction <= TURN_NEAR_M:
        return min(kmh, TURN_KMH)
    return min(kmh, JUNCTION_KMH)


def _set(kmh: float) -> Call:
    return Call("set_speed", {"kmh": max(10, min(120, int(kmh / 10) * 10))})


def _proceed(seen: Mapping[str, Any], kmh: int) -> Call:
    """At this speed, or behind whoever is slower."""
    kmh = _cap(seen, kmh)
    gap = seen["ahead_m"]
    if gap is None:
        return _set(kmh)
    own, other = seen["speed_kmh"] / KMH, seen["ahead_kmh"] / KMH
    near = 6.0 + 1.6 * own + max(0.0, own - other) * 2.0
    # The one ahead is faster than we are to drive: it will be gone, unless it is on our bonnet.
    if gap > near or (other * KMH > kmh + 3 and gap > 5.0 + 0.8 * own):
        return _set(kmh)
    return Call("follow", {"gap": _headway(seen["ahead_kmh"])})


def _headway(kmh: float) -> int:
    for gap, below in ((5, 8), (10, 22), (15, 38), (20, 58), (30, 80)):
        if kmh < below:
            return gap
    return 40


def _towards(seen: Mapping[str, Any], lane: int, kmh: int) -> Call:
    """Into a lane, one at a time; slower where a neighbour is in the way."""
    step = (lane > seen["lane"]) - (lane < seen["lane"])
    if step == 0 or seen["shift"] or not _far_from_junction(seen, CHANGE_M) or seen["speed_kmh"] < 8:
        return _proceed(seen, max(kmh, 10))
    side = "left" if step < 0 else "right"
    if _free(seen, side):
        return Call("change_lane", {"direction": side})
    return _proceed(seen, max(20, min(kmh, int(seen["speed_kmh"])) - 20))


def _overtake(seen: Mapping[str, Any], limit: int) -> Call:
    lane, lanes, ahead = seen["lane"], seen["lanes"], seen["ahead_m"]
    if seen["shift"] or not _far_from_junction(seen, OVERTAKE_M) or seen["speed_kmh"] < 8:
        return _proceed(seen, limit)
    slow = ahead is not None and ahead < 80 and seen["ahead_kmh"] < limit - 4
    if slow:
        # On the left where that leads past it; on the right only where it leads well past it.
        for side, more in (("left", 10), ("right", 25)):
            other = seen[f"{side}_ahead_m"]
            past = other is None or other > ahead + more or seen[f"{side}_ahead_kmh"] > seen["ahead_kmh"] + 5
            if (lane > 1 if side == "left" else lane < lanes) and past and _free(seen, side):
                return Call("change_lane", {"direction": side})
    elif lane < lanes and _free(seen, "right"):
        other = seen["right_ahead_m"]
        if (other is None or other > 90) and (seen["right_behind_m"] is None or seen["right_behind_m"] > 15):
            return Call("change_lane", {"direction": "right"})
    return _proceed(seen, limit)


def _far_from_junction(seen: Mapping[str, Any], metres: float) -> bool:
    return seen["junction_m"] is None or seen["junction_m"] > metres


def _free(seen: Mapping[str, Any], side: str) -> bool:
    own = seen["speed_kmh"] / KMH
    ahead, behind = seen[f"{side}_ahead_m"], seen[f"{side}_behind_m"]
    if ahead is not None and ahead < 8.0 + 1.8 * max(0.0, own - seen[f"{side}_ahead_kmh"] / KMH):
        return False
    return behind is None or behind > 7.0 + 2.2 * max(0.0, seen[f"{side}_behind_kmh"] / KMH - own)


def random_call(rng: random.Random) -> Call:
    """Any call; each tool as often as the others."""
    tool = rng.choice(agent.tools.schemas)
    arguments = {}
    for parameter in tool.parameters:
        assert isinstance(parameter.domain, ClosedDomain)
        arguments[parameter.name] = rng.choice(parameter.domain.values)
    return Call(tool.name, arguments)


# What changes nothing: the way through the next junction that is chosen anyway.
STILL = Call("turn", {"at_next_junction": "straight"})
_LEFT, _RIGHT = RoadGoal("lane", "left"), RoadGoal("lane", "right")
_TURN_LEFT, _TURN_RIGHT = RoadGoal("turn", "left"), RoadGoal("turn", "right")
SKILL = Skill(
    "road",
    RoadGame,
    observe,
    read_back,
    PHRASINGS.meant,
    expert,
    STILL,
    random_call,
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
    phrasings=PHRASINGS.lists(),
)
