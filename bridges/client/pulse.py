"""The heartbeat of a client: when a ping is due, and when the server must be taken for dead."""

from __future__ import annotations

import time

from rtcontrol.bridges.wire.messages import Ping

DEAD_HEARTBEATS = 3


class Pulse:
    """`beat_ms` is the welcome's, 1000 before the first. Instants are of the monotonic clock."""

    def __init__(self) -> None:
        self.beat_ms = 1000.0
        self._said_ns = self._heard_ns = time.monotonic_ns()
        self._pings = 0

    @property
    def _beat_ns(self) -> int:
        return int(self.beat_ms * 1e6)

    def said(self, now_ns: int) -> None:
        """Something was sent."""
        self._said_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """Something arrived, or a new connection is there."""
        self._heard_ns = now_ns

    def ping(self, now_ns: int) -> Ping | None:
        """What must be said where there is nothing else."""
        if now_ns - self._said_ns < self._beat_ns:
            return None
        self._pings += 1
        return Ping(id=self._pings, t_ns=now_ns)

    def silent(self, now_ns: int) -> bool:
        """Whether the server has said nothing for too long."""
        return now_ns - self._heard_ns > DEAD_HEARTBEATS * self._beat_ns

    def next_ns(self) -> int:
        """When one of these changes by itself."""
        return min(self._said_ns + self._beat_ns, self._heard_ns + DEAD_HEARTBEATS * self._beat_ns)
