"""The gateway as a part of a server process: uvicorn on a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time

import uvicorn

from rtcontrol.gateway.access import Gate
from rtcontrol.gateway.app import build
from rtcontrol.gateway.decide import ToolSets
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import source
from rtcontrol.gateway.transport import BoundedHTTP, BoundedWebSocket
from rtcontrol.hosts.base import DecoderPool
from rtcontrol.models.errors import UserError
from rtcontrol.serve.admission import Admission

START_S = 30.0
END_S = 5.0
MAX_CONNECTIONS = 256


class Gateway:
    """HTTP and WebSocket for a admission. `start` returns when requests are taken; `port` is then the real one."""

    def __init__(self, admission: Admission, pool: DecoderPool, options: GatewayOptions) -> None:
        self._options = options
        self._tool_sets = ToolSets(
            pool,
            lambda tools: source(options.model, options.engine, tools),
            options.tool_sets,
            options.decide_timeout_s,
            options.open_timeout_s,
        )
        metrics = Metrics(admission)
        app = build(admission, self._tool_sets, options, metrics)
        gate = Gate(app, options, lambda code: metrics.refused.labels(code).inc())
        config = uvicorn.Config(
            gate,
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
                f"--http {host}:{port} cannot be bound ({error.strerror or error}).", "Choose another port or address."
            ) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="gateway", daemon=True
        )
        self._thread.start()
        give_up = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UserError(f"--http {host}:{port}: the HTTP server did not start.", "See its lines above.")
            time.sleep(0.005)

    def close(self) -> None:
        """End all connections; returns within `END_S`."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(END_S)
        self._tool_sets.close()
        if self._socket is not None:
            self._socket.close()
