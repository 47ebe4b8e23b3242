"""Evaluate a checkpoint on the rows of a source: answer one row after another, judge the answers, and make tables."""

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
from rtcontrol.models.evaluate.judge import Answer, judge_rows, scores
from rtcontrol.models.runners import registry
from rtcontrol.models.runners.prefix_store import saving_disabled
from rtcontrol.models.runners.weights import fingerprint

DOCUMENT_VERSION = 3
WARM_UP = 5
MAX_DECIDERS = 8  # maximum number of cached deciders, one for each set of tools
Progress = Callable[[int, int], None]
Document = Mapping[str, Any]


@dataclass(frozen=True)
class EvalRows:
    """The rows of a source (a data set or a file of rows), and counts of its samples."""

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
        """Return the rule for judging answers: "strict" for public data sets, "exact" for a file of rows."""
        return "strict" if self.source.partition("=")[0].partition(":")[0] in sets.SETS else "exact"


def read_eval_rows(source: str, limit: int | None = None) -> EvalRows:
    """Read the rows of the first `limit` samples of a source (None: all). Raises UserError if it has no usable rows."""
    tally = Tally()
    rows = list(_first_samples(convert.convert_rows(sets.read_source(source), tally, "eval"), limit))
    if not rows:
        dropped = "; ".join(f"{n} dropped: {reason}" for (_, reason), n in tally.dropped.most_common(3))
        raise UserError(f"{source} gives no rows{f' ({dropped})' if dropped else ''}.", "Give another source.")
    return EvalRows(source, rows, tally)


def _first_samples(rows: Iterable[Row], limit: int | None) -> Iterator[Row]:
    samples: set[str] = set()
    for row in rows:
        samples.add(row.sample)
        if limit is not None and len(samples) > limit:
            return
        yield row


class RowAnswerer:
    """Answers rows with a checkpoint, and with the tools of each row. `about` describes the model."""

    def __init__(self, spec: DeciderSpec) -> None:
        registry.check_options(spec.engine, spec.dtype, spec.device, spec.threads)
        checkpoint, self._runner = spec.load()  # while this object refers to the runner, its weights stay loaded
        caps = self._runner.caps
        self._spec, self._metadata = spec, TrainingMetadata.load(checkpoint.folder)
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
        self._deciders: OrderedDict[tuple[str, ...], tuple[STDecider, float]] = OrderedDict()

    def answer(self, row: Row) -> Answer:
        """Return the answer to a row. A call whose confidence is below the checkpoint's gate is left out."""
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
        withheld = call is None or confidence.get("function", 1.0) < gate
        by_name = {names.get(head, head): value for head, value in confidence.items()}
        return Answer(
            row.id, () if withheld or call is None else (call,), by_name, ms, decision.forward_passes, decision.tokens
        )

    def reset(self) -> None:
        """Discard all deciders, and so the caches and guesses from earlier answers."""
        self._deciders.clear()

    def _decider(self, tools: Tools) -> tuple[STDecider, float]:
        """Return the decider for these tools (cached), and the confidence below which its calls are left out."""
        key = tuple(tool.canonical_json() for tool in tools)
        if key in self._deciders:
            self._deciders.move_to_end(key)
            return self._deciders[key]
        while len(self._deciders) >= MAX_DECIDERS:
            self._deciders.popitem(last=False)
        metadata = self._metadata if self._metadata is not None and self._metadata.knows(tools) else None
        allow_null, gate = (metadata.allow_null, metadata.gate or 0.0) if metadata is not None else (False, 0.0)
        spec = replace(self._spec, tools=tuple(tool.exact() for tool in tools), allow_null=allow_null)
        with saving_disabled():  # save no prefixes, because these tools are not used again
            self._deciders[key] = spec.build(), gate
        return self._deciders[key]


def answer_all(
    rows: Sequence[Row], answerer: RowAnswerer, save: Callable[[Answer], object], progress: Progress
) -> dict[str, Answer]:
    """Answer all rows one after another, and call `save` with each answer. Return the answers by row id. The last
    WARM_UP rows are answered before as a warm-up."""
    for row in rows[-WARM_UP:]:
        answerer.answer(row)
    answerer.reset()
    answers: dict[str, Answer] = {}
    for n, row in enumerate(rows, 1):
        answers[row.id] = answerer.answer(row)
        save(answers[row.id])
        progress(n, len(rows))
    return answers


def write_answer(file: TextIO, answer: Answer) -> None:
    """Write an answer as a line of JSON. Raises UserError if that fails, as on a full disk."""
    try:
        file.write(json.dumps(answer.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
    except OSError as error:
        raise UserError(f"{file.name} cannot be written ({error.strerror}).", "Free some disk space.") from None


def build_document(rows: EvalRows, answers: Mapping[str, Answer], model: Document) -> dict[str, Any]:
    """Return the result of an evaluation as a JSON object: model, data, and all figures."""
    data = {**rows.fingerprint, "counts": rows.tally.to_dict()}
    return {
        "eval": DOCUMENT_VERSION,
        "model": dict(model),
        "data": data,
        **scores(judge_rows(rows.rows, answers, rows.rule), rows.rule),
    }


def tables(document: Document) -> list[Table]:
    """Return the tables of an evaluation: accuracy, wrong answers by reason, cost of an answer, and dropped samples."""
    counts = document["data"]["counts"]
    left_out = [(entry["source"], entry["reason"], entry["count"]) for entry in counts["dropped"]]
    left_out += [(entry["source"], f"kept: {entry['reason']}", entry["count"]) for entry in counts["noted"]]
    tables = [
        _accuracy_table(document),
        _table("Wrong answers", ("first reason", "rows"), document["wrong"].items()),
        _cost_table(document),
        _table("Dropped samples, and kept ones without a legal answer", ("source", "reason", "samples"), left_out),
    ]
    return [table for table in tables if table.row_count]


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[Any]], note: str = "") -> Table:
    table = Table(title=title, caption=note or None, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _accuracy_table(document: Document) -> Table:
    def row(name: str, figures: Document) -> tuple[str, ...]:
        overall, function = figures["overall"], figures["function"]
        low, high = (100 * edge for edge in overall["wilson_95"])
        right = f"{overall['right']}/{overall['count']}"
        return name, right, _percent(overall["share"]), f"{low:.1f} to {high:.1f}", _percent(function["share"])

    rows = [row(name, figures) for name, figures in document["by_source"].items()]
    if len(rows) > 1:
        rows.append(row("all", document))
    note = f"Rule: {document['rule']}. A sample is right if all of its calls are."
    if document["rows"]["count"] != document["overall"]["count"]:
        note += f" Single calls: {document['rows']['right']} of {document['rows']['count']} right."
    return _table("Accuracy", ("source", "right", "overall %", "95 %", "function %"), rows, note)


def _cost_table(document: Document) -> Table:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    labels = {"latency_ms": "answer, ms", "passes": "forward passes", "tokens": "tokens through the model"}
    rows = [
        (label, *(_format_number(document[name].get(column)) for column in columns))
        for name, label in labels.items()
        if name in document and document[name].get("count", 1)
    ]
    note = f"One row after another; {WARM_UP} warm-up answers are not counted."
    return _table("Cost of an answer", ("", *columns), rows, note)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
