"""Where rows come from: whatever yields them for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from rtcontrol.fitting.sizing import WORD
from rtcontrol.models.train.probes import with_word_probes
from rtcontrol.models.train.rows import Row

NAMING = 0.2  # of the rows


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


class Probed:
    """Rows that also ask for words of what is seen: so a model learns to find what an instruction names."""

    def __init__(self, stream: RowStream) -> None:
        self._stream = stream

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Each with probes of its own."""
        return with_word_probes(self._stream.rows(rng), rng)


def name_things(rows: Sequence[Row]) -> bool:
    """Whether instructions name what is seen: a word of theirs, now this and now that, stands in the observation."""
    told: Counter[str] = Counter(word for row in rows for word in dict.fromkeys(WORD.findall(row.instruction)))
    # A word that every instruction has, as `the`, tells them not apart.
    apart = {word for word, count in told.items() if count < 0.9 * len(rows)}
    naming = [apart & set(WORD.findall(row.instruction)) & set(WORD.findall(row.observation)) for row in rows]
    return sum(map(bool, naming)) >= NAMING * len(rows) and len(set().union(*naming)) > 1
