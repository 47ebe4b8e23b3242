"""Load a finished run from its record, with the report and every tick, and check gates on the report."""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import whatif
from rtcontrol.telemetry.causes import CAUSES
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.record_reader import read_record, record_in
from rtcontrol.telemetry.report import build
from rtcontrol.telemetry.timeline import STAGES, Timeline

COMPARED = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*")
# Counts by name. A name that is missing in the report counts as 0.
COUNTS = {
    "misses_by_cause": {str(cause) for cause in CAUSES},
    "misses_by_subcause": {f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses},
    "skipped_by_cause": {str(cause) for cause in CAUSES},
    "acknowledged": {"executed", "expired", "refused", "failed"},
}


@dataclass(frozen=True)
class Gate:
    """A gate that compares a `field` of the report (with dots for nested fields) with a `limit`. An unmeasured field
    fails."""

    text: str
    field: str
    compare: str
    limit: float

    def value(self, report: Mapping[str, Any]) -> float | None:
        """Return the number in the report, or None if it was not measured. Raises UserError if there is no such
        number."""
        first, _, rest = self.field.partition(".")
        value: Any = report
        if rest in COUNTS.get(first, ()):
            return float(report.get(first, {}).get(rest, 0))
        for name in self.field.split("."):
            value = value.get(name, "") if isinstance(value, Mapping) else ""
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            problem = f"--gate '{self.text}': the report has no number {self.field}."
            raise UserError(problem, "`rtcontrol report --format json` shows all, such as latency_ms.p99.")
        return value

    def holds(self, report: Mapping[str, Any]) -> bool:
        """Return whether the number was measured and satisfies the comparison."""
        value = self.value(report)
        return value is not None and COMPARED[self.compare](value, self.limit)


def parse(text: str) -> Gate:
    """Return the gate for a text such as `miss_rate<=0.005`. Raises UserError for another form."""
    match = GATE.fullmatch(text)
    if match is None:
        problem = f"--gate '{text}' is not a gate."
        raise UserError(problem, "Give FIELD, a comparison, a number: 'miss_rate<=0.005'.")
    return Gate("".join(match.groups()), match[1], match[2], float(match[3]))


@dataclass(frozen=True)
class Recorded:
    """A finished run. `name` distinguishes it from the other runs in the same report."""

    name: str
    record: Path
    report: dict[str, Any]
    timeline: Timeline

    def stages(self) -> dict[str, Series]:
        """Return the times of each stage over all ticks that have both stamps."""
        stages = {}
        for stage in STAGES:
            times = (self.timeline.stage_ms(row, stage) for row in range(len(self.timeline.k)))
            series = Series(ms for ms in times if not math.isnan(ms))
            if series.count:
                stages[stage] = series
        return stages

    def derived(self) -> dict[str, Any]:
        """Return figures that the report lacks: `stages_ms` and `what_if`."""
        stages = {name: series.summary() for name, series in self.stages().items()}
        return {"stages_ms": stages, "what_if": whatif.table(self.timeline)}


def load(paths: Sequence[Path]) -> list[Recorded]:
    """Return the runs in folders or record files. Raises UserError for another file, or one without ticks."""
    records = [record_in(path) for path in paths]
    named = [(record.parent if record.stem == "record" else record).resolve() for record in records]
    common = Path(os.path.commonpath([path.parent for path in named]))  # names leave out the common part
    return [_load(record, str(path.relative_to(common))) for record, path in zip(records, named, strict=True)]


def _load(record: Path, name: str) -> Recorded:
    timeline = Timeline()
    try:
        for event in read_record(record):
            timeline.add(event)
        run = Recorded(name, record, build(timeline.account, record.name), timeline.finish())
        times = [run.report[field] for field in ("hz", "period_ms", "deadline_ms")]
        ks = run.timeline.k
        if not all(isinstance(each, int | float) for each in times) or (len(ks) and not 0 <= ks[0] <= ks[-1] < 1 << 32):
            raise ValueError("it has no times, or no numbers of ticks")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{record} is not a record of a run ({type(error).__name__}: {error})."
        raise UserError(problem, "Give the folder of a run.") from error
    if not len(ks):  # without ticks, every gate on misses would hold
        problem = f"{record} holds no tick: there is nothing to report. It was ended by {run.report['ended_by']}."
        raise UserError(problem, "Give a run that started.")
    return run


def as_json(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """Return the report of each run as JSON with `name`, `stages_ms`, `what_if` and `gates`; for several runs a
    list."""
    reports = []
    for run in runs:
        judged = [{"gate": g.text, "value": g.value(run.report), "holds": g.holds(run.report)} for g in gates]
        reports.append({"name": run.name, **run.report, **run.derived(), "gates": judged})
    return json.dumps(reports[0] if len(reports) == 1 else reports, indent=2, default=str) + "\n"
