"""Notices when the whole process stood still: a garbage collection, or a machine that was stopped or starved."""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import Any, Self

from rtcontrol.hosts.heartbeat import Heartbeat

# Begin, end and kind (gc, stall) of a pause; CLOCK_MONOTONIC nanoseconds.
Pause = tuple[int, int, str]


class PauseWatch(Heartbeat):
    """The heartbeat of the loop's process, and the collector's own callbacks.

    A heartbeat that comes late by more than `threshold_ns` is a pause; so is every collection longer than 1 ms. The
    scale follows the period: a stall that a 16 Hz loop never feels matters at 100 Hz.
    """

    GC_MIN_NS = 1_000_000

    def __init__(self, period_ns: int) -> None:
        super().__init__(
            min(max(period_ns // 10, 1_000_000), 5_000_000), min(max(period_ns // 5, 2_000_000), 10_000_000)
        )
        self._collections: deque[tuple[int, int]] = deque(maxlen=64)
        self._gc_began_ns = 0
        self._slow_writes: deque[tuple[int, int]] = deque(maxlen=64)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        gc.callbacks.remove(self._on_gc)

    def pauses(self, begin_ns: int, end_ns: int) -> list[Pause]:
        """Those between two instants, clipped to them, one that is just ending included, in order."""
        collections = list(self._collections)
        now = time.monotonic_ns()
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            collections.append((began, now))
        found = [(b, e, "gc") for b, e in collections] + [(b, e, "stall") for b, e in self.gaps(begin_ns)]
        return sorted((max(b, begin_ns), min(e, end_ns), k) for b, e, k in found if e > begin_ns and b < end_ns)

    def wrote(self, begin_ns: int, end_ns: int) -> None:
        """The record's thread waited so long for the disk."""
        self._slow_writes.append((begin_ns, end_ns))

    def writes(self, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """The slow writes of the record between two instants."""
        return [(b, e) for b, e in tuple(self._slow_writes) if e > begin_ns and b < end_ns]

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now
            return
        if now - self._gc_began_ns > self.GC_MIN_NS:
            self._collections.append((self._gc_began_ns, now))
        self._gc_began_ns = 0
