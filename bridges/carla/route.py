"""The way ahead: lanes one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rtcontrol.bridges.carla.intent import Turn
from rtcontrol.bridges.carla.lane_line import BEND_STEP_M, Key, LaneLine, Way

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
