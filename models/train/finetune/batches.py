"""The order in which an epoch's rows are drawn, so that a batch holds rows of the same tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler


class SameToolsSampler(Sampler[int]):
    """Each row once an epoch, in an order of its own: cut into batches of `size`, as many of them as there can be hold
    rows of one set of tools; what is left of the sets stands in batches together, rows of a set next to each other.

    `sets`: of each row the number of its set. The order follows from `seed` and `epoch` alone, so that a run that goes
    on, and every process of a run, draws the same; whoever draws sets `epoch` before.
    """

    def __init__(self, sets: Sequence[int], size: int, seed: int) -> None:
        self._sets, self._size, self._seed = sets, size, seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._sets)

    def __iter__(self) -> Iterator[int]:
        drawn = torch.Generator()
        drawn.manual_seed((self._seed << 20) + self.epoch)
        by_set: dict[int, list[int]] = {}  # in the shuffled order of their first rows
        for row in torch.randperm(len(self), generator=drawn).tolist():
            by_set.setdefault(self._sets[row], []).append(row)
        batches: list[list[int]] = []
        left: list[int] = []
        for rows in by_set.values():
            whole = len(rows) // self._size * self._size
            batches += (rows[i : i + self._size] for i in range(0, whole, self._size))
            left += rows[whole:]
        batches += (left[i : i + self._size] for i in range(0, len(left), self._size))
        # The one that is not full stays the last: all others are cut where they end.
        last = [batches.pop()] if batches and len(batches[-1]) < self._size else []
        for k in torch.randperm(len(batches), generator=drawn).tolist():
            yield from batches[k]
        for batch in last:
            yield from batch
