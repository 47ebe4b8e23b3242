"""Create the record and the report of a session's run, and add up the counts of all runs for /metrics."""

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
from rtcontrol.serve.negotiate import SessionTerms
from rtcontrol.serve.refusals import as_wire_error
from rtcontrol.settings import record_bytes
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import ANSWERS, Account
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol_client.wire import Code

# By name of a count in `telemetry.account`: its help text in /metrics.
COUNTS = {
    "releases": "Ticks that were due.",
    "ticks": "Ticks that were started.",
    "on_time": "Ticks decided before their deadline.",
    "skipped_releases": "Ticks that were due, but did not start.",
    "null": "Ticks whose decision was to keep the active call.",
    "held": "Ticks whose call a confidence gate or a person withheld.",
    "calls_acted": "Calls that were executed; a tick may have several.",
    "calls_cut": "Further calls of a tick that its deadline cancelled.",
    "decided_by_first": "Ticks decided by the first decider, if there is a backup.",
    "decided_by_backup": "Ticks decided by the backup.",
    **{f"first_{outcome}": f"Answers of the first decider with the outcome {outcome}." for outcome in ANSWERS},
}
TIMES = {
    "latency_ms": "Time from a tick's release until its call takes effect.",
    "decide_ms": "Time of a decision in the decoder.",
    "wake_ms": "How late the loop woke for a release.",
    "observation_age_ms": "The observation's age when the call takes effect.",
}


class CountedLoop(Protocol):
    """The attributes of a loop that `ServerTotals` and `write_report` read."""

    @property
    def account(self) -> Account: ...
    @property
    def recorder(self) -> Recorder: ...


class ServerStats:
    """Counts of ticks and of misses by cause, and histograms of times. `bins`: for each time, the counts between
    `BOUNDS_S`; `seconds`: for each time, the sum."""

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


class ServerTotals:
    """Sums over all loops of a server, both ended and running. Any thread may call the methods."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self._ended, self._running = ServerStats(), list[CountedLoop]()
        self._lock = threading.Lock()

    def add_running(self, loop: CountedLoop) -> None:
        """Add a loop that is about to run."""
        with self._lock:
            self._running.append(loop)

    def move_to_ended(self, loop: CountedLoop) -> None:
        """Move the counts of a loop that has ended to the sums of ended loops."""
        with self._lock:
            self._running.remove(loop)
            self._ended.add(loop.account)

    def current(self) -> ServerStats:
        """Return the current sums over all loops."""
        with self._lock:
            total = deepcopy(self._ended)
            for loop in self._running:
                total.add(loop.account)
        return total


def open_recorder(
    session: str,
    run: int,
    terms: SessionTerms,
    config: RunConfig,
    log_line: Callable[[str], None],
    pictures: deque[RemotePicture] | None = None,
    **more: Any,
) -> tuple[Recorder, Path]:
    """Return the recorder of a session's run, and the path of the record file. `run`: the number of the run, from 1.

    `more`: further fields of the record's header. Raises WireError if the file cannot be written."""
    path = terms.options.out / session / ("record.mcap" if run == 1 else f"record-{run}.mcap")
    with as_wire_error(Code.INTERNAL):
        header = config.header(terms.hold_ms, terms.agent) | more
        file = RecordFile(path, record_bytes(config.record_max))
        return Recorder(file, header, log_line, pictures=pictures), path


def write_report(loop: CountedLoop, record: Path, wire: dict[str, Any]) -> str | None:
    """Close a run's record, and write the report next to it. `wire`: the connection's fields of the report. If the run
    had no ticks, delete the record instead. Return None, or the text of an error; never raises."""
    account, recorder = loop.account, loop.recorder
    try:
        recorder.close()
        if not account.releases:
            record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                record.parent.rmdir()
            return None
        account.assert_consistent()
        if recorder.live_state.fault is not None:
            raise AssertionError(recorder.live_state.fault)
        result = report.build_report(account, record.name, recorder.lost_events, ticks_from=recorder.file.first_k)
        name = record.name.replace("record", "report").replace(".mcap", ".json")
        problem = report.write_report({**result, "wire": wire}, record.with_name(name))
        return problem and f"the report could not be written ({problem})"
    except Exception as error:
        return f"the report failed ({type(error).__name__}: {error})"
