"""The rows' own calls as answers: what conversion, rules and the number of heads leave to be reached."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rtcontrol.evaluation.run import RowSource, bfcl_is_there, limited
from rtcontrol.models.data import convert
from rtcontrol.models.data.canonical import Overflow
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sources import registry
from rtcontrol.models.data.stats import Tally
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics import bfcl
from rtcontrol.models.metrics.judge import RULES, judge
from rtcontrol.models.metrics.scores import OFFICIAL

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
