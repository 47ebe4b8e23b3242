"""The town's roads: curves of lines and arcs, where roads and lanes run, and which lanes meet where."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple


class Pose(NamedTuple):
    x: float
    y: float
    heading: float


@dataclass(frozen=True)
class Piece:
    """A line (curvature 0) or an arc (positive curvature: to the left)."""

    x: float
    y: float
    heading: float
    length: float
    curvature: float = 0.0

    def at(self, s: float) -> Pose:
        turn = self.curvature * s
        if self.curvature == 0.0:
            return Pose(self.x + s * math.cos(self.heading), self.y + s * math.sin(self.heading), self.heading)
        sides = (math.sin(self.heading + turn) - math.sin(self.heading)) / self.curvature
        ahead = (math.cos(self.heading) - math.cos(self.heading + turn)) / self.curvature
        return Pose(self.x + sides, self.y + ahead, self.heading + turn)

    def shifted(self, left: float) -> Piece:
        """The curve `left` metres to the left of this one, along it."""
        scale = 1.0 - self.curvature * left
        x, y = self.x - left * math.sin(self.heading), self.y + left * math.cos(self.heading)
        return Piece(x, y, self.heading, self.length * scale, self.curvature / scale)

    def reversed(self) -> Piece:
        end = self.at(self.length)
        return Piece(end.x, end.y, end.heading + math.pi, self.length, -self.curvature)


class Curve:
    """Pieces one after the other."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.starts = [0.0]
        for piece in self.pieces:
            self.starts.append(self.starts[-1] + piece.length)
        self.length = self.starts.pop()

    def locate(self, s: float) -> tuple[Piece, float]:
        index = max(bisect_right(self.starts, s) - 1, 0)
        return self.pieces[index], s - self.starts[index]

    def at(self, s: float) -> Pose:
        piece, within = self.locate(s)
        return piece.at(within)

    def shifted(self, left: float) -> Curve:
        return Curve(piece.shifted(left) for piece in self.pieces)

    def reversed(self) -> Curve:
        return Curve(piece.reversed() for piece in reversed(self.pieces))


def line(start: Pose, length: float) -> Piece:
    return Piece(*start, length)


def arc(start: Pose, radius: float, turn: float) -> Piece:
    """An arc of a radius that turns by an angle (positive: to the left)."""
    return Piece(*start, radius * abs(turn), math.copysign(1.0 / radius, turn))


# The town: one signalised junction of four arms and two loop roads, so that every choice leads back to the junction.
# The east and the north arm are the ends of one loop (line, arc of 270 degrees, line), the west and the south arm those
# of the other. Each direction has three lanes of 3.5 m; traffic keeps to the right. All three lanes go straight on; the
# leftmost also turns left into the leftmost, the rightmost right into the rightmost.


LANES = 3
WIDTH_M = 3.5
LOOP_RADIUS_M = 180.0
# From the junction's centre to the stop lines.
REACH_M = 24.0
LIMIT_KMH = 60.0
JUNCTION = 100

# An arm: its road, whether that begins at the junction, and the angle at which the arm lies. A loop is two roads, for
# CARLA's map takes the ends of a road that has both at one junction for each other.
ARMS = {"E": (1, True, 0.0), "N": (2, False, math.pi / 2), "W": (3, True, math.pi), "S": (4, False, -math.pi / 2)}
HALVES = {1: 2, 3: 4}
TURNS = {"straight": math.pi, "left": -math.pi / 2, "right": math.pi / 2}


@dataclass(frozen=True)
class Link:
    """Where a connecting road comes from and goes to; `lane` is the first of its lanes counted from the left."""

    arm: str
    turn: str
    to: str
    lane: int


@dataclass(frozen=True)
class Road:
    """A reference line with lanes on its right and, in a loop, as many on its left."""

    number: int
    curve: Curve
    lanes: int
    link: Link | None = None


def arm_at(angle: float) -> str:
    return min(ARMS, key=lambda name: abs(math.remainder(ARMS[name][2] - angle, 2 * math.pi)))


def loop(angle: float) -> tuple[Curve, Curve]:
    """The halves of the loop that leaves the junction at an angle and comes back by the arm to the left of it."""
    straight = LOOP_RADIUS_M - REACH_M
    out = line(Pose(REACH_M * math.cos(angle), REACH_M * math.sin(angle), angle), straight)
    away = arc(out.at(straight), LOOP_RADIUS_M, 0.75 * math.pi)
    back = arc(away.at(away.length), LOOP_RADIUS_M, 0.75 * math.pi)
    return Curve([out, away]), Curve([back, line(back.at(back.length), straight)])


def connection(arm: str, turn: str) -> tuple[Curve, Link]:
    """The reference line (left border of its leftmost lane) from an arm over the junction."""
    angle = ARMS[arm][2]
    link = Link(arm, turn, arm_at(angle + TURNS[turn]), LANES if turn == "right" else 1)
    left = -WIDTH_M * (link.lane - 1)
    heading = angle + math.pi
    x, y = REACH_M * math.cos(angle), REACH_M * math.sin(angle)
    start = Pose(x - left * math.sin(heading), y + left * math.cos(heading), heading)
    if turn == "straight":
        return Curve([line(start, 2 * REACH_M)]), link
    if turn == "left":
        return Curve([arc(start, REACH_M - left, math.pi / 2)]), link
    return Curve([arc(start, REACH_M + left, -math.pi / 2)]), link


@cache
def roads() -> dict[int, Road]:
    """All roads by number: the halves of the loops, then the connecting roads."""
    found: dict[int, Road] = {}
    for first, second in HALVES.items():
        angle = next(angle for road, _, angle in ARMS.values() if road == first)
        found |= {
            number: Road(number, curve, LANES) for number, curve in zip((first, second), loop(angle), strict=True)
        }
    for number, (arm, turn) in enumerate(((arm, turn) for arm in ARMS for turn in TURNS), start=JUNCTION + 1):
        curve, link = connection(arm, turn)
        found[number] = Road(number, curve, LANES if turn == "straight" else 1, link)
    return found


def incoming(arm: str, lane: int) -> tuple[int, int]:
    """Road and OpenDRIVE lane number of a lane (counted from the left) that enters the junction by an arm."""
    road, begins, _ = ARMS[arm]
    return road, lane if begins else -lane


def outgoing(arm: str, lane: int) -> tuple[int, int]:
    road, begins, _ = ARMS[arm]
    return road, -lane if begins else lane


def signal_number(arm: str) -> int:
    return 1 + list(ARMS).index(arm)


@cache
def lanes() -> dict[tuple[int, int], Curve]:
    """Return the centre lines, in the driving direction, of the lanes that lead to the junction or away from it, by the
    numbers of road and lane in OpenDRIVE."""
    found = {}
    for road in roads().values():
        for number in range(1, LANES + 1) if not road.link else ():
            right = WIDTH_M * (number - 0.5)
            found[road.number, -number] = road.curve.shifted(-right)
            found[road.number, number] = road.curve.shifted(right).reversed()
    return found
