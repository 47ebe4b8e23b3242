"""How fast: the acceleration that an intent asks for, and the emergency brake beneath it. Pure, SI units."""

from __future__ import annotations

from rtcontrol.bridges.carla.intent import Intent

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
KMH = 3.6


def wanted(intent: Intent, speed: float, limit: float, ahead_m: float | None, ahead_speed: float | None) -> float:
    """The acceleration (m/s2) that the intent asks for at this speed (m/s).

    `limit` (m/s) is what `follow` drives at where nobody is near; `set_speed` goes to its own figure, whoever is ahead.
    """
    match intent.mode:
        case "speed":
            return _towards(intent.kmh / KMH, speed)
        case "follow":
            free = _towards(limit, speed)
            if ahead_m is None or ahead_speed is None:
                return free
            near = 0.25 * (ahead_m - intent.gap_m) + 0.9 * (ahead_speed - speed)
            return max(min(free, near), -FOLLOW_DOWN)
        case "brake":
            return -FULL_BRAKE * intent.level / 100.0
        case "stop":
            return -COMFORT_DOWN


def emergency(speed: float, ahead_m: float | None, ahead_speed: float | None) -> bool:
    """Whether only hard braking still keeps the vehicle off the one ahead: the last net, whatever was called."""
    if ahead_m is None or ahead_speed is None or speed <= 0:
        return False
    closing = speed - ahead_speed
    if closing <= 0:
        return False
    left = ahead_m - STANDING_GAP_M
    return left <= 0 or closing * closing / (2.0 * left) > EMERGENCY


def room(
    speed: float,
    ahead_m: float | None,
    ahead_speed: float | None,
    behind_m: float | None,
    behind_speed: float | None,
) -> bool:
    """Whether there is room for us in a lane: nobody beside us, nobody ahead or behind who soon would be."""
    if ahead_m is not None and ahead_speed is not None:
        near = ahead_m < ROOM_M + ROOM_AHEAD_S * max(speed - ahead_speed, 0.0)
        if near or emergency(speed, ahead_m, ahead_speed):
            return False
    if behind_m is None or behind_speed is None:
        return True
    return behind_m >= ROOM_M + ROOM_BEHIND_S * max(behind_speed - speed, 0.0)


def slowing_m(speed: float, corner: float) -> float:
    """The metres that a driver needs to be told before, to come to a corner at its speed; 0 where that is no less."""
    if speed <= corner:
        return 0.0
    return (speed * speed - corner * corner) / (2.0 * COMFORT_DOWN) + REACT_S * speed + MARGIN_M


def _towards(target: float, speed: float) -> float:
    return max(-COMFORT_DOWN, min(COMFORT_UP, 0.8 * (target - speed)))
