"""The heartbeat of a client: when a ping is due, and when the server must be taken for dead."""

from __future__ import annotations

import time

from rtcontrol.bridges.wire.messages import Ping

DEAD_HEARTBEATS = 3
LEAST_MS = 50.0  # a server's heartbeat below this would be found dead at once
GREETING_SILENCE_NS = 10_000_000_000  # a welcome may take longer, but not an answer to our pings
CLOCK_PING_NS = 10_000_000_000  # who observes all the time is never silent, and would never compare clocks


class Pulse:
    """`beat_ms` is the welcome's, 1000 before the first. Instants are of the monotonic clock."""

    def __init__(self) -> None:
        self.beat_ms = 1000.0
        self._said_ns = self._heard_ns = time.monotonic_ns()
        self._pings = 0
        self._pinged_ns = 0

    @property
    def _beat_ns(self) -> int:
        return int(max(self.beat_ms, LEAST_MS) * 1e6)

    def said(self, now_ns: int) -> None:
        """Something was sent."""
        self._said_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """Something arrived, or a new connection is there."""
        self._heard_ns = now_ns

    def due(self, now_ns: int, silent: bool) -> bool:
        """Whether a ping is due: nothing was said for a heartbeat, and is to be; or for the clocks."""
        beat = silent and now_ns - self._said_ns >= self._beat_ns
        return beat or not self._pinged_ns or now_ns - self._pinged_ns >= CLOCK_PING_NS

    def ping(self, now_ns: int) -> Ping:
        self._pings += 1
        self._pinged_ns = now_ns
        return Ping(id=self._pings, t_ns=now_ns)

    def begin(self, beat_ms: float) -> None:
        """A new session, of a server whose clock is not known."""
        self.beat_ms, self._pinged_ns = beat_ms, 0

    def silent(self, now_ns: int, live: bool) -> bool:
        """Whether the server has said nothing for too long."""
        return now_ns - self._heard_ns > (DEAD_HEARTBEATS * self._beat_ns if live else GREETING_SILENCE_NS)

    def next_ns(self) -> int:
        """When one of these changes by itself."""
        return min(self._said_ns + self._beat_ns, self._heard_ns + DEAD_HEARTBEATS * self._beat_ns)
