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

    Its loop's thread owns the link in use. The pool's thread keeps its `session`, under the pool's lock, and offers the
    link to each life of the process.
    """

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool = False) -> None:
        super().__init__(pool, source, session, own, key=b"%d" % next(NUMBERS))
        self.last: DecisionRequest | None = None
        self.woken = WakeFile()
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()

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

    def offer(self, link: DecoderLink) -> None:
        """Take a link to a process that is up, at the next use."""
        self._offers.append(link)

    def close(self) -> None:
        super().close()
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
