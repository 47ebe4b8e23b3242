"""Where rows come from: whatever yields them for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from rtcontrol.models.train.rows import Row


class RowStream(Protocol):
    """Rows without end. A world's go on as the world does: they are asked for once a run, not once a chunk."""

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Rows for ever."""


class GivenRows:
    """The same rows again and again, each time in another order."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Epoch after epoch."""
        while True:
            epoch = list(self._rows)
            rng.shuffle(epoch)
            yield from epoch
