"""uvicorn's protocols with the bounds that it leaves to its user."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

MAX_FRAGMENTS = 64
IDLE_S = 10.0


class BoundedHTTP(H11Protocol):
    """Cuts off a connection on which no request begins for `IDLE_S` to twice that; half a head is none. Where half of
    all places are taken, the one that has been silent for longest makes room for the next."""

    _last: Any = None
    _made_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._made_s = self.loop.time()
        if len(self.connections) > (self.limit_concurrency or 0) // 2:
            mine = [c for c in self.connections if isinstance(c, BoundedHTTP)]
            silent = [c for c in mine if c.cycle is None and not c.transport.is_closing()]
            min(silent, key=lambda c: c._made_s).transport.abort()
        self.loop.call_later(IDLE_S, self._look, False)

    def _look(self, idle_before: bool) -> None:
        transport = self.transport
        if transport.is_closing() or transport.get_protocol() is not self:
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and idle_before and self.cycle is self._last:
            transport.abort()
            return
        self._last = self.cycle
        self.loop.call_later(IDLE_S, self._look, idle)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Gives the application a way to cut a stuck peer off (`scope["extensions"]["rtcontrol.abort"]`), and cuts off one
    that sends pings without reading the pongs, or a message in more than `MAX_FRAGMENTS` fragments."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if scope := getattr(self, "scope", None):
            scope["extensions"]["rtcontrol.abort"] = self.transport.abort

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)
