"""A run that is over, as the formats take it: its report and every tick, from its record alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import whatif
from rtcontrol.telemetry.gates import Gate
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.record_reader import read_stamped, record_in
from rtcontrol.telemetry.report import of
from rtcontrol.telemetry.timeline import STAGES, Timeline

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
    names = names_of([record.parent if record.stem == "record" else record for record in records])
    return [_load(record, name) for record, name in zip(records, names, strict=True)]


def _load(record: Path, name: str) -> Recorded:
    timeline = Timeline()
    try:
        for timeline.written_ns, event in read_stamped(record):
            timeline.add(event)
        run = Recorded(name, record, of(timeline, record), timeline.finish())
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


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return names as short as they differ: the last parts of each."""
    whole = [path.resolve().parts for path in paths]
    names = [["/".join(parts[-n:]) for parts in whole] for n in range(1, max(map(len, whole)) + 1)]
    return next((made for made in names if len({*made}) == len({*whole})), names[0])


def as_json(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """Return each run's report as JSON with `name`, `stages_ms`, `what_if` and `gates`; of several runs a list."""
    made = []
    for run in runs:
        judged = [{"gate": g.text, "value": g.value(run.report), "holds": g.holds(run.report)} for g in gates]
        made.append({"name": run.name, **run.report, **run.derived(), "gates": judged})
    return json.dumps(made[0] if len(made) == 1 else made, indent=2, default=str) + "\n"
