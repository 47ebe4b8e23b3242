"""Rows that are kept apart, and how often the model is right in them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.fitting.material import Taught
from rtcontrol.fitting.sizing import Learner
from rtcontrol.models.call import Call
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.intervals import wilson
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row

SHARE = 0.1
MOST = 1_000
SAMPLE = 256  # of an evaluation on the way
Answer = Call | None | DecodeError


def split(rows: Sequence[Taught]) -> tuple[list[Taught], list[Taught]]:
    """(to learn from, to hold out): about a tenth of the different questions, whatever order they stand in. Rows that
    ask the same are on the same side, so what is held out was never seen. Raises UserError where all do."""
    order = sorted({one.question for one in rows}, key=lambda q: hashlib.sha256(repr(q).encode()).digest())
    if len(order) < 2:
        raise UserError(
            f"All {len(rows)} rows ask the same: there is nothing to tell apart, and nothing to hold out.",
            "Give rows that see or are told something else.",
        )
    held = set(order[: min(MOST, max(1, round(SHARE * len(order))))])
    sides: tuple[list[Taught], list[Taught]] = ([], [])
    for one in rows:
        sides[one.question in held].append(one)
    learnt, out = sides
    # The first of these are looked at while it trains: rows often stand by instruction, or by run.
    random.Random(0).shuffle(out)
    return learnt, out[:MOST]


@dataclass(frozen=True)
class Share:
    """So many of so many right."""

    right: int
    count: int

    @property
    def value(self) -> float:
        return self.right / max(self.count, 1)

    def told(self) -> str:
        """For people, with its Wilson interval at 95 %."""
        low, high = wilson(self.right, self.count)
        return f"{self.right} of {self.count} right ({self.value:.1%}, Wilson 95 % {low:.1%} to {high:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"right": self.right, "count": self.count, "wilson_95": [round(x, 4) for x in wilson(*self.pair)]}

    @property
    def pair(self) -> tuple[int, int]:
        return self.right, self.count


class HeldOut:
    """Asks the model in training."""

    def __init__(self, learner: Learner, rows: Sequence[Taught]) -> None:
        self.rows, self._plan = rows, learner.encoder.plan
        self.decide = TreeDecider(learner.model, learner.encoder)

    def answers(self, rows: Iterable[Row]) -> list[Answer]:
        """The model's call for each."""
        return self.decide(list(rows))

    def key(self, call: Answer) -> tuple[str | None, ...]:
        """Alike for calls that the heads write alike (1 and 1.0 of a number)."""
        if isinstance(call, DecodeError):
            return ("", "no call")
        return tuple(text for _, text in self._plan.head_values(call))

    def right(self, answer: Answer, row: Taught) -> bool:
        """Whether it is the row's call, or one of those that are right too."""
        return self.key(answer) in {self.key(row.row.call), *map(self.key, row.allowed)}
