"""Make Python steady enough for real time: no garbage collection within a tick."""

from __future__ import annotations

import gc
import sys
import time
from typing import Self

# A thread that waits for the interpreter requests it after this time. A decision needs the interpreter again for each
# operation: next to a computing thread, Python's 5 ms would cause delays at 16 Hz, and 0.5 ms at 30 Hz.
SWITCH_INTERVAL_S = 0.0001


class SlackCollector:
    """A context that takes over garbage collection: Python collects nothing by itself, and `collect` uses idle time
    between ticks.

    Each round collects the young objects. One in `FULL_ROUNDS`, or the first after `FULL_NS`, collects all objects if
    the last full collections would fit into the slack, and after four times as long in any case.
    """

    THRESHOLD, FORCED = 2_000, 200_000  # young objects that are worth a round, and that force one
    MARGIN_NS = 2_000_000
    FULL_ROUNDS, FULL_NS = 32, 60_000_000_000

    def __init__(self) -> None:
        self._rounds = self._cost_ns = 0  # rounds and time since the last full collections, and their durations
        self._full_ns = time.monotonic_ns()
        self._was_enabled = self._was_frozen = False
        self._switch_s = 0.0

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        self._was_frozen = gc.get_freeze_count() > 0
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.collect()
        gc.freeze()
        gc.disable()
        self._full_ns = time.monotonic_ns()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._was_frozen:  # for a caller that continues after the run
            gc.unfreeze()
        sys.setswitchinterval(self._switch_s)
        if self._was_enabled:
            gc.enable()

    def collect(self, slack_ns: int) -> None:
        young = gc.get_count()[0]
        if young < self.THRESHOLD or (slack_ns < self.MARGIN_NS and young < self.FORCED):
            return
        self._rounds += 1
        began = time.monotonic_ns()
        due = self._rounds >= self.FULL_ROUNDS or began - self._full_ns >= self.FULL_NS
        if not due or (self._cost_ns > slack_ns and self._rounds < 4 * self.FULL_ROUNDS):
            gc.collect(0)
            return
        gc.collect()
        took_ns = time.monotonic_ns() - began
        self._cost_ns = max(took_ns, (self._cost_ns + took_ns) // 2)
        self._rounds, self._full_ns = 0, began
