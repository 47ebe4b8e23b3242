"""Which releases were missed, as ranges: a run's bad hours cost no more memory than its good ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class MissRuns:
    """Indices of missed releases. They come nearly in order: each `add` is at, or a little before, the end."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []  # each one past the last

    def add(self, begin: int, end: int | None = None) -> None:
        """Those from `begin` up to `end` (without it; `begin` alone by default). ValueError when one is there."""
        end = begin + 1 if end is None else end
        i = bisect_right(self._begins, begin)
        if (i and self._ends[i - 1] > begin) or (i < len(self._begins) and self._begins[i] < end):
            raise ValueError(f"release {begin} was missed already")
        joins_left, joins_right = i > 0 and self._ends[i - 1] == begin, i < len(self._begins) and self._begins[i] == end
        if joins_left and joins_right:
            self._ends[i - 1] = self._ends.pop(i)
            del self._begins[i]
        elif joins_left:
            self._ends[i - 1] = end
        elif joins_right:
            self._begins[i] = begin
        else:
            self._begins.insert(i, begin)
            self._ends.insert(i, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    @property
    def longest(self) -> int:
        """Of the runs of misses."""
        return max((end - begin for begin, end in self), default=0)

    def worst(self, k: int) -> int:
        """Most misses among any `k` releases in a row: (m,k)."""
        most, first, held = 0, 0, 0
        begins, ends = self._begins, self._ends
        for i, end in enumerate(ends):
            # The best window that ends with a run's end reaches into the runs before it.
            held += end - begins[i]
            while ends[first] <= end - k:
                held -= ends[first] - begins[first]
                first += 1
            most = max(most, held - max(0, end - k - begins[first]))
        return min(most, k)
