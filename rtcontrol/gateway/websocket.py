"""The server's WebSocket transport (`/ws`), which sends and receives the protocol's messages as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from rtcontrol.gateway.http_server import ABORT
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol_client.wire import Code, Message, WireError, decode_json, encode_json
from rtcontrol_client.wire.endpoint import SUBPROTOCOL

log = logging.getLogger("rtcontrol.gateway")

MAX_QUEUED = 64
MAX_CONNECTIONS = 128
CLOSE_S = 1.0
NORMAL, TRY_LATER = 1000, 1013  # status codes of RFC 6455, section 7.4.1


class WebSocketConnection:
    """A WebSocket as a `rtcontrol.serve.sessions.Connection`.

    `send` encodes a message on the caller's thread, and enqueues the message. If `MAX_QUEUED` messages are queued, the
    client is disconnected: it does not read, so the queued calls have expired.
    """

    key: str | None = None

    def __init__(self, peer: str, abort: Callable[[], None]) -> None:
        self.peer, self.abort = peer, abort
        self.closed = False  # True after `close`, or after the client was disconnected
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()  # messages to send; None closes the socket

    def send(self, message: Message) -> None:
        if not self.closed:
            self._call_in_loop(self._enqueue_message, encode_json(message))

    def close(self) -> None:
        """Close the connection after the queued messages were sent, or after `CLOSE_S` seconds."""
        self.closed = True
        self._call_in_loop(self._queue.put_nowait, None)
        self._call_in_loop(self._loop.call_later, CLOSE_S, self.abort)

    async def send_queued(self, socket: WebSocket) -> None:
        """Send queued messages until the connection is closed."""
        while (text := await self._queue.get()) is not None:
            await socket.send_text(text)
        await socket.close(NORMAL)

    def _enqueue_message(self, text: str) -> None:
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put_nowait(text)
        elif not self.closed:
            self.closed = True
            self.abort()
            log.warning("%s: disconnected, because it did not read %d messages", self.peer, MAX_QUEUED)

    def _call_in_loop(self, function: Callable[..., Any], *args: Any) -> None:
        # The event loop raises RuntimeError if the server's shutdown has closed it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


class WebSockets:
    """The endpoint `/ws`, which serves all WebSockets."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        self._open = 0

    async def serve(self, socket: WebSocket) -> None:
        """Accept a WebSocket, and serve it until it is closed."""
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        if self._open >= MAX_CONNECTIONS:
            await socket.close(TRY_LATER, "too many connections")
            return
        client = socket.client
        peer = "ws" if client is None else f"ws:{client.host}:{client.port}"
        abort = socket.scope["extensions"].get(ABORT, lambda: None)
        connection = WebSocketConnection(peer, abort)
        self._open += 1
        sending = asyncio.create_task(connection.send_queued(socket))
        try:
            await self._receive_messages(socket, connection)
        finally:
            self._open -= 1
            self._sessions.disconnected(connection)
            sending.cancel()
            with contextlib.suppress(BaseException):
                await sending

    async def _receive_messages(self, socket: WebSocket, connection: WebSocketConnection) -> None:
        # `receive` raises RuntimeError if `send_queued` has closed the socket.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while (message := await socket.receive())["type"] == "websocket.receive":
                self._process_message(connection, message.get("text"))

    def _process_message(self, connection: WebSocketConnection, text: str | None) -> None:
        def decode() -> Message:
            if text is None:
                raise WireError(Code.MALFORMED, "The WebSocket message is binary.", "Send each message as JSON text.")
            return decode_json(text)

        self._sessions.receive(connection, decode, len(text or ""))
