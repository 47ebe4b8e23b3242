"""Judge calls by rules that need no package, and count the results.

*exact*: one of the right calls, value for value. *strict*: the rule of SimpleTool's published scores (reproduction
release, September 2026): one of the right calls, no other arguments, values compared by `alike`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.intervals import share
from rtcontrol.models.schema.domain import same

RULES = ("exact", "strict")
NEAR = 1e-6  # numbers so close are alike
LEFT_OUT = ""  # as the sets write it
PERCENTS = (50, 90, 95, 99)
MOST_REASONS = 12
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?")
NAMED = re.compile(r"^(function|argument) \S+")
OPTIONAL = ("ms", "passes", "tokens", "error")


@dataclass(frozen=True)
class Answer:
    """The answer to one row: its calls (none: the active call stays, or `error` is the reason for none), `confidence`
    by head, milliseconds from text to call, forward passes, and tokens through the model."""

    id: str
    calls: tuple[Call, ...]
    confidence: Mapping[str, float] = field(default_factory=dict)
    ms: float | None = None
    passes: int | None = None
    tokens: int | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON, without unknown figures."""
        return {
            "id": self.id,
            "calls": [call.to_dict() for call in self.calls],
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
            **{name: value for name in OPTIONAL if (value := getattr(self, name)) is not None},
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the function is right, and whether the whole call is; `why` not, in a few words."""

    function: bool
    right: bool
    why: str = ""


def judge(calls: Sequence[Call], row: Row, rule: str) -> Judgement:
    """Judge the calls of an answer to a row. If the row's call is null, the right answer has none."""
    assert rule in RULES, rule
    if row.call is None:
        return Judgement(not calls, not calls, "a call where none is due" if calls else "")
    candidates = [right for right in (row.call, *row.allowed) if calls and right.name == calls[0].name]
    if len(calls) != 1:
        return Judgement(bool(candidates), False, f"{len(calls)} calls" if calls else "no call")
    call, why = calls[0], f"function {calls[0].name}"
    for right in candidates:
        names = [*right.arguments, *(k for k in call.arguments if k not in right.arguments)]
        wrong = [name for name in names if not _argument_right(call, right, name, rule)]
        if not wrong:
            return Judgement(True, True)
        why = f"argument {wrong[0]}"
    return Judgement(bool(candidates), False, why)


def _argument_right(call: Call, right: Call, name: str, rule: str) -> bool:
    """Return whether a call has the right call's value of an argument, or neither has one. By the strict rule a call
    may leave out what is null or "" in the right one."""
    if name not in right.arguments:
        return name not in call.arguments
    value, expected = call.arguments.get(name, LEFT_OUT), right.arguments[name]
    return alike(value, expected) if rule == "strict" else name in call.arguments and same(value, expected)


def alike(a: Any, b: Any) -> bool:
    """Return whether two values differ in spelling only: numbers within 1e-6 of each other, however written (`"3"`,
    `3.0`), texts except for case and spaces, lists item by item; others by their text."""
    if a == b or {repr(a), repr(b)} == {"None", "''"}:
        return True
    if (x := _number(a)) is not None and (y := _number(b)) is not None and abs(x - y) < NEAR:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, str) and isinstance(b, str):
        return a.lower().split() == b.lower().split()
    return str(a) == str(b)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class JudgedRow:
    """A row, the answer to it, and the verdict."""

    row: Row
    answer: Answer
    verdict: Judgement


def judged(rows: Sequence[Row], answers: Mapping[str, Answer], rule: str) -> list[JudgedRow]:
    """Judge the answer of every row. A failed answer is never right, also where no call is due."""
    results = []
    for row in rows:
        answer = answers[row.id]
        verdict = judge(answer.calls, row, rule) if answer.error is None else Judgement(False, False, answer.error)
        results.append(JudgedRow(row, answer, verdict))
    return results


def scores(rows: Sequence[JudgedRow], rule: str) -> dict[str, Any]:
    """Return all figures. A sample of several calls is right where each of its rows is. Shares have Wilson's 95 %
    interval."""
    sources: dict[str, list[JudgedRow]] = defaultdict(list)
    for each in rows:
        sources[each.row.source].append(each)
    document: dict[str, Any] = {
        "rule": rule,
        **_shares(rows),
        "rows": share(sum(each.verdict.right for each in rows), len(rows)),
        "by_source": {name: _shares(some) for name, some in sources.items()},
        "wrong": _reasons(rows),
        "latency_ms": latency([each.answer.ms for each in rows if each.answer.ms is not None]),
    }
    for name in ("passes", "tokens"):
        if counts := [n for each in rows if (n := getattr(each.answer, name)) is not None]:
            p50, p90 = np.percentile(counts, [50, 90])
            document[name] = {"mean": round(float(np.mean(counts)), 3), "p50": float(p50), "p90": float(p90)}
    document["samples"] = {name: int(right) for name, right in _samples(rows, "right").items()}
    return document


def latency(ms: Sequence[float]) -> dict[str, Any]:
    """Return percentiles (each the smallest measured time that so many per cent do not exceed), mean and maximum in
    milliseconds; None without times."""
    names = [f"p{percent}" for percent in PERCENTS]
    if not ms:
        return {"count": 0, **dict.fromkeys((*names, "mean", "max"))}
    values = np.percentile(np.asarray(ms, float), PERCENTS, method="inverted_cdf")
    return {
        "count": len(ms),
        **{name: round(float(value), 3) for name, value in zip(names, values, strict=True)},
        "mean": round(float(np.mean(ms)), 3),
        "max": round(float(np.max(ms)), 3),
    }


def _shares(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    right, function = _samples(rows, "right").values(), _samples(rows, "function").values()
    return {"overall": share(sum(right), len(right)), "function": share(sum(function), len(function))}


def _samples(rows: Sequence[JudgedRow], part: str) -> dict[str, bool]:
    """Return for each sample whether all its judgements have `part` ("right", "function")."""
    samples: dict[str, bool] = {}
    for each in rows:
        samples[each.row.sample] = samples.get(each.row.sample, True) and getattr(each.verdict, part)
    return samples


def _reasons(rows: Sequence[JudgedRow]) -> dict[str, int]:
    """Return the counts of the first reasons of wrong answers; by kind if there are many."""
    whys = [_plain(each.verdict.why) for each in rows if not each.verdict.right]
    if len(set(whys)) > MOST_REASONS:
        whys = [NAMED.sub(r"\1 …", why) for why in whys]
    return dict(Counter(whys).most_common(MOST_REASONS))


def _plain(why: str | None) -> str:
    """Return a reason without details of one row."""
    return QUOTED.sub("…", why or "")[:100]
