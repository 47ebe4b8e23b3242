"""What makes Python steady enough: no garbage collection inside a tick."""

from __future__ import annotations

import gc
import sys
import time
from typing import Self

# A thread that waits for the interpreter asks for it after this long. A decision takes it again for each operation:
# next to a thread that computes, Python's 5 ms would be felt at 16 Hz, and 0.5 ms at 30.
SWITCH_INTERVAL_S = 0.0001


class SlackCollector:
    """Takes over garbage collection while it is entered: everything so far is frozen, nothing is collected by itself,
    and `collect` uses idle time between ticks.

    An older generation is collected when its turn has come and its last collections fit four times into the slack. For
    one that is overdue, by number or by age, once is enough, and in the end it is collected all the same: the longer it
    waits, the more there is to look through, and a single slow collection must not be the last one.
    """

    THRESHOLD = 2_000
    FORCED = 200_000
    MARGIN_NS = 2_000_000
    # Rounds between two collections of each generation; it is overdue after twice, forced after four times as many.
    TURNS = (1, 8, 32)
    OVERDUE_NS = 60_000_000_000

    def __init__(self) -> None:
        self._cost_ns = [0, 0, 0]
        self._rounds = [0, 0, 0]  # since it was collected
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
        if not self._was_frozen:  # by a caller that continues after the run
            gc.unfreeze()
        sys.setswitchinterval(self._switch_s)
        if self._was_enabled:
            gc.enable()

    def collect(self, slack_ns: int) -> None:
        young = gc.get_count()[0]
        if young < self.THRESHOLD or (slack_ns < self.MARGIN_NS and young < self.FORCED):
            return
        self._rounds = [rounds + 1 for rounds in self._rounds]
        began = time.monotonic_ns()
        generation = next(g for g in (2, 1, 0) if self._due(g, slack_ns, began))
        gc.collect(generation)
        took_ns = time.monotonic_ns() - began
        self._cost_ns[generation] = max(took_ns, (self._cost_ns[generation] + took_ns) // 2)
        self._rounds[: generation + 1] = [0] * (generation + 1)
        if generation == 2:
            self._full_ns = began

    def _due(self, generation: int, slack_ns: int, now_ns: int) -> bool:
        turns, cost_ns = self._rounds[generation] / self.TURNS[generation], self._cost_ns[generation]
        overdue = turns >= 2 or (generation == 2 and now_ns - self._full_ns >= self.OVERDUE_NS)
        fits = 4 * cost_ns <= slack_ns or (overdue and cost_ns <= slack_ns)
        return generation == 0 or turns >= 4 or ((turns >= 1 or overdue) and fits)
