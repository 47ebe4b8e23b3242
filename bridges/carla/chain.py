"""The way ahead: strands one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from rtcontrol.bridges.carla.intent import Turn
from rtcontrol.bridges.carla.strand import BEND_STEP_M, Strand, Way

# Speeds of bends that differ by less than this share are one bend.
ALIKE = 0.05


class Chain:
    """Strands one after the other: the way ahead from the start of the first, about 160 m beyond its end.

    `turn` was asked for at the first junction entered, `taken` is what the lane allows there (None: no junction comes),
    `junction_at` is the distance of its entry from the start. `ends` says that the road ends where the chain does.
    """

    __slots__ = ("_bend_at", "_bend_speed", "ends", "junction_at", "length", "offsets", "strands", "taken", "turn")

    def __init__(self, strands: list[Strand], turn: Turn, taken: Way | None, junction_at: float | None) -> None:
        self.strands, self.turn, self.taken, self.junction_at = strands, turn, taken, junction_at
        self.offsets = [0.0]
        for strand in strands:
            self.offsets.append(self.offsets[-1] + strand.length)
        self.length = self.offsets.pop()
        self.ends = not strands[-1].after
        self._find_bends()

    @property
    def fell_back(self) -> bool:
        """Whether the lane does not allow the turn that was asked for."""
        return self.taken is not None and self.taken != self.turn

    def at(self, s: float) -> tuple[float, float, float, float]:
        """Point and unit tangent at a distance from the start: x, y, tx, ty."""
        i = max(bisect_right(self.offsets, s) - 1, 0)
        return self.strands[i].at(s - self.offsets[i])

    def bends(self, s: float, reach: float) -> Iterator[tuple[float, float]]:
        """(metres ahead of s, the speed in m/s that the way allows from there on) within reach."""
        i = max(bisect_right(self._bend_at, s) - 1, 0)
        yield 0.0, self._bend_speed[i]
        for n in range(i + 1, len(self._bend_at)):
            ahead = self._bend_at[n] - s
            if ahead > reach:
                return
            yield ahead, self._bend_speed[n]

    def _find_bends(self) -> None:
        """Stretches of about the same bend."""
        self._bend_at, self._bend_speed = [0.0], [self.strands[0].bends[0]]
        for offset, strand in zip(self.offsets, self.strands, strict=True):
            for n, speed in enumerate(strand.bends):
                last = self._bend_speed[-1]
                if abs(speed - last) < ALIKE * last:
                    self._bend_speed[-1] = min(speed, last)
                else:
                    self._bend_at.append(offset + n * BEND_STEP_M)
                    self._bend_speed.append(speed)
