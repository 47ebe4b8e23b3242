"""What the sessions of a server come to together; counts of those that are over stay."""

from __future__ import annotations

import threading
import time
from collections import Counter
from copy import deepcopy
from typing import Protocol

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
        self.counts.update({name: getattr(account, name) for name in COUNTS})
        self.misses.update(dict(account.misses_by_cause))
        self.skipped.update(dict(account.skipped_by_cause))
        for name in TIMES:
            series = account.times[name]
            self.bins[name] = [a + b for a, b in zip(self.bins[name], series.bins, strict=True)]
            self.seconds[name] += series.total / 1e3


class Totals:
    """What all loops of a server came to, those that run included; from any thread."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self._over, self._open = ServerStats(), list[CountedLoop]()
        self._lock = threading.Lock()

    def begin(self, loop: CountedLoop) -> None:
        """The loop will run."""
        with self._lock:
            self._open.append(loop)

    def end(self, loop: CountedLoop) -> None:
        """It is over: its counts stay."""
        with self._lock:
            self._open.remove(loop)
            self._over.add(loop.account)

    def now(self) -> ServerStats:
        """Return the sum."""
        with self._lock:
            total = deepcopy(self._over)
            for loop in self._open:
                total.add(loop.account)
        return total
