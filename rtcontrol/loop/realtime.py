"""Make Python's timing steady enough for real time: collect garbage only between ticks."""

from __future__ import annotations

import gc
import sys
import time
from typing import Self

# The interpreter's switch interval: how long a thread may keep the interpreter's lock (GIL) while others wait. Each
# operation of a decision acquires the lock again, so Python's default of 5 ms would make decisions late at 16 Hz.
SWITCH_INTERVAL_S = 0.0001


class SlackCollector:
    """A context in which Python's automatic garbage collection is off, and `collect` collects in idle time.

    Each round collects the young objects. A full collection is due after `FULL_ROUNDS` rounds or `FULL_NS`. It is
    delayed until the idle time is long enough, but for at most four times `FULL_ROUNDS`."""

    THRESHOLD, FORCED = 2_000, 200_000  # from 2,000 young objects on collect if there is time, from 200,000 on always
    MARGIN_NS = 2_000_000
    FULL_ROUNDS, FULL_NS = 32, 60_000_000_000

    def __init__(self) -> None:
        self._rounds = self._cost_ns = 0  # rounds since the last full collection, and its usual duration
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
        if not self._was_frozen:  # allow the caller's program to collect these objects again
            gc.unfreeze()
        sys.setswitchinterval(self._switch_s)
        if self._was_enabled:
            gc.enable()

    def collect(self, slack_ns: int) -> None:
        """Collect garbage if there are enough young objects, and if the idle time `slack_ns` is long enough."""
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
