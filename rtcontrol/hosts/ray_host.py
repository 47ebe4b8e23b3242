"""One session's host of a decoder that is in a process of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.hosts.decoder_link import NUMBERS, DecoderLink
from rtcontrol.hosts.protocol import SHARES, DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.wake_file import WakeFile

log = logging.getLogger("rtcontrol.host")


class RayHost:
    """One session's part of a `RayPool`, which it starts and ends where it is its `own`.

    Its loop's thread owns the link in use. The pool's threads, under the pool's lock, tell of losses (`lose`), offer
    the link to a restarted process, or give up.
    """

    name = "ray"

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool = False) -> None:
        self.incarnation = 0
        self.shares: deque[float] = deque(maxlen=SHARES)
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self.source, self.session = source, session
        self.info: dict[str, Any] = {}
        self.last: DecisionRequest | None = None
        self.lost_ns: int | None = None  # when the decider was lost that is not back
        self.up = False
        self.woken = WakeFile()
        self._pool, self._own = pool, own
        self.renew()
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()

    def renew(self) -> None:
        """Another key: what had the one before was freed for good."""
        self.key = b"%d" % next(NUMBERS)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.info:
            if self._own:
                self._pool.start(stopped)
            if not stopped():
                self._pool.admit(self, stopped)
        return self.info

    def submit(self, request: DecisionRequest) -> None:
        if self._offers:
            self._adopt()
        self.last = request
        if self._link is None or not self.up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        if self._offers:
            self._adopt()
        if self._link is None:
            self.woken.files.wait(max(timeout_ns, 0))
            self.woken.clear()
            return None
        reply = self._link.receive(timeout_ns)
        if reply is not None:
            self.shares.append(reply.decide_ns / reply.together)
        return reply

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        link = self._offers[-1] if self._offers else self._link
        return () if link is None else link.threads

    def wake(self) -> None:
        self.woken.set()

    def alive(self) -> bool:
        return self.up

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def close(self) -> None:
        self._pool.release(self)
        self.up = False
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._own:
            self._pool.close()

    def lose(self, lost_ns: int) -> None:
        self.up, self.lost_ns = False, lost_ns
        self.events.append(HostEvent(lost_ns, "lost", 0.0))

    def offer(self, link: DecoderLink) -> None:
        """A link to a process that is up."""
        self._offers.append(link)
        self.up = True
        if self.lost_ns is not None:
            now_ns = time.monotonic_ns()
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self.lost_ns) / 1e9))
            self.lost_ns = None

    def give_up(self, why: str) -> None:
        """There will be no more decisions."""
        self.up = False
        self.gave_up = why
        self.woken.set()

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
