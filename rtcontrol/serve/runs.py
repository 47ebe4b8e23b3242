"""What the runs of a server's sessions leave: a record and a report of each, and the sums over all."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

from rtcontrol.envs.remote import RemotePicture
from rtcontrol.loop.config import RunConfig
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.refusals import refused_as
from rtcontrol.settings import size
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import ANSWERS, Account
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol_client.wire import Code

# By the account's names.
COUNTS = {
    "releases": "Ticks that were due.",
    "ticks": "Ticks that were started.",
    "on_time": "Ticks decided before their deadline.",
    "skipped_releases": "Ticks that were due and not started.",
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


class CountedLoop(Protocol):
    """A loop, as far as its results are looked at."""

    @property
    def account(self) -> Account: ...
    @property
    def recorder(self) -> Recorder: ...


class ServerStats:
    """Counts, misses by cause, and times in the bins of `BOUNDS_S` with their sums in seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.bins = {name: [0] * (len(BOUNDS_S) + 1) for name in TIMES}
        self.seconds = dict.fromkeys(TIMES, 0.0)

    def add(self, account: Account) -> None:
        self.counts.update({name: account.counts[name] for name in COUNTS})
        self.misses.update(dict(account.misses_by_cause))
        self.skipped.update(dict(account.by["skipped_by_cause"]))
        for name in TIMES:
            series = account.times[name]
            self.bins[name] = [a + b for a, b in zip(self.bins[name], series.bins, strict=True)]
            self.seconds[name] += series.total / 1e3


class Totals:
    """Sums over all loops of a server, those that run included; from any thread."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._over, self._open = ServerStats(), list[CountedLoop]()
        self._lock = threading.Lock()

    def start(self, loop: CountedLoop) -> None:
        """Count a loop that will run."""
        with self._lock:
            self._open.append(loop)

    def end(self, loop: CountedLoop) -> None:
        """Keep the counts of a loop that is over."""
        with self._lock:
            self._open.remove(loop)
            self._over.add(loop.account)

    def now(self) -> ServerStats:
        """Return the sums."""
        with self._lock:
            total = deepcopy(self._over)
            for loop in self._open:
                total.add(loop.account)
        return total


def open_record(
    session: str,
    run: int,
    terms: Terms,
    config: RunConfig,
    tell: Callable[[str], None],
    pictures: deque[RemotePicture] | None = None,
    **more: Any,
) -> tuple[Recorder, Path]:
    """Return the record of a session's `run`, counted from 1, and its path. `more` is for the header. Raises WireError
    where it cannot be written."""
    path = terms.options.out / session / ("record.mcap" if run == 1 else f"record-{run}.mcap")
    with refused_as(Code.INTERNAL):
        header = config.header(terms.hold_ms, terms.agent) | more
        file = RecordFile(path, size(config.record_max))
        return Recorder(file, header, tell, pictures=pictures), path


def finish(loop: CountedLoop, record: Path, wire: dict[str, Any]) -> str | None:
    """Close a run's record and write its report, with `wire` of its connection; a run without a release leaves nothing.
    Return what failed; never raise, so that the session ends in order."""
    account, recorder = loop.account, loop.recorder
    try:
        recorder.close()
        if not account.releases:
            record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                record.parent.rmdir()
            return None
        account.check()
        assert recorder.recent.fault is None, recorder.recent.fault
        result = report.build(account, record.name, recorder.lost, ticks_from=recorder.file.first_k)
        name = record.name.replace("record", "report").replace(".mcap", ".json")
        refused = report.write({**result, "wire": wire}, record.with_name(name))
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"
