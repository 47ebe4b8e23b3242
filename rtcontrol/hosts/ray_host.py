"""Decides in a Ray actor: a session's part of the pool, which talks to it on ZeroMQ sockets of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.base import DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.ray_link import DecoderLink, WakeFile
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.ray_start import Stopped

log = logging.getLogger("rtcontrol.host")


class RayHost:
    """One session's part of a `RayPool`; without one it has a pool of its own, with so many lanes.

    Its loop's thread owns the link in use; another thread tells of losses and offers the link to a restarted process.
    """

    name = "ray"

    def __init__(
        self,
        source: DeciderSource,
        lanes: int = 1,
        gpus: float | None = None,
        pool: RayPool | None = None,
        session: str = "the run",
    ) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self.source, self.key = source, b""
        self.info: dict[str, Any] = {}
        self.last: DecisionRequest | None = None
        self.woken = WakeFile()
        self._session, self._own = session, pool is None
        self._pool = pool or RayPool(1, gpus, lanes, preload=False)
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()
        self._up = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.info:
            if self._own:
                self._pool.start(stopped)
            try:
                if not stopped():
                    self._pool.admit(self, self._session, stopped)
            except Stopped:
                return {}
        return self.info

    def submit(self, request: DecisionRequest) -> None:
        if self._offers:
            self._adopt()
        self.last = request
        if self._link is None or not self._up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        if self._offers:
            self._adopt()
        if self._link is None:
            self.woken.files.wait(max(timeout_ns, 0))
            self.woken.clear()
            return None
        return self._link.receive(timeout_ns)

    def wake(self) -> None:
        self.woken.set()

    def alive(self) -> bool:
        return self._up

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def close(self) -> None:
        self._pool.release(self)
        self.end()
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._own:
            self._pool.close()

    # -- for the pool -------------------------------------------------------------------------------------------------

    @property
    def lost_ns(self) -> int:
        """When the decider was last lost; only of a host that lost one."""
        return next(e.t_ns for e in reversed(self.events) if e.event == "lost")

    def lose(self, lost_ns: int) -> None:
        """The process was lost at `lost_ns`."""
        self._up = False
        self.events.append(HostEvent(lost_ns, "lost", 0.0))

    def offer(self, link: DecoderLink, lost_ns: int | None) -> None:
        """A link to a process that is up; `lost_ns` is when the one before was lost."""
        self._offers.append(link)
        self._up = True
        if lost_ns is not None:
            now_ns = time.monotonic_ns()
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - lost_ns) / 1e9))

    def give_up(self, why: str) -> None:
        """There will be no more decisions."""
        self._up = False
        self.gave_up = why
        self.woken.set()

    def end(self) -> None:
        """The pool is closed, or the host is."""
        self._up = False

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
