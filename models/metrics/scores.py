"""From rows and the answers to them: how many are right, by source and head, and what the answers took."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.compression import Tokens, compression
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.metrics.bfcl import CheckerAnswer
from rtcontrol.models.metrics.intervals import calibration, share
from rtcontrol.models.metrics.judge import RULES, Judgement, heads, judge
from rtcontrol.models.metrics.predictions import Prediction
from rtcontrol.models.schema.tool_schema import ToolSchema

WARM_UP = 5
PERCENTS = (50, 90, 95, 99)


def latency(ms: Sequence[float]) -> dict[str, Any]:
    """Percentiles (each a time that was measured: the least that so many per cent are not above), mean and greatest, in
    milliseconds; `hz` is the rate that the median allows. All None of nothing."""
    names = [f"p{percent}" for percent in PERCENTS]
    if not len(ms):
        return {"count": 0, **dict.fromkeys((*names, "mean", "max", "hz"))}
    found = np.percentile(np.asarray(ms, float), PERCENTS, method="inverted_cdf")
    return {
        "count": len(ms),
        **{name: round(float(value), 3) for name, value in zip(names, found, strict=True)},
        "mean": round(float(np.mean(ms)), 3),
        "max": round(float(np.max(ms)), 3),
        "hz": round(1e3 / float(found[0]), 2) if found[0] > 0 else None,
    }


def curve(ms: Sequence[float]) -> list[list[float]]:
    """[per cent, milliseconds] at every per cent, for a chart; empty of nothing."""
    percents = range(1, 101)
    found = np.percentile(np.asarray(ms, float), percents, method="inverted_cdf") if len(ms) else ()
    return [[percent, round(float(value), 3)] for percent, value in zip(percents, found, strict=False)]


OFFICIAL = "official"  # BFCL's own checker
MOST_REASONS = 12
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?")
NAMED = re.compile(r"^(function|argument) \S+")


@dataclass(frozen=True)
class JudgedRow:
    """A row, the answer to it, and the verdict by each rule."""

    row: DataRow
    answer: Prediction
    verdicts: Mapping[str, Judgement]


def judged(
    rows: Sequence[DataRow], found: Mapping[str, Prediction], official: Mapping[str, CheckerAnswer]
) -> list[JudgedRow]:
    """By all rules; by the `official` one those rows that were checked by it. Every row has an answer."""
    made = []
    for row in rows:
        answer = found[row.id]
        # An answer that failed is no call, and never right, also where none is due.
        failed = Judgement(False, False, answer.error or "")
        verdicts = {r: failed if answer.error is not None else judge(answer.calls, row, r) for r in RULES}
        if (checked := official.get(row.id)) is not None:
            named = verdicts["strict"].function
            verdicts[OFFICIAL] = Judgement(named, named and checked.valid and answer.error is None, checked.kind)
        made.append(JudgedRow(row, answer, verdicts))
    return made


def scores(found: Sequence[JudgedRow], rule: str, tokens: Tokens | None = None) -> dict[str, Any]:
    """All figures, by `rule` where no other is named. A sample of several calls is right where each of its rows is.
    Shares have Wilson's 95 % interval."""
    samples, functions = _samples(found, rule)
    sources: dict[str, list[JudgedRow]] = defaultdict(list)
    for one in found:
        sources[one.row.source].append(one)
    took = [one.answer.ms for one in found if one.answer.ms is not None]
    opened = any(one.answer.opening_ms is not None for one in found)
    document: dict[str, Any] = {
        "rule": rule,
        "overall": _share(samples),
        "function": _share(functions),
        "rows": share(sum(one.verdicts[rule].right for one in found), len(found)),
        "by_rule": {name: _share(_samples(found, name)[0]) for name in _rules(found)},
        "by_source": {
            name: {"overall": _share(_samples(own, rule)[0]), "function": _share(_samples(own, rule)[1])}
            for name, own in sources.items()
        },
        "by_head": _heads(found),
        "wrong": _reasons(found, rule),
        "errors": dict(Counter(_plain(one.answer.error) for one in found if one.answer.error).most_common()),
        "calibration": _calibration(found, rule),
        "latency_ms": latency(took),
        "latency_curve": curve(took),
        "whole_ms": latency(
            [a.ms + (a.opening_ms or 0.0) for a in (one.answer for one in found) if a.ms is not None and opened]
        ),
    }
    for name in ("passes", "tokens", "written"):
        if counts := [n for one in found if (n := getattr(one.answer, name)) is not None]:
            p50, p90 = np.percentile(counts, [50, 90])
            document[name] = {"mean": round(float(np.mean(counts)), 3), "p50": float(p50), "p90": float(p90)}
    if tokens is not None:
        document["compression"] = _compression(found, tokens)
    document["samples"] = {name: [int(right), int(functions[name])] for name, right in samples.items()}
    return document


def _rules(found: Sequence[JudgedRow]) -> list[str]:
    """Those that judged every row."""
    return [r for r in (OFFICIAL, *RULES) if found and all(r in one.verdicts for one in found)]


def _samples(found: Sequence[JudgedRow], rule: str) -> tuple[dict[str, bool], dict[str, bool]]:
    right: dict[str, bool] = {}
    named: dict[str, bool] = {}
    for one in found:
        verdict, sample = one.verdicts[rule], one.row.sample
        right[sample] = right.get(sample, True) and verdict.right
        named[sample] = named.get(sample, True) and verdict.function
    return right, named


def _share(outcomes: Mapping[str, bool]) -> dict[str, Any]:
    return share(sum(outcomes.values()), len(outcomes))


def _heads(found: Sequence[JudgedRow]) -> dict[str, Any]:
    """Of each head how often it is right (of an argument's: where the function is), and how sure it was."""
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


def _reasons(found: Sequence[JudgedRow], rule: str) -> dict[str, int]:
    """The first reason of each wrong answer; where there are many, by what kind they are."""
    whys = [_plain(one.verdicts[rule].why) for one in found if not one.verdicts[rule].right]
    if len(set(whys)) > MOST_REASONS:
        whys = [NAMED.sub(r"\1 …", why) for why in whys]
    return dict(Counter(whys).most_common(MOST_REASONS))


def _plain(why: str | None) -> str:
    """A reason without what is of one row alone."""
    return QUOTED.sub("…", why or "")[:100]


def _calibration(found: Sequence[JudgedRow], rule: str) -> dict[str, Any]:
    """Of the whole call (its heads' confidences, multiplied) and of the function."""
    told = [one for one in found if one.answer.confidence and one.answer.error is None]
    sure = [float(np.prod(list(one.answer.confidence.values()))) for one in told]
    functions = [one for one in told if "function" in one.answer.confidence]
    return {
        "call": calibration(sure, [int(one.verdicts[rule].right) for one in told]),
        "function": calibration(
            [one.answer.confidence["function"] for one in functions],
            [int(one.verdicts[rule].function) for one in functions],
        ),
    }


def _compression(found: Sequence[JudgedRow], tokens: Tokens) -> dict[str, Any]:
    """Tokens of the calls that were answered, as JSON and as heads; those of functions that are not shown have none."""
    counted: list[tuple[Call, ToolSchema]] = []
    for one in found:
        named = {tool.get("function", tool)["name"]: tool for tool in one.row.tools}
        if len(one.answer.calls) == 1 and (call := one.answer.calls[0]).name in named:
            try:
                counted.append((call, canonical(named[call.name], "merge")))
            except Unusable:  # a tool that cannot be read has no heads
                continue
    return compression(counted, tokens)
