"""A thread that must get its turn every few milliseconds: while it does not, its process stands still."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Self

BEAT_NS, THRESHOLD_NS = 5_000_000, 10_000_000
# A reply tells of so many gaps, that ended so short a time ago.
MOST_TOLD, TOLD_NS = 8, 2_000_000_000


class Heartbeat:
    """Beats every `beat_ns` while it is entered. One that comes later than that by more than `threshold_ns` is a gap.

    Stopped by a signal, kept from the processor, or held up by whoever has the interpreter: all are gaps.
    """

    def __init__(self, beat_ns: int = BEAT_NS, threshold_ns: int = THRESHOLD_NS) -> None:
        self.beat_ns, self.threshold_ns = beat_ns, threshold_ns
        self._gaps: deque[tuple[int, int]] = deque(maxlen=64)
        self._last_ns = time.monotonic_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._last_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def gaps(self, since_ns: int) -> list[tuple[int, int]]:
        """Begin and end (CLOCK_MONOTONIC) of those that ended after `since_ns`, and of one that is just ending: the
        thread that was woken first asks before the heartbeat could note it."""
        found = [gap for gap in tuple(self._gaps) if gap[1] > since_ns]
        now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
        return [*found, (due, now)] if now - due > self.threshold_ns else found

    def recent(self) -> list[tuple[int, int]]:
        """What a reply tells of them."""
        return self.gaps(time.monotonic_ns() - TOLD_NS)[-MOST_TOLD:]

    def _beat(self) -> None:
        while not self._stop.is_set():
            time.sleep(self.beat_ns / 1e9)
            now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._gaps.append((due, now))
            self._last_ns = now  # not before: whoever asks just now must be told of it
