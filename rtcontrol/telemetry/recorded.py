"""A run that is over, as the formats take it: its report and every tick, from its record alone."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import whatif
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.record_reader import read_stamped, record_in
from rtcontrol.telemetry.report import of
from rtcontrol.telemetry.timeline import STAGES, Timeline

# So long before a burst is looked for what may have led to it.
BEFORE_S = 2.0
LISTED = 10


@dataclass(frozen=True)
class Burst:
    """Releases `begin` up to `end`, one past the last; both ends are missed, `missed` of them in all."""

    begin: int
    end: int
    missed: int


def bursts(missed: Iterable[tuple[int, int]], gap: int) -> list[Burst]:
    """The bursts of missed releases, given as ranges in order: two misses with at most `gap` releases on time in a row
    between them are of one burst."""
    found: list[Burst] = []
    for begin, end in missed:
        if found and begin - found[-1].end <= gap:
            found[-1] = Burst(found[-1].begin, end, found[-1].missed + end - begin)
        else:
            found.append(Burst(begin, end, end - begin))
    return found


def worst(found: Iterable[Burst], most: int = LISTED) -> list[Burst]:
    """Those with the most misses, the worst first; of equals the shorter, then the earlier."""
    return sorted(found, key=lambda b: (-b.missed, b.end - b.begin, b.begin))[:most]


def described(timeline: Timeline, most: int = LISTED) -> list[dict[str, Any]]:
    """The worst bursts of a finished timeline, as the report lists them: those with more than a quarter of a second
    (two releases at least) on time between them are two. `recovery_ms` is from the first missed release to the effect
    of the first tick on time after the last; None where the run ended before."""
    hz = float(timeline.header.get("hz") or 16.0)
    found = bursts(timeline.miss_runs, max(2, round(hz / 4)))
    # Of a record that was full, the first ticks are counted and not known any more.
    found = worst([b for b in found if len(timeline.k) and b.end >= timeline.k[0]], most)
    return [_describe(timeline, burst, 1.0 / hz) for burst in found]


def _describe(timeline: Timeline, burst: Burst, period_s: float) -> dict[str, Any]:
    first, over = timeline.row(burst.begin), timeline.row(burst.end)
    causes: Counter[str] = Counter()
    skipped = timeline.numbers["skipped"]
    for row in range(first, min(over + 1, len(timeline.k))):
        if row < over and (cause := timeline.words["cause"][row]):
            subcause = timeline.words["subcause"][row]
            causes[f"{cause}.{subcause}" if subcause else cause] += 1
        # Those that were skipped are told by the tick after them.
        if skipped[row] > 0 and timeline.k[row] - skipped[row] < burst.end:
            why = filter(None, (timeline.words["skip_cause"][row], timeline.words["skip_subcause"][row]))
            causes[".".join(("skipped", *why))] += int(skipped[row])
    begin_s, end_s = _release_s(timeline, burst.begin, period_s), _release_s(timeline, burst.end - 1, period_s)
    recovery_ms = None
    if over < len(timeline.k):
        latency = timeline.numbers["latency_ms"][over]
        recovery_ms = round(
            1e3 * (timeline.numbers["t_s"][over] - begin_s) + (0 if math.isnan(latency) else latency), 3
        )
    times = [t_s for t_s, _ in timeline.marks]
    marks = timeline.marks[bisect_left(times, begin_s - BEFORE_S) : bisect_right(times, begin_s)]
    return {
        "begin": burst.begin,
        "end": burst.end,
        "missed": burst.missed,
        "t_s": round(begin_s, 6),
        "seconds": round(end_s - begin_s + period_s, 6),
        "causes": dict(causes.most_common()),
        "before": [{"t_s": t_s, "what": what} for t_s, what in marks[-3:]],
        "recovery_ms": recovery_ms,
    }


def _release_s(timeline: Timeline, k: int, period_s: float) -> float:
    """When release `k` was due: by the nearest tick that began, as a world that waits has no grid."""
    row = min(timeline.row(k), len(timeline.k) - 1)
    return timeline.numbers["t_s"][row] + (k - timeline.k[row]) * period_s


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
            "bursts": described(self.timeline),
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
