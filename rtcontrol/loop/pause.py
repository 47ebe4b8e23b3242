"""Notices when the whole process stood still: a garbage collection, or a machine that was stopped or starved."""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from typing import Any, Literal, Self

PauseKind = Literal["gc", "stall"]


class PauseWatch:
    """A heartbeat thread that must get its turn every few milliseconds, and the collector's own callbacks.

    A heartbeat that comes late by more than `threshold_ns` is a pause; so is every collection longer than 1 ms. The
    scale follows the period: a stall that a 16 Hz loop never feels matters at 100 Hz.
    """

    GC_MIN_NS = 1_000_000

    def __init__(self, period_ns: int) -> None:
        self.beat_ns = min(max(period_ns // 10, 1_000_000), 5_000_000)
        self.threshold_ns = min(max(period_ns // 5, 2_000_000), 10_000_000)
        self._pauses: deque[tuple[int, int, PauseKind]] = deque(maxlen=64)
        self._last_beat_ns = time.monotonic_ns()
        self._gc_began_ns = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        self._last_beat_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        gc.callbacks.remove(self._on_gc)

    def paused_ns(self, begin_ns: int, end_ns: int) -> int:
        """How long the process stood still between two instants, a pause that is just ending included."""
        spans = [(max(b, begin_ns), min(e, end_ns)) for b, e, _ in tuple(self._pauses)]
        # The thread that was woken first asks before the heartbeat or the collector could note what happened.
        now = time.monotonic_ns()
        due = self._last_beat_ns + self.beat_ns
        if now - due > self.threshold_ns:
            spans.append((max(due, begin_ns), min(now, end_ns)))
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            spans.append((max(began, begin_ns), min(now, end_ns)))
        total, reached = 0, begin_ns
        for b, e in sorted(spans):
            total += max(0, e - max(b, reached))
            reached = max(reached, e)
        return total

    def _note(self, begin_ns: int, end_ns: int, kind: PauseKind) -> None:
        self._pauses.append((begin_ns, end_ns, kind))

    def _beat(self) -> None:
        while not self._stop.is_set():
            time.sleep(self.beat_ns / 1e9)
            now = time.monotonic_ns()
            due = self._last_beat_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._note(due, now, "stall")
            self._last_beat_ns = now

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now
            return
        if now - self._gc_began_ns > self.GC_MIN_NS:
            self._note(self._gc_began_ns, now, "gc")
        self._gc_began_ns = 0
