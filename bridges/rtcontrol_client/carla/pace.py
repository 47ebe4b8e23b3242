"""How fast: the acceleration that an intent asks for, and the emergency brake beneath it. Pure, SI units."""

from __future__ import annotations

from typing import NamedTuple

from rtcontrol_client.carla.intent import Intent

COMFORT_UP, COMFORT_DOWN = 2.0, 3.0
FOLLOW_DOWN = 6.0
FULL_BRAKE = 8.0
# The emergency brake acts when less than this would no longer do.
EMERGENCY = 5.0
STANDING_GAP_M = 1.5
# A lane change needs so much room beside us, and so many seconds until we or whoever is behind would be there.
ROOM_M, ROOM_AHEAD_S, ROOM_BEHIND_S = 1.0, 1.0, 2.0
# A turn is told in time if the corner's speed is reached by comfortable braking, after so long and so far.
REACT_S, MARGIN_M = 0.5, 2.0
# Whoever comes from behind in the lane that we change to, and would be there within this, is beside us already.
SOON_S = 0.8
KMH = 3.6


class Near(NamedTuple):
    """The next vehicle in one direction of a lane: bumper to bumper, m, 0 beside us; its speed along the lane, m/s."""

    gap_m: float
    speed: float


def wanted(intent: Intent, speed: float, limit: float, ahead: Near | None) -> float:
    """The acceleration (m/s2) that the intent asks for at this speed (m/s).

    `limit` (m/s) is what `follow` drives at where nobody is near; `set_speed` goes to its own figure, whoever is ahead.
    """
    match intent.mode:
        case "speed":
            return _towards(intent.kmh / KMH, speed)
        case "follow":
            free = _towards(limit, speed)
            if ahead is None:
                return free
            near = 0.25 * (ahead.gap_m - intent.gap_m) + 0.9 * (ahead.speed - speed)
            return max(min(free, near), -FOLLOW_DOWN)
        case "brake":
            return -FULL_BRAKE * intent.level / 100.0
        case "stop":
            return -COMFORT_DOWN


def emergency(speed: float, ahead: Near | None) -> bool:
    """Whether only hard braking still keeps the vehicle off the one ahead: the last net, whatever was called."""
    if ahead is None or speed <= 0 or (closing := speed - ahead.speed) <= 0:
        return False
    left = ahead.gap_m - STANDING_GAP_M
    return left <= 0 or closing * closing / (2.0 * left) > EMERGENCY


def room(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Whether there is room for us in a lane: nobody beside us, nobody ahead or behind who soon would be."""
    if emergency(speed, ahead):
        return False
    if ahead is not None and ahead.gap_m < ROOM_M + ROOM_AHEAD_S * max(speed - ahead.speed, 0.0):
        return False
    return behind is None or behind.gap_m >= ROOM_M + ROOM_BEHIND_S * max(behind.speed - speed, 0.0)


def beside(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Whether somebody in a lane is beside us, or comes from behind and soon will be."""
    if ahead is not None and ahead.gap_m <= 0.0:
        return True
    return behind is not None and behind.gap_m <= SOON_S * max(behind.speed - speed, 0.0)


def slowing_m(speed: float, corner: float) -> float:
    """The metres that a driver needs to be told before, to come to a corner at its speed; 0 where that is no less."""
    if speed <= corner:
        return 0.0
    return (speed * speed - corner * corner) / (2.0 * COMFORT_DOWN) + REACT_S * speed + MARGIN_M


def _towards(target: float, speed: float) -> float:
    return max(-COMFORT_DOWN, min(COMFORT_UP, 0.8 * (target - speed)))
