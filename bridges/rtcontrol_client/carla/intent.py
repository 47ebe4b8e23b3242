"""The driver's intent: the calls of the agent `driver` as a state, the acceleration that it wants, and the emergency
brake.

Pure functions in SI units, shared by the bridge and the training simulation (`envs/road/world.py`), so that a call has
the same meaning in both. Every call may be repeated at each tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Mode = Literal["speed", "follow", "brake", "stop"]
Turn = Literal["straight", "left", "right"]
TURNS: tuple[Turn, ...] = ("straight", "left", "right")
LEFT, RIGHT = -1, 1
# Closer to a junction's entry no change of lane is started: one takes about 3 s.
NO_CHANGE_M = 20.0
# Slower than this a lane change would be a sidestep.
MIN_CHANGE_KMH = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """The vehicle's place, as far as calls depend on it: lanes count from the left, 1 is the leftmost; `junction_m` to
    the next junction's entry, 0 inside one, None where none is near."""

    speed_kmh: float
    lane: int
    lanes: int
    shift: int
    junction_m: float | None


@dataclass(slots=True)
class Intent:
    """The longitudinal mode with its value, the chosen turn at the next junction, and a wish to change lane.

    `wish` is -1 (left) or 1 (right) from an accepted `change_lane` until `take_wish`.
    """

    mode: Mode = "stop"
    kmh: float = 0.0
    gap_m: float = 0.0
    level: float = 0.0
    turn: Turn = "straight"
    wish: int = 0

    def obey(self, name: str, arguments: Mapping[str, Any], place: Place) -> str | None:
        """Execute a call; return why it is refused, or None. Raises KeyError, ValueError for an unknown call."""
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
                if place.junction_m != 0:  # inside one the way is chosen already
                    self.turn = arguments["at_next_junction"]
            case "change_lane":
                return self._change(arguments["direction"], place)
            case _:
                raise ValueError(f"no call of a driver: {name}")
        return None

    def take_wish(self) -> int:
        """Return the accepted change of lane, once: -1, 1, or 0 for none."""
        wish, self.wish = self.wish, 0
        return wish

    def passed_junction(self) -> None:
        """Clear the choice of a turn after its junction."""
        self.turn = "straight"

    def _change(self, direction: str, place: Place) -> str | None:
        if direction not in ("left", "right"):
            raise ValueError(f"change_lane: direction={direction!r}")
        side = LEFT if direction == "left" else RIGHT
        if place.shift:
            return None  # one is under way: repeating the call changes nothing, and the contrary waits for its end
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
# The emergency brake acts when less than this would no longer do.
EMERGENCY = 5.0
STANDING_GAP_M = 1.5
# A change of lane needs so much room next to us, and so many seconds until we or the vehicle behind would be there.
ROOM_M, ROOM_AHEAD_S, ROOM_BEHIND_S = 1.0, 1.0, 2.0
# A turn is requested in time if the corner's speed is reached by comfortable braking, after so long and so far.
REACT_S, MARGIN_M = 0.5, 2.0
# A vehicle that comes from behind in the other lane, and would be there within this, is next to us already.
SOON_S = 0.8
KMH = 3.6


class Near(NamedTuple):
    """The next vehicle in one direction of a lane: bumper to bumper, m, 0 next to us; its speed along the lane, m/s."""

    gap_m: float
    speed: float


def wanted(intent: Intent, speed: float, limit: float, ahead: Near | None) -> float:
    """Return the acceleration (m/s2) of the intent at this speed (m/s).

    `limit` (m/s) is the speed of `follow` without a vehicle ahead; `set_speed` keeps its speed, also after a vehicle.
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
    """Return whether only hard braking avoids the vehicle ahead: the last safety net, whatever the call."""
    if ahead is None or speed <= 0 or (closing := speed - ahead.speed) <= 0:
        return False
    left = ahead.gap_m - STANDING_GAP_M
    return left <= 0 or closing * closing / (2.0 * left) > EMERGENCY


def room(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Return whether there is room for us in a lane: no vehicle is next to us, or soon would be."""
    if emergency(speed, ahead):
        return False
    if ahead is not None and ahead.gap_m < ROOM_M + ROOM_AHEAD_S * max(speed - ahead.speed, 0.0):
        return False
    return behind is None or behind.gap_m >= ROOM_M + ROOM_BEHIND_S * max(behind.speed - speed, 0.0)


def beside(speed: float, ahead: Near | None, behind: Near | None) -> bool:
    """Return whether a vehicle in a lane is next to us, or soon will be."""
    if ahead is not None and ahead.gap_m <= 0.0:
        return True
    return behind is not None and behind.gap_m <= SOON_S * max(behind.speed - speed, 0.0)


def slowing_m(speed: float, corner: float) -> float:
    """Return from how many metres before a corner braking must start to reach its speed; 0 for a corner that is not
    slower."""
    if speed <= corner:
        return 0.0
    return (speed * speed - corner * corner) / (2.0 * COMFORT_DOWN) + REACT_S * speed + MARGIN_M


def _towards(target: float, speed: float) -> float:
    return max(-COMFORT_DOWN, min(COMFORT_UP, 0.8 * (target - speed)))
