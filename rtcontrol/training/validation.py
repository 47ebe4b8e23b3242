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
from rtcontrol.training.dataset import Taught
from rtcontrol.training.model_size import Learner

SHARE = 0.1
MOST = 1_000
SAMPLE = 256  # of an evaluation on the way
FLAT = 0.015  # a score that moved less than this stands still
STILL_S, STILL_SHARE = 45.0, 0.35  # for so long, and for this share of the run
GOOD = 0.97
KEEP = "(keep)"  # where the call in force stays
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
    by its arguments, where the tool was right; `plateau` is what to try, where the score stands still."""

    score: Share
    parts: Mapping[str, Share]
    plateau: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        parts = {name: [share.right, share.count] for name, share in self.parts.items()}
        return {"held_out": self.score.to_dict(), "parts": parts, "plateau": self.plateau}

    def worst(self) -> str | None:
        """One sentence on what is least right of all with ten rows or more, where it is not good."""
        poor = {name: share for name, share in self.parts.items() if share.count >= 10 and share.value < GOOD}
        name = min(poor, key=lambda name: poor[name].value, default=None)
        return None if name is None else f"Least right is the {name}: {poor[name].right} of {poor[name].count}."

    def messages(self) -> list[str]:
        """What people should read beside the score."""
        return [text for text in (self.plateau or self.worst(),) if text]


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

    def look(self, most: int) -> Truth:
        """What the model does on the first `most` rows."""
        rows = self.rows[:most]
        parts: dict[str, list[bool]] = defaultdict(list)
        rights = []
        for one, answer in zip(rows, self.answers(one.row for one in rows), strict=True):
            call = one.row.call
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


def plateau(lines: Sequence[Mapping[str, Any]], worst: str | None, ceiling: float, endless: bool) -> str | None:
    """One paragraph where the held-out score stands still below what is good: since when, what it is about, and what to
    try. `endless`: new rows come as long as it trains. None where it moves, or is as good as can be."""
    scores, now = [*map(score_of, lines)], lines[-1]["seconds"]
    if scores[-1] >= min(GOOD, ceiling - FLAT):
        return None
    since = now - max(STILL_S, STILL_SHARE * now)
    before = [s for line, s in zip(lines, scores, strict=True) if line["seconds"] <= since]
    late = scores[len(before) :]
    if not before or len(late) < 2 or max(late) > max(before) + FLAT:
        return None
    told = f"The held-out score stands still at {scores[-1]:.0%} for {now - since:.0f} s."
    if lines[-1]["accuracy"] > 0.995 and not endless:
        return f"{told} The rows to learn from are known by heart. Give more different rows."
    more = "more --minutes" if endless else "more rows, or more --minutes"
    try_ = f"Look whether what is seen tells these calls apart; then give {more}."
    return " ".join(part for part in (told, worst, try_) if part)
