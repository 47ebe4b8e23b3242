"""A uvicorn server on a separate thread. It closes idle connections, and connections of clients that do not read."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.limits import LIMITS

ABORT = "rtcontrol.abort"  # the function scope["extensions"][ABORT] closes a WebSocket's connection at once
IDLE_S = 10.0
START_S, END_S = 30.0, 5.0
MAX_CONNECTIONS = 256


class LimitedHTTP(H11Protocol):
    """An HTTP connection that closes if it is idle (without a request) for `IDLE_S` to twice `IDLE_S`. If three
    quarters of `MAX_CONNECTIONS` are open, a new connection closes the oldest idle connection."""

    connected_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected_s = self.loop.time()
        open_connections = [c for c in self.connections if isinstance(c, LimitedHTTP) and not c.transport.is_closing()]
        idle = [connection for connection in open_connections if connection.is_idle()]
        if idle and len(self.connections) >= MAX_CONNECTIONS * 3 // 4:
            min(idle, key=lambda c: c.connected_s).transport.abort()
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(IDLE_S, self._close_if_idle, None)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, and end the current request, which uvicorn would otherwise also answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response has already started, so close the connection
            self.transport.abort()

    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self, last: Any) -> None:
        """Close the connection if `last` is still its newest request and was answered. Else check again later."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self.cycle is last and self.is_idle():
            self.transport.abort()
        else:
            self.loop.call_later(IDLE_S, self._close_if_idle, self.cycle)


class AbortableWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that the application can close at once, by calling `scope["extensions"][ABORT]`."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if scope := getattr(self, "scope", None):
            scope["extensions"][ABORT] = self.transport.abort

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # after a refused handshake, this prevents an error in uvicorn's log


class HTTPServer:
    """An HTTP server for an ASGI application. After `start`, `port` is the real port, even if port 0 was requested."""

    def __init__(self, app: ASGIApp, options: GatewayOptions) -> None:
        self._options, self._address = options, f"{options.host}:{options.port}"
        config = uvicorn.Config(
            app,
            ws=AbortableWebSocket,
            http=LimitedHTTP,
            loop="asyncio",
            ws_max_size=LIMITS.max_message_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            # Switch off uvicorn's log, whose lines show the query of the address, which may contain the token.
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            # Ignore proxy headers, with which a remote request could look local.
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return self._options.port if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        host = self._options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def start(self) -> None:
        """Start to accept requests. Raises UserError if the address cannot be bound."""
        host, port = self._options.host, self._options.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            problem = f"The HTTP server cannot bind {self._address} ({error.strerror or error})."
            raise UserError(problem, "Choose another port or address.") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="gateway", daemon=True
        )
        self._thread.start()
        give_up = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UserError(f"The HTTP server at {self._address} did not start.", "See its log lines above.")
            time.sleep(0.005)

    def close(self) -> None:
        """Close all connections and stop the thread. Takes at most twice `END_S`."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(END_S)
        if self._socket is not None:
            self._socket.close()
