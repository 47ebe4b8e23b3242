"""The way ahead: lanes one after the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from rtcontrol_client.carla.intent import Turn

Way = Literal["straight", "left", "right"]
Key = tuple[int, int, int]  # road, lane section, lane as in OpenDRIVE
STEP_M = 1.0
# Lateral acceleration at which a bend is still taken, and the distance at which bends are looked up.
BEND = 4.2
BEND_STEP_M = 4.0
NO_BEND = 99.0
STRAIGHT_WITHIN = math.radians(40.0)


class LaneLine:
    """A lane from where it begins to where it ends or its road does.

    `index` counts from the left, 1 the leftmost, of `count`; `after` and `before` are the lanes that it leads to and
    comes from; `left` and `right` those beside it in the same direction; `way` is how a lane inside a junction turns.
    """

    def __init__(self, key: Key, points: Sequence[tuple[float, float]], width: float, junction: bool) -> None:
        """`points`: at least two different ones, dense enough for straight lines between them."""
        self.key, self.width, self.junction = key, width, junction
        self.xs, self.ys, self.step, self.length = _evenly(points)
        self.last = len(self.xs) - 2
        self.tangents = [self._tangent(i) for i in range(self.last + 1)]
        self.bends = self._bends()
        self.box = (min(self.xs) - width, min(self.ys) - width, max(self.xs) + width, max(self.ys) + width)
        self.index = self.count = 1
        self.after: list[LaneLine] = []
        self.before: list[LaneLine] = []
        self.left: LaneLine | None = None
        self.right: LaneLine | None = None
        self.way: Way = "straight"

    def at(self, s: float) -> tuple[float, float, float, float]:
        """The point at a distance from the start and the unit tangent there: x, y, tx, ty. Goes on beyond the ends."""
        i = min(max(int(s / self.step), 0), self.last)
        tx, ty = self.tangents[i]
        more = s - i * self.step
        return self.xs[i] + more * tx, self.ys[i] + more * ty, tx, ty

    def project(self, x: float, y: float, hint: float) -> tuple[float, float]:
        """Distance from the start and offset to the right of the nearest point, searched from a hint on.

        Below 0 or above `length`: before the start, beyond the end.
        """
        step, last = self.step, self.last
        i = min(max(int(hint / step), 0), last)
        tx = ty = dx = dy = along = 0.0
        for _ in range(12):
            tx, ty = self.tangents[i]
            dx, dy = x - self.xs[i], y - self.ys[i]
            along = dx * tx + dy * ty
            if 0.0 <= along <= step:
                break
            nearer = min(max(i + math.floor(along / step), 0), last)
            if nearer == i:
                break
            i = nearer
        return i * step + along, dy * tx - dx * ty

    def search(self, x: float, y: float) -> tuple[float, float]:
        """As `project`, without a hint."""
        stride = max(1, int(8.0 / self.step))
        xs, ys = self.xs, self.ys
        best = min(range(0, self.last + 2, stride), key=lambda i: (xs[i] - x) ** 2 + (ys[i] - y) ** 2)
        return self.project(x, y, best * self.step)

    def near(self, x: float, y: float) -> bool:
        """Whether a place may be on the lane: it is in the rectangle around it."""
        left, top, right, bottom = self.box
        return left <= x <= right and top <= y <= bottom

    def bend(self, s: float) -> float:
        """The speed (m/s) at which the bend at this place is still taken."""
        return self.bends[min(max(int(s / BEND_STEP_M), 0), len(self.bends) - 1)]

    def turned(self) -> float:
        """By how much the direction at the end is to the right of that at the start, radians."""
        return between(self.tangents[0], self.tangents[-1])

    def _tangent(self, i: int) -> tuple[float, float]:
        dx, dy = self.xs[i + 1] - self.xs[i], self.ys[i + 1] - self.ys[i]
        length = math.hypot(dx, dy) or 1.0
        return dx / length, dy / length

    def _bends(self) -> list[float]:
        every = max(1, round(BEND_STEP_M / self.step))
        found = []
        for n in range(int(self.length / BEND_STEP_M) + 1):
            i = min(int(n * BEND_STEP_M / self.step), self.last)
            j = min(i + every, self.last)
            turned = abs(between(self.tangents[i], self.tangents[j]))
            curvature = turned / ((j - i) * self.step) if j > i else 0.0
            found.append(min(NO_BEND, math.sqrt(BEND / curvature)) if curvature > 1e-6 else NO_BEND)
        # What is left after the last whole step bends like the piece before it.
        if len(found) > 1:
            found[-1] = min(found[-1], found[-2])
        return found


def between(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The angle from one direction to another, radians, positive to the right."""
    return math.atan2(
        first[0] * second[1] - first[1] * second[0],
        first[0] * second[0] + first[1] * second[1],
    )


def way_of(angle: float) -> Way:
    if abs(angle) < STRAIGHT_WITHIN:
        return "straight"
    return "right" if angle > 0 else "left"


def _evenly(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float], float, float]:
    """The same line with points at equal distances of about `STEP_M`: xs, ys, the distance, the length."""
    reached = [0.0]
    for (x, y), (next_x, next_y) in pairwise(points):
        reached.append(reached[-1] + math.hypot(next_x - x, next_y - y))
    length = reached[-1]
    if not length > 0:
        raise ValueError("a lane needs two different points")
    pieces = max(1, round(length / STEP_M))
    step = length / pieces
    xs, ys, at = [], [], 0
    for n in range(pieces + 1):
        s = n * step
        while at < len(points) - 2 and reached[at + 1] <= s:
            at += 1
        piece = reached[at + 1] - reached[at]
        share = min((s - reached[at]) / piece, 1.0) if piece > 0 else 0.0
        xs.append(points[at][0] + share * (points[at + 1][0] - points[at][0]))
        ys.append(points[at][1] + share * (points[at + 1][1] - points[at][1]))
    return xs, ys, step, length


# Speeds of bends that differ by less than this share are one bend.
ALIKE = 0.05
# Lights whose lines are nearer to each other hold for one line.
SAME_LINE_M = 10.0
NONE_LIT: Mapping[Key, Mapping[int, float]] = MappingProxyType({})


class Route:
    """Lanes one after the other: the way ahead from the start of the first, about 160 m beyond its end.

    `turn` was asked for at the first junction entered, `taken` is what the lane allows there (None: no junction comes),
    `junction_at` is the distance of its entry from the start. `stop_lines` are the distances of stop lines up to there,
    with the numbers of the lights that hold for each, in order. `ends` says that the road ends where the route does.
    """

    def __init__(
        self,
        lanes: list[LaneLine],
        turn: Turn,
        taken: Way | None,
        junction_at: float | None,
        lines: Mapping[Key, Mapping[int, float]] = NONE_LIT,
    ) -> None:
        """`lines`: of each lane, the place of the stop line of each light that holds for it."""
        self.lanes, self.turn, self.taken, self.junction_at = lanes, turn, taken, junction_at
        self.offsets = [0.0]
        for lane in lanes:
            self.offsets.append(self.offsets[-1] + lane.length)
        self.length = self.offsets.pop()
        self.ends = not lanes[-1].after
        self.stop_lines: list[tuple[float, tuple[int, ...]]] = []
        self._find_lines(lines)
        self._find_bends()

    def at(self, s: float) -> tuple[float, float, float, float]:
        """Point and unit tangent at a distance from the start: x, y, tx, ty."""
        i = max(bisect_right(self.offsets, s) - 1, 0)
        return self.lanes[i].at(s - self.offsets[i])

    def bends(self, s: float, reach: float) -> Iterator[tuple[float, float]]:
        """(metres ahead of s, the speed in m/s that the way allows from there on) within reach."""
        i = max(bisect_right(self._bend_at, s) - 1, 0)
        yield 0.0, self._bend_speed[i]
        for n in range(i + 1, len(self._bend_at)):
            ahead = self._bend_at[n] - s
            if ahead > reach:
                return
            yield ahead, self._bend_speed[n]

    def line_ahead(self, s: float) -> tuple[float, tuple[int, ...]] | None:
        """The first stop line beyond s, and its lights; None: there is none up to the junction."""
        return next((line for line in self.stop_lines if line[0] > s), None)

    def _find_lines(self, lines: Mapping[Key, Mapping[int, float]]) -> None:
        """The stop lines up to the first junction. Where lanes over it have lights of their own, each way has its
        own: an arrow's light holds for its turn alone."""
        found: dict[int, float] = {}
        for offset, lane in zip(self.offsets, self.lanes, strict=True):
            here = lines.get(lane.key, {})
            if lane.junction:
                if here and offset:
                    found = {number: min(offset, found.get(number, offset)) for number in here}
                break
            for number, s in here.items():
                found.setdefault(number, offset + s)
        while found:
            first = min(found.values())
            self.stop_lines.append((first, tuple(n for n, at in found.items() if at < first + SAME_LINE_M)))
            found = {n: at for n, at in found.items() if at >= first + SAME_LINE_M}

    def _find_bends(self) -> None:
        """Stretches of about the same bend."""
        self._bend_at, self._bend_speed = [0.0], [self.lanes[0].bends[0]]
        for offset, lane in zip(self.offsets, self.lanes, strict=True):
            for n, speed in enumerate(lane.bends):
                last = self._bend_speed[-1]
                if abs(speed - last) < ALIKE * last:
                    self._bend_speed[-1] = min(speed, last)
                else:
                    self._bend_at.append(offset + n * BEND_STEP_M)
                    self._bend_speed.append(speed)
