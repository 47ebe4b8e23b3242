"""What the sessions of a server come to together; counts of those that are over stay."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rtcontrol.hosts.protocol import Host
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import ANSWERS, Account
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol.telemetry.recorder import Recorder

# By the account's names.
COUNTS = {
    "releases": "Ticks that were due.",
    "ticks": "Ticks that were begun.",
    "on_time": "Ticks decided before their deadline.",
    "skipped_releases": "Ticks that were due and not begun.",
    "null": "Ticks that left the call in force.",
    "held": "Ticks held back by a confidence gate, or by people.",
    "calls_acted": "Calls that acted; a tick may take several.",
    "calls_cut": "Further calls of a tick that its deadline cut.",
    "decided_by_first": "Ticks decided by the first decider, where there is a backup.",
    "decided_by_backup": "Ticks decided by the backup.",
    **{f"first_{outcome}": f"Answers of the first decider that were {outcome}." for outcome in ANSWERS},
}
TIMES = {
    "latency_ms": "From a tick's release to the effect of its call.",
    "decide_ms": "A decision, in the decoder.",
    "wake_ms": "How late the loop woke for a release.",
    "observation_age_ms": "Of the observation, at the effect.",
}


class ServerStats:
    """Counts, misses by cause, and times in the bins of `BOUNDS_S` with their sums in seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.bins = {name: [0] * (len(BOUNDS_S) + 1) for name in TIMES}
        self.seconds = dict.fromkeys(TIMES, 0.0)

    def add(self, account: Account) -> None:
        self.counts.update({name: getattr(account, name) for name in COUNTS})
        self.misses.update(dict(account.misses_by_cause))
        self.skipped.update(dict(account.skipped_by_cause))
        for name in TIMES:
            series = account.times[name]
            self.bins[name] = [a + b for a, b in zip(self.bins[name], series.bins, strict=True)]
            self.seconds[name] += series.total / 1e3

    def copy(self) -> ServerStats:
        other = ServerStats()
        for mine, theirs in ((self.counts, other.counts), (self.misses, other.misses), (self.skipped, other.skipped)):
            theirs.update(mine)
        other.bins, other.seconds = {name: list(bins) for name, bins in self.bins.items()}, dict(self.seconds)
        return other


class CountedLoop(Protocol):
    """A loop, as far as what it came to is looked at."""

    @property
    def account(self) -> Account: ...

    @property
    def recorder(self) -> Recorder: ...

    @property
    def host(self) -> Host: ...


Loop = TypeVar("Loop", bound=CountedLoop)


@dataclass(frozen=True, slots=True)
class Run(Generic[Loop]):
    """One life of a session's loop."""

    loop: Loop
    recorder: Recorder
    record: Path


def write_report(run: Run[Any], wire: Callable[[], dict[str, Any]]) -> str | None:
    """Write the run's report, with what `wire` says of its connection; a run without a release leaves nothing. Gives
    what went wrong; never raises, so that the session ends in order."""
    account = run.loop.account
    try:
        if not account.releases:
            run.record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                run.record.parent.rmdir()
            return None
        account.check()
        assert run.recorder.fault is None, run.recorder.fault
        told = report.build(account, run.record.name, run.recorder.lost, ticks_from=run.recorder.ticks_from)
        told["wire"] = wire()
        path = run.record.with_name(run.record.name.replace("record", "report").replace(".mcap", ".json"))
        refused = report.write(told, path)
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"
