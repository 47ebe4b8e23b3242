"""uvicorn's WebSocket protocol with the bounds that it leaves to its user."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

MAX_FRAGMENTS = 64


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
