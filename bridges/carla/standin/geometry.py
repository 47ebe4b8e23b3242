"""Curves made of lines and arcs, on which roads and lanes run, and rectangles on the ground that may touch: metres,
radians, x to the east and y to the north."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
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

    def project(self, x: float, y: float) -> tuple[float, float] | None:
        """How far along and how far to the left a point lies; None: before its start or beyond its end."""
        across, along = math.sin(self.heading), math.cos(self.heading)
        if self.curvature == 0.0:
            s = (x - self.x) * along + (y - self.y) * across
            return (s, (y - self.y) * along - (x - self.x) * across) if 0.0 <= s <= self.length else None
        radius = 1.0 / self.curvature
        east, north = x - (self.x - radius * across), y - (self.y + radius * along)
        # From the centre the curve's start lies at the heading less a quarter turn (an arc to the left) or plus one.
        side = math.copysign(1.0, radius)
        turned = side * (math.atan2(north, east) - self.heading) + math.pi / 2
        s = turned % (2 * math.pi) * abs(radius)
        return (s, side * (abs(radius) - math.hypot(east, north))) if s <= self.length else None

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

    def project(self, x: float, y: float) -> tuple[float, float] | None:
        """Of the piece that the point is nearest to; None: beside none."""
        nearest = None
        for start, piece in zip(self.starts, self.pieces, strict=True):
            found = piece.project(x, y)
            if found and (nearest is None or abs(found[1]) < abs(nearest[1])):
                nearest = start + found[0], found[1]
        return nearest

    def shifted(self, left: float) -> Curve:
        return Curve(piece.shifted(left) for piece in self.pieces)

    def reversed(self) -> Curve:
        return Curve(piece.reversed() for piece in reversed(self.pieces))


def line(start: Pose, length: float) -> Piece:
    return Piece(*start, length)


def arc(start: Pose, radius: float, turn: float) -> Piece:
    """An arc of a radius that turns by an angle (positive: to the left)."""
    return Piece(*start, radius * abs(turn), math.copysign(1.0 / radius, turn))


class Box(NamedTuple):
    """A rectangle: its middle, its heading and half its length and width."""

    x: float
    y: float
    heading: float
    half_length: float
    half_width: float


def overlap(one: Box, other: Box) -> bool:
    """Whether two rectangles touch (separating axes)."""
    reach = one.half_length + one.half_width + other.half_length + other.half_width
    dx, dy = other.x - one.x, other.y - one.y
    if abs(dx) > reach or abs(dy) > reach:
        return False
    for first, second in ((one, other), (other, one)):
        cos, sin = math.cos(first.heading), math.sin(first.heading)
        turned = second.heading - first.heading
        along, across = abs(math.cos(turned)), abs(math.sin(turned))
        if abs(dx * cos + dy * sin) > first.half_length + second.half_length * along + second.half_width * across:
            return False
        if abs(dy * cos - dx * sin) > first.half_width + second.half_length * across + second.half_width * along:
            return False
    return True


class Contacts:
    """Pairs of vehicles in touch; a collision is counted once, as a pair begins to touch."""

    def __init__(self) -> None:
        self.touching: set[tuple[int, int]] = set()

    def update(self, boxes: dict[int, Box]) -> list[tuple[int, int]]:
        """The pairs that have begun to touch since the last call."""
        numbers = sorted(boxes)
        pairs = ((one, other) for i, one in enumerate(numbers) for other in numbers[i + 1 :])
        touching = {pair for pair in pairs if overlap(boxes[pair[0]], boxes[pair[1]])}
        begun = sorted(touching - self.touching)
        self.touching = touching
        return begun
