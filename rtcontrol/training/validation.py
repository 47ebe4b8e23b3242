"""Held-out rows, and what a controller learnt, found out on them."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.intervals import wilson
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row
from rtcontrol.training.model_size import Learner

SHARE = 0.1
MOST = 1_000
SAMPLE = 256  # of an evaluation on the way
GOOD = 0.97
KEEP = "(keep)"  # where the call in force stays
Answer = Call | None | DecodeError


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(to learn from, to hold out): about a tenth of the different questions, whatever order they stand in. Rows that
    ask the same are on the same side, so what is held out was never seen. Raises UserError where all do."""
    order = sorted({one.question for one in rows}, key=lambda q: hashlib.sha256(repr(q).encode()).digest())
    if len(order) < 2:
        raise UserError(
            f"All {len(rows)} rows ask the same: there is nothing to tell apart, and nothing to hold out.",
            "Give rows that see or are told something else.",
        )
    held = set(order[: min(MOST, max(1, round(SHARE * len(order))))])
    sides: tuple[list[Row], list[Row]] = ([], [])
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

    def message(self) -> str:
        """For people, with its Wilson interval at 95 %."""
        low, high = wilson(self.right, self.count)
        return f"{self.right} of {self.count} right ({self.value:.1%}, Wilson 95 % {low:.1%} to {high:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        low, high = wilson(self.right, self.count)
        return {"right": self.right, "count": self.count, "wilson_95": [round(low, 4), round(high, 4)]}


@dataclass(frozen=True)
class Truth:
    """What was found out about a model on held-out rows: its score; its `parts`, by the tool that was to be called and
    by its arguments, where the tool was right."""

    score: Share
    parts: Mapping[str, Share]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        parts = {name: [share.right, share.count] for name, share in self.parts.items()}
        return {"held_out": self.score.to_dict(), "parts": parts}

    def worst(self) -> str | None:
        """One sentence on what is least right of all with ten rows or more, where it is not good."""
        poor = {name: share for name, share in self.parts.items() if share.count >= 10 and share.value < GOOD}
        name = min(poor, key=lambda name: poor[name].value, default=None)
        return None if name is None else f"Least right is the {name}: {poor[name].right} of {poor[name].count}."


class HeldOut:
    """Asks the model in training."""

    def __init__(self, learner: Learner, rows: Sequence[Row]) -> None:
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

    def look(self, most: int) -> Truth:
        """What the model does on the first `most` rows."""
        rows = self.rows[:most]
        parts: dict[str, list[bool]] = defaultdict(list)
        rights = []
        for one, answer in zip(rows, self.answers(rows), strict=True):
            call = one.call
            right = self.key(answer) in {self.key(call), *map(self.key, one.allowed)}
            rights.append(right)
            parts[f"tool {KEEP if call is None else call.name}"].append(right)
            if isinstance(call, Call) and isinstance(answer, Call) and answer.name == call.name:
                for name in dict.fromkeys((*call.arguments, *answer.arguments)):
                    ok = right or call.arguments.get(name) == answer.arguments.get(name)
                    parts[f"argument {call.name}.{name}"].append(ok)
        shares = {name: Share(sum(each), len(each)) for name, each in sorted(parts.items(), reverse=True)}
        return Truth(Share(sum(rights), len(rights)), shares)


def score_of(line: Mapping[str, Any]) -> float:
    """The held-out score of a line of the log."""
    return float(line["held_out"]["right"] / line["held_out"]["count"])
