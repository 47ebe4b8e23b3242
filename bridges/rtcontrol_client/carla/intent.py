"""The driver's intent (set by calls of the agent `driver`), the acceleration for an intent, and the emergency brake.

All values are in SI units. The bridge and the training simulation (`envs/road/world.py`) share this module, so that a
call has the same meaning in both. Every call may be repeated in each tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Mode = Literal["speed", "follow", "brake", "stop"]
Turn = Literal["straight", "left", "right"]
TURNS: tuple[Turn, ...] = ("straight", "left", "right")
LEFT, RIGHT = -1, 1
# A lane change, which takes about 3 s, may not start nearer than this to a junction.
NO_CHANGE_M = 20.0
# The minimum speed for a lane change.
MIN_CHANGE_KMH = 5.0


@dataclass(frozen=True, slots=True)
class CallContext:
    """The part of the vehicle's state on which the effect of calls depends. Lane 1 is the leftmost, `shift` is the
    active lane change (-1, 0, 1), `junction_m` the distance to the next junction (0: inside, None: out of sight)."""

    speed_kmh: float
    lane: int
    lanes: int
    shift: int
    junction_m: float | None


@dataclass(slots=True)
class Intent:
    """The driver's intent: how to choose the speed, the turn at the next junction, and a requested lane change.

    `requested_change` is -1 (left) or 1 (right) from a call `change_lane` until `pop_requested_change`.
    """

    mode: Mode = "stop"
    kmh: float = 0.0
    gap_m: float = 0.0
    level: float = 0.0
    turn: Turn = "straight"
    requested_change: int = 0

    def obey(self, name: str, arguments: Mapping[str, Any], place: CallContext) -> str | None:
        """Apply a call to the intent. Return the reason if it is refused, else None. Raises KeyError or ValueError for
        unknown calls."""
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
                if place.junction_m != 0:  # inside a junction, the turn can no longer change
                    self.turn = arguments["at_next_junction"]
            case "change_lane":
                return self._request_change(arguments["direction"], place)
            case _:
                raise ValueError(f"not a driver's call: {name}")
        return None

    def pop_requested_change(self) -> int:
        """Return and clear the requested lane change: -1 (left), 1 (right), or 0 for none."""
        requested_change, self.requested_change = self.requested_change, 0
        return requested_change

    def passed_junction(self) -> None:
        """Clear the chosen turn after a junction, so that the next junction is crossed straight on."""
        self.turn = "straight"

    def _request_change(self, direction: str, place: CallContext) -> str | None:
        if direction not in ("left", "right"):
            raise ValueError(f"change_lane: direction={direction!r}")
        side = LEFT if direction == "left" else RIGHT
        if place.shift:
            return None  # during a lane change, another `change_lane` has no effect
        if not 1 <= place.lane + side <= place.lanes:
            return f"there is no lane to the {direction}"
        if place.junction_m is not None and place.junction_m < NO_CHANGE_M:
            return "too close to a junction"
        if place.speed_kmh < MIN_CHANGE_KMH:
            return "too slow to change lane"
        self.requested_change = side
        return None


COMFORT_UP, COMFORT_DOWN = 2.0, 3.0
FOLLOW_DOWN = 6.0
FULL_BRAKE = 8.0
# The emergency brake acts when a deceleration of more than this is necessary (m/s2).
EMERGENCY = 5.0
STANDING_GAP_M = 1.5
# A lane change needs a gap of ROOM_M plus the distance of ROOM_AHEAD_S (ahead) or ROOM_BEHIND_S (at the rear).
ROOM_M, ROOM_AHEAD_S, ROOM_BEHIND_S = 1.0, 1.0, 2.0
# A turn is too late if, after this reaction time and with this margin, comfortable braking no longer suffices for it.
REACT_S, MARGIN_M = 0.5, 2.0
# A vehicle in the target lane that would reach this car from behind within this time counts as next to it.
SOON_S = 0.8
KMH = 3.6


class NearVehicle(NamedTuple):
    """The nearest vehicle ahead or behind in a lane. `gap_m` is the distance between bumpers (0: next to us), `speed`
    the vehicle's speed in m/s."""

    gap_m: float
    speed: float


def target_acceleration(intent: Intent, speed: float, limit: float, ahead: NearVehicle | None) -> float:
    """Return the acceleration (m/s2) for the intent at this speed (m/s).

    `limit` (m/s) is the target speed of `follow` without a vehicle ahead; `set_speed` ignores it.
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


def needs_emergency_brake(speed: float, ahead: NearVehicle | None) -> bool:
    """Return whether only hard braking can avoid a collision with the vehicle ahead; applies to every call."""
    if ahead is None or speed <= 0 or (closing := speed - ahead.speed) <= 0:
        return False
    left = ahead.gap_m - STANDING_GAP_M
    return left <= 0 or closing * closing / (2.0 * left) > EMERGENCY


def has_room(speed: float, ahead: NearVehicle | None, behind: NearVehicle | None) -> bool:
    """Return whether the gaps in a lane are large enough for our vehicle to change into it."""
    if needs_emergency_brake(speed, ahead):
        return False
    if ahead is not None and ahead.gap_m < ROOM_M + ROOM_AHEAD_S * max(speed - ahead.speed, 0.0):
        return False
    return behind is None or behind.gap_m >= ROOM_M + ROOM_BEHIND_S * max(behind.speed - speed, 0.0)


def is_occupied(speed: float, ahead: NearVehicle | None, behind: NearVehicle | None) -> bool:
    """Return whether a vehicle in the target lane is next to us, or will be within SOON_S."""
    if ahead is not None and ahead.gap_m <= 0.0:
        return True
    return behind is not None and behind.gap_m <= SOON_S * max(behind.speed - speed, 0.0)


def slowing_distance_m(speed: float, corner: float) -> float:
    """Return how many metres before a corner braking must start to reach its speed `corner`; 0 if not necessary."""
    if speed <= corner:
        return 0.0
    return (speed * speed - corner * corner) / (2.0 * COMFORT_DOWN) + REACT_S * speed + MARGIN_M


def _acceleration_towards(target: float, speed: float) -> float:
    return max(-COMFORT_DOWN, min(COMFORT_UP, 0.8 * (target - speed)))
