"""Judge the calls of answers by the rule `exact` or `strict`, and count the results.

By `exact` an answer must equal one of the right calls. `strict` is the rule of SimpleTool's published scores
(reproduction release, September 2026): the same function and arguments, with values compared by `nearly_equal`.
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
from rtcontrol.models.intervals import share_of_right
from rtcontrol.models.schema.domain import is_same

RULES = ("exact", "strict")
TOLERANCE = 1e-6  # numbers that differ by less than this count as equal
EMPTY = ""  # value of a missing argument in the data sets
PERCENTILES = (50, 90, 95, 99)
MAX_REASONS = 12
DETAILS = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?")
NAMED_PART = re.compile(r"^(function|argument) \S+")
OPTIONAL_FIELDS = ("ms", "passes", "tokens", "error")


@dataclass(frozen=True)
class Answer:
    """The answer to one row. `calls` is empty if the model keeps the active call, or after an `error`. `confidence` is
    by head, `ms` is the time of the decision; `passes` counts forward passes, and `tokens` computed tokens."""

    id: str
    calls: tuple[Call, ...]
    confidence: Mapping[str, float] = field(default_factory=dict)
    ms: float | None = None
    passes: int | None = None
    tokens: int | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON object. Fields that are None are left out."""
        return {
            "id": self.id,
            "calls": [call.to_dict() for call in self.calls],
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
            **{name: value for name in OPTIONAL_FIELDS if (value := getattr(self, name)) is not None},
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of an answer: whether the `function` is right, whether the whole call is `right`, and why not."""

    function: bool
    right: bool
    reason: str = ""


def judge(calls: Sequence[Call], row: Row, rule: str) -> Judgement:
    """Judge the calls of an answer to a row. If the row has no call, the right answer has no call either."""
    if rule not in RULES:
        raise ValueError(f"{rule!r} is not in {RULES}")
    if row.call is None:
        return Judgement(not calls, not calls, "a call where none is right" if calls else "")
    candidates = [right for right in (row.call, *row.allowed) if calls and right.name == calls[0].name]
    if len(calls) != 1:
        return Judgement(bool(candidates), False, f"{len(calls)} calls" if calls else "no call")
    call, reason = calls[0], f"function {calls[0].name}"
    for right in candidates:
        names = [*right.arguments, *(k for k in call.arguments if k not in right.arguments)]
        wrong = [name for name in names if not _is_argument_right(call, right, name, rule)]
        if not wrong:
            return Judgement(True, True)
        reason = f"argument {wrong[0]}"
    return Judgement(bool(candidates), False, reason)


def _is_argument_right(call: Call, right: Call, name: str, rule: str) -> bool:
    """Return whether the argument `name` has the same value in both calls, or is missing in both. By the strict rule
    it may also be missing in `call` if the right value is null or ""."""
    if name not in right.arguments:
        return name not in call.arguments
    value, expected = call.arguments.get(name, EMPTY), right.arguments[name]
    return nearly_equal(value, expected) if rule == "strict" else name in call.arguments and is_same(value, expected)


def nearly_equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal up to spelling. Numbers (also in strings) may differ by TOLERANCE, strings in
    case and spaces; lists are compared item by item, and other values by their text."""
    if a == b or {repr(a), repr(b)} == {"None", "''"}:
        return True
    if (x := _to_number(a)) is not None and (y := _to_number(b)) is not None and abs(x - y) < TOLERANCE:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(nearly_equal, a, b))
    if isinstance(a, str) and isinstance(b, str):
        return a.lower().split() == b.lower().split()
    return str(a) == str(b)


def _to_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class JudgedRow:
    """A row, its answer, and the judgement of this answer."""

    row: Row
    answer: Answer
    verdict: Judgement


def judge_rows(rows: Sequence[Row], answers: Mapping[str, Answer], rule: str) -> list[JudgedRow]:
    """Judge the answer to every row. An answer with an error is always wrong, even if the row has no call."""
    results = []
    for row in rows:
        answer = answers[row.id]
        verdict = judge(answer.calls, row, rule) if answer.error is None else Judgement(False, False, answer.error)
        results.append(JudgedRow(row, answer, verdict))
    return results


def scores(rows: Sequence[JudgedRow], rule: str) -> dict[str, Any]:
    """Return all figures of an evaluation as a JSON object. A sample with several rows is right if all its rows are
    right. Shares have Wilson's 95 % interval."""
    sources: dict[str, list[JudgedRow]] = defaultdict(list)
    for each in rows:
        sources[each.row.source].append(each)
    document: dict[str, Any] = {
        "rule": rule,
        **_accuracy(rows),
        "rows": share_of_right(sum(each.verdict.right for each in rows), len(rows)),
        "by_source": {name: _accuracy(group) for name, group in sources.items()},
        "wrong": _reasons(rows),
        "latency_ms": latency([each.answer.ms for each in rows if each.answer.ms is not None]),
    }
    for name in ("passes", "tokens"):
        if counts := [n for each in rows if (n := getattr(each.answer, name)) is not None]:
            p50, p90 = np.percentile(counts, [50, 90])
            document[name] = {"mean": round(float(np.mean(counts)), 3), "p50": float(p50), "p90": float(p90)}
    document["samples"] = {name: int(right) for name, right in _right_samples(rows, "right").items()}
    return document


def latency(ms: Sequence[float]) -> dict[str, Any]:
    """Return percentiles (without interpolation), mean and maximum of times in milliseconds. They are None if there are
    no times."""
    names = [f"p{percent}" for percent in PERCENTILES]
    if not ms:
        return {"count": 0, **dict.fromkeys((*names, "mean", "max"))}
    values = np.percentile(np.asarray(ms, float), PERCENTILES, method="inverted_cdf")
    return {
        "count": len(ms),
        **{name: round(float(value), 3) for name, value in zip(names, values, strict=True)},
        "mean": round(float(np.mean(ms)), 3),
        "max": round(float(np.max(ms)), 3),
    }


def _accuracy(rows: Sequence[JudgedRow]) -> dict[str, Any]:
    right, function = _right_samples(rows, "right").values(), _right_samples(rows, "function").values()
    return {"overall": share_of_right(sum(right), len(right)), "function": share_of_right(sum(function), len(function))}


def _right_samples(rows: Sequence[JudgedRow], part: str) -> dict[str, bool]:
    """Return, by sample id, whether `part` ("right" or "function") is True in all judgements of the sample's rows."""
    samples: dict[str, bool] = {}
    for each in rows:
        samples[each.row.sample] = samples.get(each.row.sample, True) and getattr(each.verdict, part)
    return samples


def _reasons(rows: Sequence[JudgedRow]) -> dict[str, int]:
    """Return how often each reason for a wrong answer occurs. If there are many reasons, names in them are removed."""
    reasons = [_without_details(each.verdict.reason) for each in rows if not each.verdict.right]
    if len(set(reasons)) > MAX_REASONS:
        reasons = [NAMED_PART.sub(r"\1 …", reason) for reason in reasons]
    return dict(Counter(reasons).most_common(MAX_REASONS))


def _without_details(reason: str | None) -> str:
    """Return a reason without quoted texts and numbers."""
    return DETAILS.sub("…", reason or "")[:100]
