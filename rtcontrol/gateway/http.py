"""uvicorn on a thread of its own, with the bounds and the gate that every server of ours has."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from rtcontrol.gateway.access import AccessGate, App
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.transport import BoundedHTTP, BoundedWebSocket
from rtcontrol.models.errors import UserError

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
