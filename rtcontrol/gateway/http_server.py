"""uvicorn on a thread of its own, with the bounds and the gate that every server of ours has."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from rtcontrol.gateway.access import ABORT, TASK, AccessGate, App
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError

MAX_FRAGMENTS = 64
IDLE_S = 10.0


class Bounded(asyncio.Protocol):
    """A connection that may have to make room for another: where three quarters of all places are taken, of those that
    wait for their peer the one that has done so for longest."""

    connections: set[Any]
    transport: Any
    since_s = 0.0  # the loop's time when it was made, or last answered

    @abstractmethod
    def waits(self) -> bool:
        """Whether it is the peer's turn: to ask something, to send the rest of it, to take the answer."""


class BoundedHTTP(Bounded, H11Protocol):
    """Also cuts off a connection on which no request begins for `IDLE_S` to twice that; half a head is none."""

    _last: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.since_s, places = self.loop.time(), self.config.limit_concurrency or 0
        here = [c for c in self.connections if isinstance(c, Bounded) and not c.transport.is_closing()]
        waiting = [c for c in here if c.waits()]
        if waiting and len(here) >= places * 3 // 4:
            min(waiting, key=lambda c: c.since_s).transport.abort()
        # uvicorn's own count has those that are ending among them.
        self.limit_concurrency = 0 if len(here) >= places and not waiting else None
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(IDLE_S, self._look, False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.cycle is not None and not self.cycle.response_complete:
            scope: Any = self.cycle.scope
            task, scope[TASK] = scope.get(TASK), None
            if task is not None:
                task.cancel()

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        super().on_response_complete()

    def waits(self) -> bool:
        return self._idle() or self.cycle.more_body or self.flow.write_paused

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _look(self, idle_before: bool) -> None:
        transport = self.transport
        if transport.is_closing() or transport.get_protocol() is not self:
            return
        idle = self._idle()
        if idle and idle_before and self.cycle is self._last:
            transport.abort()
            return
        self._last = self.cycle
        self.loop.call_later(IDLE_S, self._look, idle)


class BoundedWebSocket(Bounded, WebSocketsSansIOProtocol):
    """Gives the application a way to cut a stuck peer off (`scope["extensions"]`, `ABORT`), and cuts off one
    that sends pings without reading the pongs, or a message in more than `MAX_FRAGMENTS` fragments."""

    spoken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.since_s = self.loop.time()
        super().connection_made(transport)

    def waits(self) -> bool:
        return self.close_sent or not self.spoken

    def send_receive_event_to_app(self) -> None:
        self.spoken = True
        super().send_receive_event_to_app()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if scope := getattr(self, "scope", None):
            scope["extensions"][ABORT] = self.transport.abort

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused with an answer: nothing that uvicorn should log as a fault

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


START_S = 30.0
END_S = 5.0
MAX_CONNECTIONS = 256


class HTTPServer:
    """Serves `app` behind the gate. `start` returns when requests are taken; `port` is then the real one. `named` is
    the option that chose the address; `refused` is told the code of every refusal."""

    def __init__(self, app: App, options: GatewayOptions, named: str, refused: Callable[[str], None]) -> None:
        self._options, self._named = options, f"{named} {options.host}:{options.port}"
        config = uvicorn.Config(
            AccessGate(app, options, refused),
            ws=BoundedWebSocket,
            http=BoundedHTTP,
            loop="asyncio",
            ws_max_size=options.max_body_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            # uvicorn's lines show addresses with their query, and so the token.
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            # Whoever stands before this server must not be able to say that it is this machine.
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
        """Raises UserError when the address cannot be bound."""
        host, port = self._options.host, self._options.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise UserError(
                f"{self._named} cannot be bound ({error.strerror or error}).", "Choose another port or address."
            ) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="gateway", daemon=True
        )
        self._thread.start()
        give_up = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UserError(f"{self._named}: the HTTP server did not start.", "See its lines above.")
            time.sleep(0.005)

    def close(self) -> None:
        """End all connections; returns within `END_S`."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(END_S)
        if self._socket is not None:
            self._socket.close()
