"""From rows and the answers to them: how many are right, by source and head, and what the answers took."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtcontrol.evaluation.judge import Judgement, heads, judge
from rtcontrol.evaluation.predictions import Prediction
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.intervals import calibration, share

WARM_UP = 5
PERCENTS = (50, 90, 95, 99)
MOST_REASONS = 12
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?")
NAMED = re.compile(r"^(function|argument) \S+")


def latency(ms: Sequence[float]) -> dict[str, Any]:
    """Return percentiles (each a measured time: the least that so many per cent do not exceed), mean and maximum, in
    milliseconds. All are None of nothing."""
    names = [f"p{percent}" for percent in PERCENTS]
    if not len(ms):
        return {"count": 0, **dict.fromkeys((*names, "mean", "max"))}
    found = np.percentile(np.asarray(ms, float), PERCENTS, method="inverted_cdf")
    return {
        "count": len(ms),
        **{name: round(float(value), 3) for name, value in zip(names, found, strict=True)},
        "mean": round(float(np.mean(ms)), 3),
        "max": round(float(np.max(ms)), 3),
    }


@dataclass(frozen=True)
class JudgedRow:
    """A row, the answer to it, and the verdict."""

    row: DataRow
    answer: Prediction
    verdict: Judgement


def judged(rows: Sequence[DataRow], found: Mapping[str, Prediction], rule: str) -> list[JudgedRow]:
    """Judge the answer of every row. A failed answer is no call, and never right, also where none is due."""
    made = []
    for row in rows:
        answer = found[row.id]
        failed = answer.error is not None
        verdict = Judgement(False, False, answer.error or "") if failed else judge(answer.calls, row, rule)
        made.append(JudgedRow(row, answer, verdict))
    return made


def scores(found: Sequence[JudgedRow], rule: str) -> dict[str, Any]:
    """Return all figures. A sample of several calls is right where each of its rows is. Shares have Wilson's 95 %
    interval."""
    sources: dict[str, list[JudgedRow]] = defaultdict(list)
    for one in found:
        sources[one.row.source].append(one)
    document: dict[str, Any] = {
        "rule": rule,
        **_shares(found),
        "rows": share(sum(one.verdict.right for one in found), len(found)),
        "by_source": {name: _shares(own) for name, own in sources.items()},
        "by_head": _heads(found),
        "wrong": _reasons(found),
        "errors": dict(Counter(_plain(one.answer.error) for one in found if one.answer.error).most_common()),
        "calibration": _calibration(found),
        "latency_ms": latency([one.answer.ms for one in found if one.answer.ms is not None]),
    }
    for name in ("passes", "tokens"):
        if counts := [n for one in found if (n := getattr(one.answer, name)) is not None]:
            p50, p90 = np.percentile(counts, [50, 90])
            document[name] = {"mean": round(float(np.mean(counts)), 3), "p50": float(p50), "p90": float(p90)}
    document["samples"] = {name: int(right) for name, right in _samples(found, "right").items()}
    return document


def _shares(found: Sequence[JudgedRow]) -> dict[str, Any]:
    right, named = _samples(found, "right").values(), _samples(found, "function").values()
    return {"overall": share(sum(right), len(right)), "function": share(sum(named), len(named))}


def _samples(found: Sequence[JudgedRow], what: str) -> dict[str, bool]:
    """Return of each sample whether all its verdicts have `what` ("right", "function")."""
    made: dict[str, bool] = {}
    for one in found:
        made[one.row.sample] = made.get(one.row.sample, True) and getattr(one.verdict, what)
    return made


def _heads(found: Sequence[JudgedRow]) -> dict[str, Any]:
    """Return of each head how often it is right (of an argument's: where the function is), and its mean confidence."""
    right: dict[str, list[bool]] = defaultdict(list)
    sure: dict[str, list[float]] = defaultdict(list)
    for one in found:
        call = one.answer.calls[0] if len(one.answer.calls) == 1 else None
        if one.answer.error is not None and one.row.call is None:
            continue
        for head in heads(call, one.row, one.answer.confidence):
            right[head.name].append(head.right)
            if head.confidence is not None:
                sure[head.name].append(head.confidence)
    return {
        name: share(sum(own), len(own)) | ({"confidence": round(float(np.mean(sure[name])), 4)} if name in sure else {})
        for name, own in sorted(right.items(), key=lambda pair: (pair[0] != "function", pair[0]))
    }


def _reasons(found: Sequence[JudgedRow]) -> dict[str, int]:
    """Return the first reason of each wrong answer; where there are many, by what kind they are."""
    whys = [_plain(one.verdict.why) for one in found if not one.verdict.right]
    if len(set(whys)) > MOST_REASONS:
        whys = [NAMED.sub(r"\1 …", why) for why in whys]
    return dict(Counter(whys).most_common(MOST_REASONS))


def _plain(why: str | None) -> str:
    """Return a reason without what is of one row alone."""
    return QUOTED.sub("…", why or "")[:100]


def _calibration(found: Sequence[JudgedRow]) -> dict[str, Any]:
    """Return the calibration of the whole call (its heads' confidences, multiplied)."""
    made = [one for one in found if one.answer.confidence and one.answer.error is None]
    sure = [float(np.prod(list(one.answer.confidence.values()))) for one in made]
    return calibration(sure, [int(one.verdict.right) for one in made])
