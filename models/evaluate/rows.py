"""Evaluate a checkpoint on the rows of a source: answer one row after another, judge, and print tables."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from rich.table import Table

from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.data import convert, sets
from rtcontrol.models.data.row import Row, Tools
from rtcontrol.models.data.sample import Tally
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.evaluate.judge import Answer, judged, scores
from rtcontrol.models.runners import registry
from rtcontrol.models.runners.prefix_store import nothing_kept
from rtcontrol.models.runners.weights import fingerprint

DOCUMENT = 3
WARM_UP = 5
OPEN = 8  # sets of tools whose prefixes are kept: rows of one set mostly come together
Progress = Callable[[int, int], None]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class EvalRows:
    """The rows of a source, and counts of its samples."""

    source: str
    rows: list[Row]
    tally: Tally

    @property
    def fingerprint(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(json.dumps(row.to_dict(), sort_keys=True, ensure_ascii=False).encode() + b"\n")
        return {"source": self.source, "rows": len(self.rows), "digest": digest.hexdigest()[:16]}

    @property
    def rule(self) -> str:
        """Return the rule of the figures: the strict one for public sets, the exact one for a file."""
        return "strict" if self.source.partition("=")[0].partition(":")[0] in sets.SETS else "exact"


def read(source: str, limit: int | None = None) -> EvalRows:
    """Read the rows of the first `limit` samples. Raises UserError for an unknown source, and if no row is left."""
    tally = Tally()
    rows = list(_limited(convert.rows(sets.read(source), tally, "eval"), limit))
    if not rows:
        dropped = "; ".join(f"{n} dropped: {reason}" for (_, reason), n in tally.dropped.most_common(3))
        raise UserError(f"{source} gives no row{f' ({dropped})' if dropped else ''}.", "Give another source.")
    return EvalRows(source, rows, tally)


def _limited(rows: Iterable[Row], limit: int | None) -> Iterator[Row]:
    samples: set[str] = set()
    for row in rows:
        samples.add(row.sample)
        if limit is not None and len(samples) > limit:
            return
        yield row


class Answerer:
    """Answers rows by a checkpoint, each with its own tools; `about` describes it. Raises UserError."""

    def __init__(self, spec: DeciderSpec) -> None:
        registry.check_options(spec.engine, spec.dtype, spec.device, spec.threads)
        checkpoint, self._runner = spec.load()  # held: deciders of the same weights share the runner
        caps = self._runner.caps
        self._spec, self._learnt = spec, TrainingMetadata.of(checkpoint.folder)
        self.about: Document = {
            "name": spec.model,
            "weights": fingerprint(checkpoint.folder)[:16],
            "profile": checkpoint.template.profile,
            "engine": spec.engine,
            "device": caps.device,
            "dtype": caps.dtype,
            "parameters": caps.parameters,
            "value_tokens": spec.value_tokens,
        }
        self._open: OrderedDict[tuple[str, ...], tuple[STDecider, float]] = OrderedDict()

    def answer(self, row: Row) -> Answer:
        """Return the answer, with an error if it failed. A call below the checkpoint's gate counts as none."""
        try:
            decider, gate = self._decider(row.tools)
            start_s = time.perf_counter()
            decision = decider.decide(row.observation, row.instruction, row.history)
        except UserError as error:
            return Answer(row.id, (), error=f"refused: {error.what}")
        except DecodeError as error:
            return Answer(row.id, (), error=f"no legal call: {error}")
        ms = (time.perf_counter() - start_s) * 1e3
        call, confidence = decision.call, decision.confidence
        tool = next((tool for tool in row.tools if call is not None and tool.name == call.name), None)
        names = {} if tool is None else {ARGUMENTS[k]: s.parameters[-1].name for k, s in enumerate(tool.slots())}
        held = call is None or confidence.get("function", 1.0) < gate
        shown = {names.get(head, head): value for head, value in confidence.items()}
        return Answer(
            row.id, () if held or call is None else (call,), shown, ms, decision.forward_passes, decision.tokens
        )

    def forget(self) -> None:
        """Discard caches and guesses of earlier answers."""
        self._open.clear()

    def _decider(self, tools: Tools) -> tuple[STDecider, float]:
        """Return decider and gate for these tools, from the cache or new."""
        key = tuple(tool.canonical_json() for tool in tools)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        while len(self._open) >= OPEN:
            self._open.popitem(last=False)
        learnt = self._learnt if self._learnt is not None and self._learnt.knows(tools) else None
        allow_null, gate = (learnt.allow_null, learnt.gate or 0.0) if learnt is not None else (False, 0.0)
        spec = replace(self._spec, tools=tuple(tool.exact() for tool in tools), allow_null=allow_null)
        with nothing_kept():  # on disk: none of these tools comes again
            self._open[key] = spec.build(), gate
        return self._open[key]


def answer_all(
    rows: Sequence[Row], answerer: Answerer, keep: Callable[[Answer], object], progress: Progress
) -> dict[str, Answer]:
    """Answer all rows one after another and give each answer to `keep` at once. Some answers to the last rows come
    first, as a warm-up, and are discarded."""
    for row in rows[-WARM_UP:]:
        answerer.answer(row)
    answerer.forget()
    answers: dict[str, Answer] = {}
    for n, row in enumerate(rows, 1):
        answers[row.id] = answerer.answer(row)
        keep(answers[row.id])
        progress(n, len(rows))
    return answers


def write_answer(file: TextIO, answer: Answer) -> None:
    """Write an answer as a line. Raises UserError where it cannot be, as on a full disk: earlier lines stay."""
    try:
        file.write(json.dumps(answer.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
    except OSError as error:
        raise UserError(f"{file.name} cannot be written ({error.strerror}).", "Make room.") from None


def document(rows: EvalRows, answers: Mapping[str, Answer], model: Document) -> dict[str, Any]:
    """Return all figures of answers to all of the rows."""
    data = {**rows.fingerprint, "counts": rows.tally.to_dict()}
    return {
        "eval": DOCUMENT,
        "model": dict(model),
        "data": data,
        **scores(judged(rows.rows, answers, rows.rule), rows.rule),
    }


def tables(document: Document) -> list[Table]:
    """Return the tables of an evaluation: accuracy, what was wrong, and what answers took."""
    counts = document["data"]["counts"]
    left_out = [(entry["source"], entry["reason"], entry["count"]) for entry in counts["dropped"]]
    left_out += [(entry["source"], f"kept: {entry['reason']}", entry["count"]) for entry in counts["noted"]]
    tables = [
        _accuracy(document),
        _table("What was wrong", ("first reason", "rows"), document["wrong"].items()),
        _cost(document),
        _table("Left out, or not to be answered correctly", ("source", "reason", "samples"), left_out),
    ]
    return [table for table in tables if table.row_count]


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[Any]], note: str = "") -> Table:
    table = Table(title=title, caption=note or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _accuracy(document: Document) -> Table:
    def row(name: str, figures: Document) -> tuple[str, ...]:
        overall, function = figures["overall"], figures["function"]
        low, high = (100 * edge for edge in overall["wilson_95"])
        right = f"{overall['right']}/{overall['count']}"
        return name, right, _percent(overall["share"]), f"{low:.1f} to {high:.1f}", _percent(function["share"])

    rows = [row(name, figures) for name, figures in document["by_source"].items()]
    if len(rows) > 1:
        rows.append(row("together", document))
    note = f"Rule: {document['rule']}. A sample is right where all of its calls are."
    if document["rows"]["count"] != document["overall"]["count"]:
        note += f" Single calls: {document['rows']['right']} of {document['rows']['count']} right."
    return _table("Accuracy", ("source", "right", "overall %", "95 %", "function %"), rows, note)


def _cost(document: Document) -> Table:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    labels = {"latency_ms": "answer, ms", "passes": "forward passes", "tokens": "tokens through the model"}
    rows = [
        (label, *(_number(document[name].get(column)) for column in columns))
        for name, label in labels.items()
        if name in document and document[name].get("count", 1)
    ]
    note = f"One after the other; {WARM_UP} answers before them are not counted."
    return _table("Cost of an answer", ("", *columns), rows, note)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
