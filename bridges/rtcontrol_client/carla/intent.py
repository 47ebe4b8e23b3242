"""The driver's intent, which calls of the agent `driver` set, its wanted acceleration, and the emergency brake.

All values are in SI units. The bridge and the training simulation (`envs/road/world.py`) share this module, so that a
call has the same meaning in both. Every call may be repeated at each tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Mode = Literal["speed", "follow", "brake", "stop"]
Turn = Literal["straight", "left", "right"]
TURNS: tuple[Turn, ...] = ("straight", "left", "right")
LEFT, RIGHT = -1, 1
# Nearer than this to a junction's entry no change of lanes may start, since the change takes about 3 s.
NO_CHANGE_M = 20.0
# At a lower speed a vehicle cannot change lanes.
MIN_CHANGE_KMH = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """The part of the vehicle's place that calls depend on. Lane 1 is the leftmost; `junction_m` is the distance to the
    next junction's entry, 0 inside a junction, None if none is near."""

    speed_kmh: float
    lane: int
    lanes: int
    shift: int
    junction_m: float | None


@dataclass(slots=True)
class Intent:
    """The driver's intent: how to choose the speed, the turn at the next junction, and a wish to change lanes.

    `wish` is -1 (left) or 1 (right) from an accepted `change_lane` until `take_wish`.
    """

    mode: Mode = "stop"
    kmh: float = 0.0
    gap_m: float = 0.0
    level: float = 0.0
    turn: Turn = "straight"
    wish: int = 0

    def obey(self, name: str, arguments: Mapping[str, Any], place: Place) -> str | None:
        """Apply a call to the intent; return why it was refused, or None. Raises KeyError, ValueError for unknown
        calls."""
        match name:
            case "set_speed":
                self.mode, self.kmh = "speed", float(arguments["kmh"])
            case "follow":
                self.mode, self.gap_m = "follow", float(arguments["gap"])
            case "brake":
                self.mode, self.level = "brake", float(arguments["level"])
            case "stop":
                self.mode = "stop"
            case "turn":
                if arguments["at_next_junction"] not in TURNS:
                    raise ValueError(f"turn: at_next_junction={arguments['at_next_junction']!r}")
                if place.junction_m != 0:  # inside a junction the turn cannot change any more
                    self.turn = arguments["at_next_junction"]
            case "change_lane":
                return self._request_change(arguments["direction"], place)
            case _:
                raise ValueError(f"not a driver's call: {name}")
        return None

    def take_wish(self) -> int:
        """Return and clear the accepted change of lanes: -1 (left), 1 (right), or 0 for none."""
        wish, self.wish = self.wish, 0
        return wish

    def passed_junction(self) -> None:
        """Clear the chosen turn, after the junction was passed."""
        self.turn = "straight"

    def _request_change(self, direction: str, place: Place) -> str | None:
        if direction not in ("left", "right"):
            raise ValueError(f"change_lane: direction={direction!r}")
        side = LEFT if direction == "left" else RIGHT
        if place.shift:
            return None  # while changing lanes, a repeated call has no effect and the opposite one must wait
        if not 1 <= place.lane + side <= place.lanes:
            return f"there is no lane to the {direction}"
        if place.junction_m is not None and place.junction_m < NO_CHANGE_M:
            return "too close to a junction"
        if place.speed_kmh < MIN_CHANGE_KMH:
            return "too slow to change lane"
        self.wish = side
        return None


COMFORT_UP, COMFORT_DOWN = 2.0, 3.0
FOLLOW_DOWN = 6.0
FULL_BRAKE = 8.0
# The emergency brake acts when braking by less than this would no longer suffice.
EMERGENCY = 5.0
STANDING_GAP_M = 1.5
# A change of lanes needs this room next to us, and these times to the vehicles ahead and in the rear.
ROOM_M, ROOM_AHEAD_S, ROOM_BEHIND_S = 1.0, 1.0, 2.0
# A turn is chosen in time if, after this time and distance, comfortable braking reaches the corner's speed.
REACT_S, MARGIN_M = 0.5, 2.0
# A vehicle in the other lane that would reach us from the rear within this time counts as next to us.
SOON_S = 0.8
KMH = 3.6


class Near(NamedTuple):
    """The nearest vehicle ahead or behind in a lane: the gap between bumpers (m, 0: next to us), and its speed
    (m/s)."""

    gap_m: float
    speed: float


def wanted(intent: Intent, speed: float, limit: float, ahead: Near | None) -> float:
    """Return the acceleration (m/s2) that the intent demands at this speed (m/s).

    `limit` (m/s) is the speed of `follow` without a vehicle ahead; `set_speed` keeps its value even then.
    """
    match intent.mode:
        case "speed":
            return _acceleration_towards(intent.kmh / KMH, speed)
        case "follow":
            free = _acceleration_towards(limit, speed)
            if ahead is None:
                return free
            near = 0.25 * (ahead.gap_m - intent.gap_m) + 0.9 * (ahead.speed - speed)
            return max(min(free, near), -FOLLOW_DOWN)
        case "brake":
            return -FULL_BRAKE * intent.level / 100.0
        case "stop":
            return -COMFORT_DOWN


def emergency(speed: float, ahead: Near | None) -> bool:
    """Return whether only hard braking can avoid the vehicle ahead, as a last safety net whatever the call."""
    if ahead is None or speed <= 0 or (closing := speed - ahead.speed) <= 0:
        return False
    left = ahead.gap_m - STANDING_GAP_M
    return left <= 0 or closing * closing / (2.0 * left) > EMERGENCY


def room(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Return whether a lane has room for our vehicle: no other vehicle is next to us or will be soon."""
    if emergency(speed, ahead):
        return False
    if ahead is not None and ahead.gap_m < ROOM_M + ROOM_AHEAD_S * max(speed - ahead.speed, 0.0):
        return False
    return behind is None or behind.gap_m >= ROOM_M + ROOM_BEHIND_S * max(behind.speed - speed, 0.0)


def beside(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Return whether a vehicle in the other lane is next to us or will be soon."""
    if ahead is not None and ahead.gap_m <= 0.0:
        return True
    return behind is not None and behind.gap_m <= SOON_S * max(behind.speed - speed, 0.0)


def slowing_m(speed: float, corner: float) -> float:
    """Return how many metres before a corner braking must start, or 0 if the corner can be taken faster."""
    if speed <= corner:
        return 0.0
    return (speed * speed - corner * corner) / (2.0 * COMFORT_DOWN) + REACT_S * speed + MARGIN_M


def _acceleration_towards(target: float, speed: float) -> float:
    return max(-COMFORT_DOWN, min(COMFORT_UP, 0.8 * (target - speed)))
