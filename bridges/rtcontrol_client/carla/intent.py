"""What a driver has been told to do: the calls of the agent `driver`, as a state that calls change.

Pure: the bridge and the simulation that the model is trained on (`envs/road/world.py`) share it, so that a call means
the same in both. Every call may be repeated at each tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["speed", "follow", "brake", "stop"]
Turn = Literal["straight", "left", "right"]
TURNS: tuple[Turn, ...] = ("straight", "left", "right")
LEFT, RIGHT = -1, 1
# Closer to a junction's entry no lane change is begun: one takes about 3 s.
NO_CHANGE_M = 20.0
# Slower than this a lane change would be a sidestep.
MIN_CHANGE_KMH = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the vehicle is, as far as calls may be refused for it: lanes count from the left, 1 is the leftmost;
    `junction_m` to the next junction's entry, 0 inside one, None where none is near."""

    speed_kmh: float
    lane: int
    lanes: int
    shift: int
    junction_m: float | None


@dataclass(slots=True)
class Intent:
    """The longitudinal mode with its figure, the turn chosen for the next junction, and a wish to change lane.

    `wish` is -1 (left) or 1 (right) from an accepted `change_lane` until whoever steers has taken it (`take_wish`).
    """

    mode: Mode = "stop"
    kmh: float = 0.0
    gap_m: float = 0.0
    level: float = 0.0
    turn: Turn = "straight"
    wish: int = 0

    def obey(self, name: str, arguments: Mapping[str, Any], place: Place) -> str | None:
        """Take a call; gives why it is refused, or None. KeyError, ValueError: no call of this driver."""
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
        """The accepted lane change, once: -1, 1, or 0 for none."""
        wish, self.wish = self.wish, 0
        return wish

    def passed_junction(self) -> None:
        """The junction is behind: the choice for it is spent."""
        self.turn = "straight"

    def _change(self, direction: str, place: Place) -> str | None:
        if direction not in ("left", "right"):
            raise ValueError(f"change_lane: direction={direction!r}")
        side = LEFT if direction == "left" else RIGHT
        if place.shift:
            return None  # one is under way: repeating the call is no news, and the contrary waits for its end
        if not 1 <= place.lane + side <= place.lanes:
            return f"there is no lane to the {direction}"
        if place.junction_m is not None and place.junction_m < NO_CHANGE_M:
            return "too close to a junction"
        if place.speed_kmh < MIN_CHANGE_KMH:
            return "too slow to change lane"
        self.wish = side
        return None
