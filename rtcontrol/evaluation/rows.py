"""One evaluation: rows of a source, answered one after the other, judged, and told as one document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtcontrol.evaluation.answerers import Answerer
from rtcontrol.models.data import convert
from rtcontrol.models.data.canonical import Overflow
from rtcontrol.models.data.compression import Tokens
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sources import registry
from rtcontrol.models.data.sources.bfcl import package_folder
from rtcontrol.models.data.tally import Tally
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.metrics import bfcl, scores
from rtcontrol.models.metrics.intervals import paired
from rtcontrol.models.metrics.judge import RULES, judge
from rtcontrol.models.metrics.predictions import Prediction, Predictions, digest
from rtcontrol.models.metrics.scores import OFFICIAL, WARM_UP

DOCUMENT = 1
OVERFLOWS: dict[str, Overflow] = {"merge": "merge", "cut": "cut", "drop": "drop"}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RowSource:
    """Where rows are from (as `registry.read` takes it), where BFCL's package is, of how many samples they are taken,
    and what becomes of tools with more parameters than heads."""

    given: str
    bfcl: Path | None = None
    limit: int | None = None
    overflow: Overflow = "merge"


@dataclass
class EvalRows:
    """The rows, what became of every sample, and what is told of them."""

    rows: list[DataRow]
    tally: Tally
    source: RowSource
    told: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.told = {"source": self.source.given, "rows": len(self.rows), "digest": digest(self.rows)}

    @property
    def official(self) -> bool:
        """Whether BFCL's checker judges all of them."""
        return bool(self.rows) and all(row.check is not None for row in self.rows)

    def rule(self, given: str | None) -> str:
        """The rule that the figures are by: as given, else the official one where all rows have what it takes, the
        authors' strict one for public sets, the exact one for a file. Raises UserError."""
        if given is None:
            public = self.source.given.partition("=")[0].partition(":")[0] in registry.SETS
            return scores.OFFICIAL if self.official else "strict" if public else "exact"
        if given not in (scores.OFFICIAL, *RULES):
            raise UserError(f"Unknown rule {given!r}.", f"Choose {', '.join((scores.OFFICIAL, *RULES))}.")
        if given == scores.OFFICIAL and not self.official:
            raise UserError(
                f"{self.source.given} is not judged by BFCL's checker: not every row has its answer.",
                f"Choose {', '.join(RULES)}.",
            )
        return given


def read(source: RowSource) -> EvalRows:
    """Raises UserError for what is no source, and where no row is left."""
    tally = Tally()
    found = registry.read(source.given, registry.SourceOptions(source.bfcl))
    rows = list(limited(convert.rows(found, convert.ConvertOptions("eval", source.overflow), tally), source.limit))
    if not rows:
        dropped = "; ".join(f"{n} dropped: {reason}" for (_, reason), n in tally.dropped.most_common(3))
        raise UserError(f"{source.given} gives no row{f' ({dropped})' if dropped else ''}.", "Give another source.")
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.id] = seen.get(row.id, 0) + 1
    if twice := [name for name, count in seen.items() if count > 1]:
        raise UserError(f"{source.given} has two rows called {twice[0]!r}.", "Give each row an id of its own.")
    return EvalRows(rows, tally, source)


def limited(rows: Iterable[DataRow], limit: int | None) -> Iterator[DataRow]:
    """The rows of the first so many samples."""
    seen: set[str] = set()
    for row in rows:
        seen.add(row.sample)
        if limit is not None and len(seen) > limit:
            return
        yield row


def answer_all(rows: Sequence[DataRow], answerer: Answerer, kept: Predictions, told: Progress) -> None:
    """Answers those that have none yet, one after the other; first some whose answers are not kept (of the end; what
    is known of them then is forgotten, so that no row is asked twice by who remembers it)."""
    left = [row for row in rows if row.id not in kept.found]
    done = len(rows) - len(left)
    told(done, len(rows))
    for row in left[-WARM_UP:]:
        answerer.answer(row)
    answerer.forget()
    for n, row in enumerate(left, done + 1):
        kept.add(answerer.answer(row))
        told(n, len(rows))


def document(
    found: EvalRows,
    answers: Mapping[str, Prediction],
    model: Mapping[str, Any],
    rule: str,
    tokens: Tokens | None = None,
) -> dict[str, Any]:
    """All figures of answers to all of the rows. Raises UserError where BFCL's checker is needed and is not there."""
    checked: dict[str, bfcl.CheckerAnswer] = {}
    if found.official and (rule == scores.OFFICIAL or bfcl_is_there(found.source)):
        cases = [(row.check, answers[row.id].calls) for row in found.rows if row.check is not None]
        checked = dict(zip((row.id for row in found.rows), bfcl.check(cases, found.source.bfcl), strict=True))
    judged = scores.judged(found.rows, answers, checked)
    return {
        "eval": DOCUMENT,
        "model": dict(model),
        "data": {**found.told, "counts": found.tally.to_dict()},
        **scores.scores(judged, rule, tokens),
    }


def bfcl_is_there(source: RowSource) -> bool:
    """Whether the official checker can be asked."""
    try:
        package_folder(source.bfcl)
    except UserError:
        return False
    return True


WIDTHS: dict[str, Overflow] = {"all": "merge", "six": "cut"}


def oracle(source: RowSource) -> dict[str, Any]:
    """By source: samples, and how many are right by each rule with all arguments ("all"), and where tools are cut to
    their first six parameters ("six"). Raises UserError."""
    found: dict[str, dict[str, Any]] = {}
    for width, overflow in WIDTHS.items():
        given = registry.read(source.given, registry.SourceOptions(source.bfcl))
        rows = list(limited(convert.rows(given, convert.ConvertOptions("eval", overflow), Tally()), source.limit))
        if not rows:
            raise UserError(f"{source.given} gives no row.", "Give another source.")
        verdicts = _verdicts(rows, source)
        for name, right in verdicts.items():
            samples: dict[str, dict[str, bool]] = defaultdict(dict)
            for row, ok in zip(rows, right, strict=True):
                own = samples[row.source]
                own[row.sample] = own.get(row.sample, True) and ok
            for origin, own in samples.items():
                told = found.setdefault(origin, {"samples": len(own)})
                told.setdefault(name, {})[width] = sum(own.values())
    return {"oracle": 1, "source": source.given, "by_source": found}


def _verdicts(rows: list[DataRow], source: RowSource) -> dict[str, list[bool]]:
    calls = [[] if row.call is None else [row.call] for row in rows]
    pairs = list(zip(rows, calls, strict=True))
    found = {rule: [judge(own, row, rule).right for row, own in pairs] for rule in RULES}
    cases = [(row.check, own) for row, own in pairs if row.check is not None]
    if len(cases) == len(rows) and bfcl_is_there(source):
        found = {OFFICIAL: [one.valid for one in bfcl.check(cases, source.bfcl)], **found}
    return found


REMEDY = "Give files that `rtcontrol eval --json` wrote."


def load(path: Path) -> dict[str, Any]:
    """The document in a file. Raises UserError."""
    found = read_json(path, UserError(f"There is no {path}.", REMEDY), REMEDY)
    whole = isinstance(found.get("samples"), dict) and isinstance(found.get("data"), dict)
    if found.get("eval") != DOCUMENT or not whole:
        raise UserError(f"{path} holds no figures of an evaluation.", REMEDY)
    return found


def compare(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Overall and function, paired by sample. Raises UserError where rows or rules differ."""
    if a["data"]["digest"] != b["data"]["digest"]:
        raise UserError(
            f"{names[0]} and {names[1]} answer other rows ({_data(a)}; {_data(b)}).",
            "Compare answers to the same rows: evaluate both with the same source, version and --limit.",
        )
    if a["rule"] != b["rule"]:
        raise UserError(
            f"{names[0]} is judged by the rule {a['rule']}, {names[1]} by {b['rule']}.",
            "Evaluate one of them again with the other's --rule: with --out its answers are there.",
        )
    assert set(a["samples"]) == set(b["samples"]), "the same rows have the same samples"
    ids = list(a["samples"])
    found = {}
    for k, name in enumerate(("overall", "function")):
        first, second = ([bool(one["samples"][i][k]) for i in ids] for one in (a, b))
        found[name] = paired(first, second).to_dict()
    return {"a": _named(a, names[0]), "b": _named(b, names[1]), "rule": a["rule"], "paired": found}


def _data(document: Mapping[str, Any]) -> str:
    data = document["data"]
    return f"{data.get('source')}, {data.get('rows')} rows, {data.get('digest')}"


def _named(document: Mapping[str, Any], path: str) -> str:
    model = document.get("model", {})
    return f"{model.get('name', '?')} ({model.get('way', 'answers')}; {path})"
