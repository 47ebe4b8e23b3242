"""A token bucket: how often something may happen."""

from __future__ import annotations

import time


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them at once. Not locked: two threads may get one token too many."""

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._filled_s = time.monotonic()

    def take(self) -> bool:
        """Whether there was a token; it is gone then."""
        if self._tokens < 1.0:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
            self._filled_s = now
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True
