"""What acts when no fresh call is there in time: hold the last one for a while, the safe call, or stop the run."""

from __future__ import annotations

from typing import Literal

Action = Literal["none", "hold", "safe", "stop"]


class FallbackPolicy:
    """Keeps the age of the call in force. Times are the world's (`LoopClock.effective_ns`), in nanoseconds.

    Under `hold`, a miss leaves the call in force until it has not been renewed for `hold_ns`; then the safe call acts,
    also between two ticks (`expires_ns`). Once the safe call acted it stays in force: it is not repeated until a fresh
    call or a new epoch.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss = on_miss
        self._hold_ns = hold_ns
        self._renewed_ns = 0
        self._armed = False
        self._safe = False

    def epoch(self, now_ns: int) -> None:
        """A new world: nothing is in force, and the hold limit runs from here."""
        self._renewed_ns, self._armed, self._safe = now_ns, False, False

    def renew(self, now_ns: int) -> None:
        """A fresh decision was made: its call, or the null function's consent to the call in force."""
        self._renewed_ns, self._armed = now_ns, False

    def fresh_call(self, now_ns: int) -> None:
        """A fresh call was executed; the safe call is no longer in force."""
        self.renew(now_ns)
        self._safe = False

    def miss(self, now_ns: int) -> Action:
        """No fresh call: what to do about it."""
        if self._on_miss == "stop":
            return "stop"
        if self._on_miss == "hold" and now_ns - self._renewed_ns < self._hold_ns:
            self._armed = True
            return "hold"
        return self._make_safe()

    def unsure(self, now_ns: int) -> Action:
        """A call held back by the confidence gate leaves the call in force, but does not renew it."""
        if now_ns - self._renewed_ns < self._hold_ns:
            self._armed = True
            return "hold"
        return self._make_safe()

    @property
    def expires_ns(self) -> int | None:
        """When the call being held gives way to the safe call, None when none is being held."""
        return self._renewed_ns + self._hold_ns if self._armed else None

    def expire(self, now_ns: int) -> Action:
        """The hold limit, if it is reached."""
        if self._armed and now_ns - self._renewed_ns >= self._hold_ns:
            return self._make_safe()
        return "none"

    def _make_safe(self) -> Action:
        self._armed = False
        if self._safe:
            return "none"
        self._safe = True
        return "safe"
