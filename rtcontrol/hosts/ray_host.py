"""One session's host of a decoder that is in a process of its own."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from rtcontrol.hosts.decoder_link import NUMBERS, DecoderLink, WakeFile
from rtcontrol.hosts.pool import PooledHost
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest

log = logging.getLogger("rtcontrol.host")


class RayHost(PooledHost):
    """One session's part of a `RayPool`, which it starts and ends where it is its `own`.

    Its loop's thread owns the link in use. The pool's threads, under the pool's lock, keep its `session`, and offer the
    link to a restarted process.
    """

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool = False) -> None:
        super().__init__(pool, source, session, own)
        self.last: DecisionRequest | None = None
        self.woken = WakeFile()
        self.renew()
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()

    def renew(self) -> None:
        """Take another key: what had the one before was freed for good."""
        self.session.key = b"%d" % next(NUMBERS)

    def submit(self, request: DecisionRequest) -> None:
        self._adopt()
        self.last = request
        if self._link is None or not self.session.up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._adopt()
        if self._link is None:
            self.woken.files.wait(max(timeout_ns, 0))
            self.woken.clear()
            return None
        return self.noted(self._link.receive(timeout_ns))

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        link = self._offers[-1] if self._offers else self._link
        return () if link is None else link.threads

    def wake(self) -> None:
        self.woken.set()

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def close(self) -> None:
        self._pool.release(self)
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._own:
            self._pool.close()

    def offer(self, link: DecoderLink) -> None:
        """Take a link to a process that is up, at the next use."""
        self._offers.append(link)

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
