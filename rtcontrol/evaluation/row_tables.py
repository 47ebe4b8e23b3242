"""The tables of an evaluation, and of two that are compared, from their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rtcontrol.telemetry.figure_table import Table

Document = Mapping[str, Any]


def tables(document: Document) -> list[Table]:
    """Accuracy, heads, what was wrong, calibration, and what answers took; what was not measured has no table."""
    found = [_accuracy(document), _heads(document)]
    if len(document["by_rule"]) > 1:
        found.append(_rules(document))
    found += [
        _counts("What was wrong", "first reason", document["wrong"]),
        _counts("Answers that failed", "why", document["errors"]),
        _calibration(document),
        _took(document),
    ]
    if document.get("compression"):
        found.append(_compression(document["compression"]))
    found.append(_dropped(document["data"]["counts"]))
    return [table for table in found if table.rows]


def _accuracy(document: Document) -> Table:
    def row(name: str, overall: Document, function: Document) -> tuple[str, ...]:
        return name, f"{overall['right']}/{overall['count']}", percent(overall), interval(overall), percent(function)

    rows = [row(name, one["overall"], one["function"]) for name, one in document["by_source"].items()]
    if len(rows) > 1 or not rows:
        rows.append(row("together", document["overall"], document["function"]))
    note = f"Rule: {document['rule']}. A sample is right where all of its calls are."
    if document["rows"]["count"] != document["overall"]["count"]:
        note += f" Single calls: {document['rows']['right']} of {document['rows']['count']} right."
    return Table("Accuracy", ("source", "right", "overall %", "95 %", "function %"), tuple(rows), note)


def _heads(document: Document) -> Table:
    rows = [
        (name, f"{one['right']}/{one['count']}", percent(one), interval(one), number(one.get("confidence"), 3))
        for name, one in document["by_head"].items()
    ]
    note = "Arguments: of calls of the right function. Values as the strict rule compares them."
    return Table("By head", ("head", "right", "%", "95 %", "mean confidence"), tuple(rows), note)


def _rules(document: Document) -> Table:
    rows = [
        (name, f"{one['right']}/{one['count']}", percent(one), interval(one))
        for name, one in document["by_rule"].items()
    ]
    return Table("By rule", ("rule", "right", "overall %", "95 %"), tuple(rows))


def _counts(title: str, what: str, counts: Mapping[str, int]) -> Table:
    return Table(title, (what, "rows"), tuple((why or "(unsaid)", str(n)) for why, n in counts.items()))


def _calibration(document: Document) -> Table:
    rows = [
        (name, str(one["decisions"]), number(one["ece"], 4))
        for name, one in document["calibration"].items()
        if one["decisions"]
    ]
    note = "Expected calibration error in 15 bins of equal mass."
    return Table("Calibration", ("of", "decisions", "ECE"), tuple(rows), note)


def _took(document: Document) -> Table:
    rows = []
    for name, label in (("latency_ms", "answer, ms"), ("whole_ms", "with the tools' prefix, where it was new, ms")):
        if document[name]["count"]:
            rows.append((label, *(number(document[name][k]) for k in ("mean", "p50", "p90", "p95", "p99", "max"))))
    for name, label in (("passes", "forward passes"), ("tokens", "tokens through the model"), ("written", "written")):
        if name in document:
            one = document[name]
            rows.append((label, number(one["mean"]), number(one["p50"]), number(one["p90"]), "", "", ""))
    note = "One after the other; 5 answers before them are not counted."
    return Table("What an answer took", ("", "mean", "p50", "p90", "p95", "p99", "max"), tuple(rows), note)


def _compression(one: Document) -> Table:
    labels = {"json": "JSON", "json_wrapped": "JSON between tags", "longest_head": "longest head"}
    rows = [(label, *(number(one[name][k]) for k in ("mean", "p50", "p90"))) for name, label in labels.items()]
    for name, label in (("compression", "ratio"), ("compression_wrapped", "ratio, between tags")):
        rows.append((label, *(number(one[name][k]) for k in ("mean", "p50", "p90"))))
    note = (
        f"Tokens of the answered calls. Ratios are of the statistics. The function's head is the longest of "
        f"{100 * one['function_head_longest']:.0f} %."
    )
    return Table("Token compression", ("", "mean", "p50", "p90"), tuple(rows), note)


def _dropped(data: Document) -> Table:
    rows = [(one["source"], one["reason"], str(one["count"])) for one in data["dropped"]]
    rows += [(one["source"], f"kept: {one['reason']}", str(one["count"])) for one in data["noted"]]
    return Table("Left out, or not to be answered rightly", ("source", "reason", "samples"), tuple(rows))


def compared(document: Document) -> list[Table]:
    """Of a document that `compare.compare` made."""
    rows = [
        (
            name,
            str(one["both"] + one["only_a"] + one["only_b"] + one["neither"]),
            *(str(one[key]) for key in ("both", "only_a", "only_b", "neither")),
            f"{100 * one['difference']:+.2f}",
            f"{100 * one['low']:+.2f} to {100 * one['high']:+.2f}",
            f"{one['p']:.2g}",
        )
        for name, one in document["paired"].items()
    ]
    columns = ("", "samples", "both", "only A", "only B", "neither", "B - A, points", "95 %", "p")
    note = (
        f"A: {document['a']}. B: {document['b']}. Rule: {document['rule']}. Interval: bootstrap over samples; p: "
        "McNemar's exact test."
    )
    return [Table("The same samples, right in", columns, tuple(rows), note)]


def percent(one: Document) -> str:
    return "–" if one["share"] is None else f"{100 * one['share']:.2f}"


def interval(one: Document) -> str:
    low, high = one["wilson_95"]
    return f"{100 * low:.1f} to {100 * high:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def texts(found: Sequence[Table]) -> str:
    """As Markdown."""
    from rtcontrol.telemetry.figure_table import markdown

    return markdown(found)


def oracle(document: Document) -> list[Table]:
    """Of a document that `oracle.oracle` made."""
    each = document["by_source"]
    rules = [rule for rule in next(iter(each.values())) if rule != "samples"]
    columns = ("source", "samples", *(f"{rule}, {width}" for rule in rules for width in ("all", "six")))
    rows = [
        (name, str(one["samples"]), *(str(one[rule][width]) for rule in rules for width in ("all", "six")))
        for name, one in each.items()
    ]
    note = "The rows' own calls: with all arguments, and with those of a tool's first six parameters."
    return [Table("What always right would score", columns, tuple(rows), note)]


def rescored(document: Document) -> Table:
    """Of published predictions that were judged again."""
    rows = []
    for one in document["rescored"]:
        agrees = ", ".join(f"{rule} {same}/{said}" for rule, (same, said) in one["agreement"].items())
        cells = (f"{one[rule]['right']}/{one[rule]['count']} {percent(one[rule])} %" for rule in ("strict", "loose"))
        left = "; ".join(f"{n} {why}" for why, n in one["left_out"].items())
        if unreadable := one["unreadable_answers"]:
            left += f"; answers that are no JSON: line {', '.join(map(str, unreadable))}"
        rows.append((one["predictions"], *cells, f"{percent(one['function'])} %", left, agrees))
    columns = ("predictions", "strict", "loose", "function", "left out", "agrees with what they say")
    return Table("Judged again", columns, tuple(rows))
