"""One evaluation: rows of a source, answered one after the other, judged, and shown as tables."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rtcontrol.evaluation.answers import Answerer, Prediction
from rtcontrol.evaluation.judge import judged, scores
from rtcontrol.models.data import convert
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Tally
from rtcontrol.models.data.sources import registry
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import FigureTable

DOCUMENT = 3
WARM_UP = 5
Progress = Callable[[int, int], None]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class EvalRows:
    """The rows of the source `given`, and what became of every sample."""

    given: str
    rows: list[DataRow]
    tally: Tally

    @property
    def fingerprint(self) -> dict[str, Any]:
        made = hashlib.sha256()
        for row in self.rows:
            made.update(json.dumps(row.to_dict(), sort_keys=True, ensure_ascii=False).encode() + b"\n")
        return {"source": self.given, "rows": len(self.rows), "digest": made.hexdigest()[:16]}

    @property
    def rule(self) -> str:
        """The rule that the figures are by: the strict one for public sets, the exact one for a file."""
        return "strict" if self.given.partition("=")[0].partition(":")[0] in registry.SETS else "exact"


def read(given: str, limit: int | None = None) -> EvalRows:
    """Read the rows of the first `limit` samples. Raises UserError for what is no source, and where no row is left."""
    tally = Tally()
    rows = list(limited(convert.rows(registry.read(given), tally, "eval"), limit))
    if not rows:
        dropped = "; ".join(f"{n} dropped: {reason}" for (_, reason), n in tally.dropped.most_common(3))
        raise UserError(f"{given} gives no row{f' ({dropped})' if dropped else ''}.", "Give another source.")
    if twice := [name for name, count in Counter(row.id for row in rows).items() if count > 1]:
        raise UserError(f"{given} has two rows called {twice[0]!r}.", "Give each row its own id.")
    return EvalRows(given, rows, tally)


def limited(rows: Iterable[DataRow], limit: int | None) -> Iterator[DataRow]:
    """Yield the rows of the first so many samples."""
    seen: set[str] = set()
    for row in rows:
        seen.add(row.sample)
        if limit is not None and len(seen) > limit:
            return
        yield row


def answer_all(
    rows: Sequence[DataRow], answerer: Answerer, keep: Callable[[Prediction], object], progress: Progress
) -> dict[str, Prediction]:
    """Answer all rows, one after the other, and give each answer to `keep` at once; first some of the end whose answers
    are not kept (the answerer forgets them)."""
    for row in rows[-WARM_UP:]:
        answerer.answer(row)
    answerer.forget()
    answers: dict[str, Prediction] = {}
    for n, row in enumerate(rows, 1):
        answers[row.id] = answerer.answer(row)
        keep(answers[row.id])
        progress(n, len(rows))
    return answers


def written(file: TextIO, answer: Prediction) -> None:
    """Write an answer as a line. Raises UserError where it cannot be, as on a full disk: what was there stays."""
    try:
        file.write(json.dumps(answer.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
    except OSError as error:
        raise UserError(f"{file.name} cannot be written ({error.strerror}).", "Make room.") from None


def document(rows: EvalRows, answers: Mapping[str, Prediction], model: Document) -> dict[str, Any]:
    """Return all figures of answers to all of the rows."""
    data = {**rows.fingerprint, "counts": rows.tally.to_dict()}
    figures = scores(judged(rows.rows, answers, rows.rule), rows.rule)
    return {"eval": DOCUMENT, "model": dict(model), "data": data, **figures}


def tables(document: Document) -> list[FigureTable]:
    """Return the tables of an evaluation: accuracy, what was wrong, and what answers took."""
    made = [
        _accuracy(document),
        _counts("What was wrong", "first reason", document["wrong"]),
        _counts("Answers that failed", "why", document["errors"]),
        _took(document),
        _dropped(document["data"]["counts"]),
    ]
    return [table for table in made if table.rows]


def _accuracy(document: Document) -> FigureTable:
    def row(name: str, one: Document) -> tuple[str, ...]:
        overall = one["overall"]
        low, high = overall["wilson_95"]
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        return name, f"{overall['right']}/{overall['count']}", _percent(overall), interval, _percent(one["function"])

    rows = [row(name, one) for name, one in document["by_source"].items()]
    if len(rows) > 1:
        rows.append(row("together", document))
    note = f"Rule: {document['rule']}. A sample is right where all of its calls are."
    if document["rows"]["count"] != document["overall"]["count"]:
        note += f" Single calls: {document['rows']['right']} of {document['rows']['count']} right."
    return FigureTable("Accuracy", ("source", "right", "overall %", "95 %", "function %"), tuple(rows), note)


def _counts(title: str, what: str, counts: Mapping[str, int]) -> FigureTable:
    return FigureTable(title, (what, "rows"), tuple((why or "(unsaid)", str(n)) for why, n in counts.items()))


def _took(document: Document) -> FigureTable:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    labels = {"latency_ms": "answer, ms", "passes": "forward passes", "tokens": "tokens through the model"}
    rows = [
        (label, *(_number(document[name].get(column)) for column in columns))
        for name, label in labels.items()
        if name in document and document[name].get("count", 1)
    ]
    note = f"One after the other; {WARM_UP} answers before them are not counted."
    return FigureTable("What an answer took", ("", *columns), tuple(rows), note)


def _dropped(counts: Document) -> FigureTable:
    rows = [(one["source"], one["reason"], str(one["count"])) for one in counts["dropped"]]
    rows += [(one["source"], f"kept: {one['reason']}", str(one["count"])) for one in counts["noted"]]
    return FigureTable("Left out, or not to be answered rightly", ("source", "reason", "samples"), tuple(rows))


def _percent(one: Document) -> str:
    return "–" if one["share"] is None else f"{100 * one['share']:.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
