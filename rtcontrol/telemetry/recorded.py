"""A run that is over, as the formats take it: its report and every tick, from its record alone; and gates on that."""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
NAMES = " ".join(CAUSES)
# Counts by name: what did not happen is not in the report, and is 0.
COUNTS = {
    "misses_by_cause": NAMES,
    "misses_by_subcause": " ".join(f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses),
    "skipped_by_cause": NAMES,
    "acknowledged": "executed expired refused failed",
}


@dataclass(frozen=True)
class Gate:
    """`field` of the report against `limit`. One of which nothing was measured does not hold."""

    text: str
    field: str
    compare: str
    limit: float

    def value(self, report: Mapping[str, Any]) -> float | None:
        """What the report says; None where nothing was measured. UserError where it has no such number."""
        known = dict(numbers(report))
        if self.field not in known:
            what = f"--gate '{self.text}': the report has no number {self.field}."
            raise UserError(what, "`rtcontrol report --format json` shows all, such as latency_ms.p99.")
        return known[self.field]

    def holds(self, report: Mapping[str, Any]) -> bool:
        value = self.value(report)
        return value is not None and COMPARED[self.compare](value, self.limit)


def parse(text: str) -> Gate:
    """UserError where it is none."""
    found = GATE.fullmatch(text)
    try:
        limit = float(found[3]) if found else math.nan
    except ValueError:
        limit = math.nan
    if found is None or math.isnan(limit):
        raise UserError(f"--gate '{text}' is no gate.", "Give FIELD, a comparison, a number: 'miss_rate<=0.005'.")
    return Gate("".join(found.groups()), found[1], found[2], limit)


def numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The numbers of a report by dotted name, also those that nobody counted anything of."""
    for name, value in report.items():
        if name in COUNTS:
            for key in {*COUNTS[name].split(), *value}:
                yield f"{name}.{key}", value.get(key, 0)
        elif isinstance(value, dict):
            for key, inner in numbers(value):
                yield f"{name}.{key}", inner
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, value
        elif value is None:
            yield name, None


GIVE = "Give the folder of a run."


@dataclass(frozen=True)
class Recorded:
    """`name` tells it from the others that are reported with it."""

    name: str
    record: Path
    report: dict[str, Any]
    timeline: Timeline

    def stages(self) -> dict[str, Series]:
        """Return the time that each stage took, of all ticks that have both stamps."""
        found = {}
        for stage in STAGES:
            each = (self.timeline.stage_ms(row, stage) for row in range(len(self.timeline.k)))
            series = Series(ms for ms in each if ms == ms)
            if series.count:
                found[stage] = series
        return found

    def derived(self) -> dict[str, Any]:
        """Return what the report does not say: `stages_ms`, `what_if`."""
        stages = {name: series.summary() for name, series in self.stages().items()}
        return {"stages_ms": stages, "what_if": whatif.table(self.timeline)}


def load(given: Sequence[Path]) -> list[Recorded]:
    """Read the runs of folders or records. Raises UserError where one is none."""
    records = [record_in(path) for path in given]
    named = [(record.parent if record.stem == "record" else record).resolve() for record in records]
    common = Path(os.path.commonpath([path.parent for path in named]))  # names are as short as they differ
    return [_load(record, str(path.relative_to(common))) for record, path in zip(records, named, strict=True)]


def _load(record: Path, name: str) -> Recorded:
    timeline = Timeline()
    try:
        for event in read_record(record):
            timeline.add(event)
        run = Recorded(name, record, build(timeline.account, record.name), timeline.finish())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{record} is no record of a run ({type(error).__name__}: {error}).", GIVE) from error
    for field in ("hz", "period_ms", "deadline_ms"):
        if not isinstance(run.report[field], int | float):
            raise UserError(f"{record} is no record of a run (its header tells no {field}).", GIVE)
    if len(ks := run.timeline.k) and not 0 <= ks[0] <= ks[-1] < 1 << 32:
        raise UserError(f"{record} is no record of a run (a tick has no number).", GIVE)
    return run


def begun(runs: Sequence[Recorded], ticks: bool = False) -> None:
    """Raise UserError where one of them has no release (or, asked for `ticks`, its record none): nothing could be said
    of it, and each gate on what was missed would hold."""
    for run in runs:
        if not (len(run.timeline.k) if ticks else run.report["releases"]):
            raise UserError(
                f"{run.record} holds no tick: there is nothing to report. It was ended by {run.report['ended_by']}.",
                "Give a run that began.",
            )


def as_json(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """Return each run's report as JSON with `name`, `stages_ms`, `what_if` and `gates`; of several runs a list."""
    made = []
    for run in runs:
        judged = [{"gate": g.text, "value": g.value(run.report), "holds": g.holds(run.report)} for g in gates]
        made.append({"name": run.name, **run.report, **run.derived(), "gates": judged})
    return json.dumps(made[0] if len(made) == 1 else made, indent=2, default=str) + "\n"
