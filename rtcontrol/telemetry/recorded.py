"""Load finished runs from their records, and check gates (conditions such as `miss_rate<=0.005`)."""

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
from rtcontrol.telemetry.histogram import Histogram
from rtcontrol.telemetry.record_reader import read_record, record_path
from rtcontrol.telemetry.report import build_report
from rtcontrol.telemetry.timeline import STAGES, Timeline

COMPARISONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*")
# Fields of the report that map names to counts, with their names. Names that a report lacks count as 0.
COUNTS = {
    "misses_by_cause": {str(cause) for cause in CAUSES},
    "misses_by_subcause": {f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses},
    "skipped_by_cause": {str(cause) for cause in CAUSES},
    "skipped_by_subcause": {f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses},
    "acknowledged": {"executed", "expired", "refused", "failed"},
}


@dataclass(frozen=True)
class Gate:
    """A condition on a number of the report: its `field` (such as latency_ms.p99), a comparison and a `limit`."""

    text: str
    field: str
    compare: str
    limit: float

    def value(self, report: Mapping[str, Any]) -> float | None:
        """Return the number in the report, or None if it was not measured. Raises UserError for an unknown field."""
        first, _, subfield = self.field.partition(".")
        value: Any = report
        if subfield in COUNTS.get(first, ()):
            return float(report.get(first, {}).get(subfield, 0))
        for name in self.field.split("."):
            value = value.get(name, "") if isinstance(value, Mapping) else ""
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            problem = f"--gate '{self.text}': the report has no number {self.field}."
            raise UserError(problem, "`rtcontrol report --format json` shows all fields, such as latency_ms.p99.")
        return value

    def holds(self, report: Mapping[str, Any]) -> bool:
        """Return whether the number was measured and satisfies the comparison."""
        value = self.value(report)
        return value is not None and COMPARISONS[self.compare](value, self.limit)


def parse_gate(text: str) -> Gate:
    """Parse a gate from a text such as `miss_rate<=0.005`. Raises UserError if the text is not a gate."""
    match = GATE.fullmatch(text)
    if match is None:
        problem = f"--gate '{text}' is not a gate."
        raise UserError(problem, "Write a field, a comparison and a number, such as 'miss_rate<=0.005'.")
    return Gate("".join(match.groups()), match[1], match[2], float(match[3]))


@dataclass(frozen=True)
class RecordedRun:
    """A finished run. `name`: its path, without the folders that all runs of the command share."""

    name: str
    record: Path
    report: dict[str, Any]
    timeline: Timeline

    def stage_histograms(self) -> dict[str, Histogram]:
        """Return the histogram of the durations of each measured stage of a tick."""
        stages = {}
        for stage in STAGES:
            times = (self.timeline.stage_ms(row, stage) for row in range(len(self.timeline.k)))
            series = Histogram(ms for ms in times if not math.isnan(ms))
            if series.count:
                stages[stage] = series
        return stages

    def derived_figures(self) -> dict[str, Any]:
        """Return figures that report.json lacks: the durations of stages, and miss rates at other tick rates."""
        stages = {name: series.summary() for name, series in self.stage_histograms().items()}
        return {"stages_ms": stages, "what_if": whatif.estimate_rates(self.timeline)}


def load_runs(paths: Sequence[Path]) -> list[RecordedRun]:
    """Load runs from folders or record files. Raises UserError if a path has no record, or a record has no ticks."""
    records = [record_path(path) for path in paths]
    named = [(record.parent if record.stem == "record" else record).resolve() for record in records]
    common = Path(os.path.commonpath([path.parent for path in named]))  # the deepest folder that contains all paths
    return [_load_run(record, str(path.relative_to(common))) for record, path in zip(records, named, strict=True)]


def _load_run(record: Path, name: str) -> RecordedRun:
    timeline = Timeline()
    try:
        for event in read_record(record):
            timeline.add(event)
        run = RecordedRun(name, record, build_report(timeline.account, record.name), timeline.finish())
        times = [run.report[field] for field in ("hz", "period_ms", "deadline_ms")]
        ks = run.timeline.k
        if not all(isinstance(each, int | float) for each in times) or (len(ks) and not 0 <= ks[0] <= ks[-1] < 1 << 32):
            raise ValueError("its rate, deadline or tick numbers are missing or invalid")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{record} is not a record of a run ({type(error).__name__}: {error})."
        raise UserError(problem, "Specify the folder of a run.") from error
    if not len(ks):  # a report without ticks would pass every gate on misses
        problem = (
            f"{record} has no ticks, so there is nothing to report. The run was ended by {run.report['ended_by']}."
        )
        raise UserError(problem, "Specify a run that had at least one tick.")
    return run


def format_json(runs: Sequence[RecordedRun], gates: Sequence[Gate]) -> str:
    """Return the JSON text of one run's report, or of a list of several reports. Each report also has the fields
    `name`, `stages_ms`, `what_if` and `gates`."""
    reports = []
    for run in runs:
        gate_results = [{"gate": g.text, "value": g.value(run.report), "holds": g.holds(run.report)} for g in gates]
        reports.append({"name": run.name, **run.report, **run.derived_figures(), "gates": gate_results})
    return json.dumps(reports[0] if len(reports) == 1 else reports, indent=2, default=str) + "\n"
