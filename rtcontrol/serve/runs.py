"""Records and reports of a server's runs, and the sums over all runs."""

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

# Keys are the names in `telemetry.account`; values are the help texts of /metrics.
COUNTS = {
    "releases": "Ticks that were due.",
    "ticks": "Ticks that were started.",
    "on_time": "Ticks decided before their deadline.",
    "skipped_releases": "Ticks that were due and not started.",
    "null": "Ticks that kept the active call.",
    "held": "Ticks held back by a confidence gate, or by people.",
    "calls_acted": "Calls that acted; a tick may take several.",
    "calls_cut": "Further calls of a tick that its deadline cut.",
    "decided_by_first": "Ticks decided by the first decider, if there is a backup.",
    "decided_by_backup": "Ticks decided by the backup.",
    **{f"first_{outcome}": f"Answers of the first decider that were {outcome}." for outcome in ANSWERS},
}
TIMES = {
    "latency_ms": "Time from a tick's release until its call takes effect.",
    "decide_ms": "Time of a decision in the decoder.",
    "wake_ms": "How late the loop woke for a release.",
    "observation_age_ms": "The observation's age when the call takes effect.",
}


class CountedLoop(Protocol):
    """The part of a loop's interface that `Totals` and `finish` use."""

    @property
    def account(self) -> Account: ...
    @property
    def recorder(self) -> Recorder: ...


class ServerStats:
    """Counts, misses by cause, and time histograms with the bins of `BOUNDS_S` and sums in seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.bins = {name: [0] * (len(BOUNDS_S) + 1) for name in TIMES}
        self.seconds = dict.fromkeys(TIMES, 0.0)

    def add(self, account: Account) -> None:
        self.counts.update({name: account.counts[name] for name in COUNTS})
        self.misses.update(dict(account.misses_by_cause))
        self.skipped.update(dict(account.breakdowns["skipped_by_cause"]))
        for name in TIMES:
            series = account.times[name]
            self.bins[name] = [a + b for a, b in zip(self.bins[name], series.bins, strict=True)]
            self.seconds[name] += series.total / 1e3


class Totals:
    """Sums over all loops of a server, including the running ones. Any thread may use them."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._over, self._open = ServerStats(), list[CountedLoop]()
        self._lock = threading.Lock()

    def start(self, loop: CountedLoop) -> None:
        """Include a loop that is about to run."""
        with self._lock:
            self._open.append(loop)

    def end(self, loop: CountedLoop) -> None:
        """Add the counts of a loop that has ended."""
        with self._lock:
            self._open.remove(loop)
            self._over.add(loop.account)

    def now(self) -> ServerStats:
        """Return the current sums over all loops."""
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
    """Return the recorder of a session's `run` (the first is 1) and the path of the file. `more` goes into the header.
    Raises WireError if the file cannot be written."""
    path = terms.options.out / session / ("record.mcap" if run == 1 else f"record-{run}.mcap")
    with refused_as(Code.INTERNAL):
        header = config.header(terms.hold_ms, terms.agent) | more
        file = RecordFile(path, size(config.record_max))
        return Recorder(file, header, tell, pictures=pictures), path


def finish(loop: CountedLoop, record: Path, wire: dict[str, Any]) -> str | None:
    """Close a run's record and write the report, with `wire` about the connection. Delete the record of a run without
    ticks. Return what failed, if anything; never raise, so that the session ends in order."""
    account, recorder = loop.account, loop.recorder
    try:
        recorder.close()
        if not account.releases:
            record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                record.parent.rmdir()
            return None
        account.assert_consistent()
        assert recorder.live_state.fault is None, recorder.live_state.fault
        result = report.build(account, record.name, recorder.lost_events, ticks_from=recorder.file.first_k)
        name = record.name.replace("record", "report").replace(".mcap", ".json")
        refused = report.write({**result, "wire": wire}, record.with_name(name))
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"
