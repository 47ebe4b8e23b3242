"""What a controller learnt, found out on rows and words that are kept apart."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.training.dataset import Answer, HeldOut, Share, Taught
from rtcontrol.training.instruction_words import Swap, Swaps, Vocabulary

FLAT = 0.015  # a score that moved less than this stands still
STILL_S, STILL_SHARE = 45.0, 0.35  # for so long, and for this share of the run
GOOD = 0.97
RARE = 30  # rows of a tool
KEEP = "(keep)"  # where the call in force stays
ON_THE_WAY = 20  # situations of a group of words while it trains
Say = Callable[[str], object]
_COUNT = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class Breakdown:
    """Shares of held-out rows that are right: by the tool that was to be called; by its arguments, where the tool was
    right; by the kind of instruction."""

    tools: Mapping[str, Share]
    arguments: Mapping[str, Share]
    goals: Mapping[str, Share]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            part: {name: list(share.pair) for name, share in getattr(self, part).items()}
            for part in ("tools", "arguments", "goals")
        }

    def worst(self) -> tuple[str, Share] | None:
        """What is least right of all with ten rows or more, where it is not good."""
        listed = [
            *((f"the tool {name}", share) for name, share in self.tools.items()),
            *((f"the argument {name}", share) for name, share in self.arguments.items()),
            *((f'told "{name}"', share) for name, share in self.goals.items()),
        ]
        poor = [(name, share) for name, share in listed if share.count >= 10 and share.value < GOOD]
        return min(poor, key=lambda entry: entry[1].value, default=None)


def breakdown(held: HeldOut, rows: Sequence[Taught], answers: Sequence[Answer], words: Vocabulary) -> Breakdown:
    """Count them."""
    counts: dict[str, dict[str, list[bool]]] = {part: defaultdict(list) for part in ("tools", "arguments", "goals")}
    for one, answer in zip(rows, answers, strict=True):
        call, right = one.row.call, held.right(answer, one)
        counts["tools"][KEEP if call is None else call.name].append(right)
        counts["goals"][words.kind(one.row.instruction)].append(right)
        if isinstance(call, Call) and isinstance(answer, Call) and answer.name == call.name:
            for name in dict.fromkeys((*call.arguments, *answer.arguments)):
                ok = right or call.arguments.get(name) == answer.arguments.get(name)
                counts["arguments"][f"{call.name}.{name}"].append(ok)
    shares = {
        part: {name: Share(sum(each), len(each)) for name, each in sorted(named.items())}
        for part, named in counts.items()
    }
    return Breakdown(**shares)


def plateau(
    lines: Sequence[Mapping[str, Any]],
    swaps: Sequence[Swap],
    parts: Breakdown,
    rows: Mapping[str, int],
    ceiling: float,
    endless: bool = False,
) -> str | None:
    """One paragraph where the held-out score stands still below what is good: since when, what it is about, and what to
    try. `rows` counts those to learn from, by tool; `endless`: they are a sample, and new ones come as long as it
    trains. None where it moves, or is as good as can be."""
    scores = [line["held_out"]["right"] / line["held_out"]["count"] for line in lines]
    now = lines[-1]["seconds"]
    if not scores or scores[-1] >= min(GOOD, ceiling - FLAT):
        return None
    since = now - max(STILL_S, STILL_SHARE * now)
    before = [s for line, s in zip(lines, scores, strict=True) if line["seconds"] <= since]
    late = [s for line, s in zip(lines, scores, strict=True) if line["seconds"] > since]
    if not before or len(late) < 2 or max(late) > max(before) + FLAT:
        return None
    told = f"The held-out score stands still at {scores[-1]:.0%} for {now - since:.0f} s."
    ignored = [swap for swap in swaps if swap.ignored]
    worst = parts.worst()
    rare = min(rows, key=lambda name: rows[name], default=None)
    if ignored:
        why = " ".join(swap.message() for swap in ignored)
        try_ = (
            "Write what belongs to a thing right behind its name in the observation, add rows that see the same and "
            "are told otherwise, begin with rows of one thing only, give more --minutes, or start from a --base."
        )
    elif lines[-1]["accuracy"] > 0.995 and not endless:
        why = "The rows to learn from are known by heart."
        try_ = f"Give more different rows than these {sum(rows.values()):,}."
    elif worst is not None and rare is not None and rows[rare] < RARE and worst[0] == f"the tool {rare}":
        few = f"Only {rows[rare]} of the first {sum(rows.values()):,} rows" if endless else f"Only {rows[rare]} rows"
        why, try_ = f"{few} call {rare}.", "Make situations that ask for it." if endless else "Add rows that do."
    else:
        why = "" if worst is None else f"Least right is {worst[0]}: {worst[1].right} of {worst[1].count}."
        more = "more --minutes" if endless else "more rows, or more --minutes"
        try_ = f"Look whether what is seen tells these calls apart; then give {more}."
    return " ".join(part for part in (told, why, try_) if part)


@dataclass(frozen=True)
class Truth:
    """What was found out about a model on held-out rows; `plateau` is what to try, where it stood still."""

    score: Share
    parts: Breakdown
    swaps: tuple[Swap, ...]
    plateau: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        swaps = [asdict(swap) | {"told": swap.message()} for swap in self.swaps]
        return {"held_out": self.score.to_dict(), **self.parts.to_dict(), "swaps": swaps, "plateau": self.plateau}

    def messages(self) -> list[str]:
        """What people should read beside the score: words that change nothing first."""
        lines = [swap.message() for swap in sorted(self.swaps, key=lambda s: not s.ignored)]
        return [*lines, *([self.plateau] if self.plateau else [])]


class Examiner:
    """Looks at a model in training, and says what its score hides; each sentence once."""

    def __init__(
        self,
        held: HeldOut,
        swaps: Swaps,
        learnt: Sequence[Taught],
        ceiling: float,
        say: Say,
        endless: bool = False,
    ) -> None:
        self.say = say
        self._held, self._swaps, self._ceiling, self._endless = held, swaps, ceiling, endless
        self._rows = Counter(KEEP if one.row.call is None else one.row.call.name for one in learnt)
        self._said: set[str] = set()

    def look(self, most: int, lines: Sequence[Mapping[str, Any]] = (), situations: int = ON_THE_WAY) -> Truth:
        """Of the first `most` held-out rows, and so many situations of each group of words; `lines` are those of the
        run so far, the last one of now."""
        rows = self._held.rows[:most]
        answers = self._held.answers(one.row for one in rows)
        score = Share(sum(self._held.right(a, one) for a, one in zip(answers, rows, strict=True)), len(rows))
        parts = breakdown(self._held, rows, answers, self._swaps.vocabulary)
        swaps = tuple(self._swaps.check(situations))
        told = [{**line, "held_out": line.get("held_out", score.to_dict())} for line in lines]
        return Truth(score, parts, swaps, self._plateau(told, swaps, parts))

    def _plateau(self, told: Sequence[Mapping[str, Any]], swaps: Sequence[Swap], parts: Breakdown) -> str | None:
        return plateau(told, swaps, parts, self._rows, self._ceiling, self._endless) if told else None

    def tell(self, found: Truth) -> None:
        """Say that the score stands still, once for each thing that it is about."""
        if found.plateau is not None:
            about = _COUNT.sub("", found.plateau)
            if about not in self._said:
                self._said.add(about)
                self.say(found.plateau)
