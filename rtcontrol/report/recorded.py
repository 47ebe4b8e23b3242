"""A run that is over, as the formats take it: its report and every tick, from its record alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.record.reading import read_stamped, record_in
from rtcontrol.report import bursts, whatif
from rtcontrol.report.report import of
from rtcontrol.report.series import Series
from rtcontrol.report.timeline import STAGES, Timeline

# Windows of so many releases are looked at: (m,k).
WINDOWS = tuple(2**n for n in range(1, 12))


@dataclass(frozen=True)
class Recorded:
    """`name` tells it from the others that are reported with it."""

    name: str
    record: Path
    report: dict[str, Any]
    timeline: Timeline

    def stages(self) -> dict[str, Series]:
        """The time that each stage took, of all ticks that have both stamps."""
        found = {}
        for stage in STAGES:
            each = (self.timeline.stage_ms(row, stage) for row in range(len(self.timeline.k)))
            series = Series(ms for ms in each if ms == ms)
            if series.count:
                found[stage] = series
        return found

    def derived(self) -> dict[str, Any]:
        """What the report does not say: `stages_ms`, `windows` (most misses among any k releases), `bursts`,
        `what_if`."""
        runs, releases = self.timeline.miss_runs, self.timeline.releases
        return {
            "stages_ms": {name: series.summary() for name, series in self.stages().items()},
            "windows": [{"m": runs.worst(k), "k": k} for k in WINDOWS if k <= releases],
            "bursts": bursts.described(self.timeline),
            "what_if": whatif.table(self.timeline),
        }


def load(given: Sequence[Path]) -> list[Recorded]:
    """The runs of folders or records. UserError where one is none."""
    records = [record_in(path) for path in given]
    names = names_of([record.parent if record.stem == "record" else record for record in records])
    return [_timed(_load(record, name)) for record, name in zip(records, names, strict=True)]


def _timed(run: Recorded) -> Recorded:
    for name in ("hz", "period_ms", "deadline_ms"):
        if not isinstance(run.report[name], int | float):
            raise UserError(
                f"{run.record} is no record of a run (its header tells no {name}).", "Give the folder of a run."
            )
    if len(ks := run.timeline.k) and not 0 <= ks[0] <= ks[-1] < 1 << 32:
        raise UserError(f"{run.record} is no record of a run (a tick has no number).", "Give the folder of a run.")
    return run


def _load(record: Path, name: str) -> Recorded:
    timeline = Timeline()
    try:
        for timeline.written_ns, event in read_stamped(record):
            timeline.add(event)
        return Recorded(name, record, of(timeline, record), timeline.finish())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{record} is no record of a run ({type(error).__name__}: {error}).", "Give the folder of a run."
        ) from error


def begun(runs: Sequence[Recorded], ticks: bool = False) -> None:
    """UserError where one of them has no release (or, asked for `ticks`, its record none): nothing could be said of
    it, and each gate on what was missed would hold."""
    for run in runs:
        if not (len(run.timeline.k) if ticks else run.report["releases"]):
            raise UserError(
                f"{run.record} holds no tick: there is nothing to report. It was ended by {run.report['ended_by']}.",
                "Give a run that began.",
            )


def names_of(paths: Sequence[Path]) -> list[str]:
    """As short as they differ: the last parts of each."""
    whole = [path.resolve().parts for path in paths]
    names = [["/".join(parts[-n:]) for parts in whole] for n in range(1, max(map(len, whole)) + 1)]
    return next((made for made in names if len({*made}) == len({*whole})), names[0])
