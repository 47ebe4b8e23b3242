"""Work that is waited for until an instant, and no longer: what is late goes on on its thread, and is nobody's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from rtcontrol.loop.realtime import SWITCH_INTERVAL_S

T = TypeVar("T")


# Waking takes a thread so long: asked to wake at the instant itself, it would be late.
WAKE_S = 0.000_25


class InTime:
    """One thread on which one thing after another is done; it begins with the first, and ends with its owner."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None  # what was begun last: until it is over nothing else may begin

    def settle(self) -> None:
        """Wait for what is late."""
        if self._last is not None:
            wait([self._last])
            self._last = None

    def until(self, by_s: float, work: Callable[[], T], late: Callable[[], None]) -> list[T]:
        """What `work` gives, alone in a list, if it is there by this instant of `time.monotonic`; else nothing, and
        what it gives or raises is dropped: `late` tells it so, if it has begun. It waits for what is late before."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "decide")
            # Else who waits may get the interpreter 5 ms after the thread that is at work was to give it up.
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        asked = self._last = self._pool.submit(work)
        wait([asked], max(0.0, by_s - WAKE_S - time.monotonic()))
        if time.monotonic() <= by_s and asked.done():
            return [asked.result()]
        if not asked.cancel():
            late()
        return []

    def after(self, work: Callable[[], object]) -> None:
        """Do this when nobody waits; what comes next waits for it."""
        assert self._pool is not None, "something was done before"
        self._last = self._pool.submit(work)
