"""What a driver can be asked to do, and the plain rule that reads it off an instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["drive", "speed", "lane", "follow", "turn", "overtake", "stop"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SPEEDS = (20, 30, 40, 50, 60, 70, 80, 90)
GAPS = (5, 10, 15, 20, 30, 40, 50)
DEFAULT_GAP = 20
LANES = ("left", "middle", "right")
TURNS = ("left", "right", "straight")
# fmt: off
VALUES: dict[Kind, tuple[int | str, ...]] = {"speed": SPEEDS, "lane": LANES, "follow": GAPS, "turn": TURNS}
_OVERTAKE = re.compile(r"\b(overtak\w*|pass(ing)?|get past|go past)\b")
_FOLLOW = re.compile(r"\b(follow\w*|behind|distance|gap|tail)\b")
_JUNCTION = re.compile(r"\b(turn\w*|junctions?|crossings?|crossroads?|intersections?|corner|bend off|way)\b")
_LANE = re.compile(r"\blanes?\b|\bside of the road\b|\bkeep (to the )?(far )?(left|right)\b")
_STOP = re.compile(r"\b(stop|stopping|halt|standstill|stand still|park|brake)\b")
_DRIVE = re.compile(r"\b(limit|drive on|go on|carry on|keep going|normal\w*|as usual|ordinary)\b")
_SPEED = re.compile(r"\b(drive|go|do|speed|km|kmh|kilometres|hour|fast|pace|slow)\b")
_NUMBER = re.compile(r"\d+")
_SIDE = {"left": "left", "leftmost": "left", "inner": "left", "right": "right", "rightmost": "right",
         "outer": "right", "middle": "middle", "centre": "middle", "center": "middle",
         "straight": "straight", "ahead": "straight"}
_WORD = re.compile(r"[a-z0-9']+")
# fmt: on


@dataclass(frozen=True, slots=True)
class Goal:
    """One task for the driver.

    drive: at the limit, with the traffic. speed: at `value` km/h, with the traffic. lane: in the `value` lane (left,
    middle, right). follow: the car ahead at `value` metres. turn: `value` at junctions. overtake: what is slower, on
    the left. stop: halt. Lights hold for all of them.
    """

    kind: Kind
    value: int | str | None = None

    def __post_init__(self) -> None:
        allowed = VALUES.get(self.kind, (None,))
        assert self.value in allowed, f"Goal({self.kind!r}, {self.value!r}): one of {allowed}"

    def text(self) -> str:
        """The canonical instruction, the one `recognise` and the training data share."""
        match self.kind:
            case "drive":
                return "drive on at the speed limit"
            case "speed":
                return f"drive at {self.value}"
            case "lane":
                return f"keep in the {self.value} lane"
            case "follow":
                return f"follow the car ahead at {self.value} metres"
            case "turn":
                way = "go straight on" if self.value == "straight" else f"turn {self.value}"
                return f"{way} at the next junction"
            case "overtake":
                return "overtake slow cars"
            case "stop":
                return "stop the car"


def recognise(text: str) -> Goal | None:
    """The goal that an instruction plainly names, or None: a rule for the judge, never a way to control.

    In this order: overtaking, following, a way at a junction, a lane, a halt, the limit, a number as a speed.
    """
    plain = " ".join(_WORD.findall(text.lower()))
    number = next((int(found) for found in _NUMBER.findall(plain)), None)
    sides = {_SIDE[word] for word in plain.split() if word in _SIDE}
    if _OVERTAKE.search(plain):
        return Goal("overtake")
    if _FOLLOW.search(plain):
        return Goal("follow", DEFAULT_GAP if number is None else min(GAPS, key=lambda gap: abs(gap - number)))
    if _LANE.search(plain):
        side = sides - {"straight"}
        return Goal("lane", side.pop()) if len(side) == 1 else None
    if _JUNCTION.search(plain) and (ways := sides - {"middle"}):
        return Goal("turn", ways.pop()) if len(ways) == 1 else None
    if _STOP.search(plain):
        return Goal("stop")
    if number is not None and _SPEED.search(plain):
        return Goal("speed", min(SPEEDS, key=lambda speed: abs(speed - number)))
    return Goal("drive") if _DRIVE.search(plain) else None
