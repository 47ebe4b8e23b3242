"""A WebSocket to a policy server that may hang, lie or go away: one question at a time, each within its time.

A connection answers one question after the other. One on which an answer was late, or something came that was not
requested, is cut and never used again: what it would say next answers an older question. A ping follows each answer,
and the next question waits for its pong: a second answer that the server sent before it is then there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rtcontrol.hosts.array_message import MOST_BYTES, MalformedMessage, unpack_message
from rtcontrol.hosts.protocol import DecisionLost

OPEN_S = 10.0  # the handshake, and the server's first message
RETRY_S = 0.1  # from a try that failed to the next
LONGEST_TEXT = 300  # characters of a server's words


class _Straight(connect):
    """A redirect is an answer like any other status: the key goes where its owner sent it, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class PolicyLink:
    """Asks a policy server on a connection that is kept, and made again where it is lost; any thread may ask.

    `metadata` is the server's first message, empty before; `connections` counts those that were made.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url, self._headers = url, headers
        self.metadata: Mapping[str, Any] = {}
        self.connections = 0
        self._lock, self._left = threading.Lock(), False
        self._connection: ClientConnection | None = None
        self._pong: asyncio.Future[float] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, DecisionLost] = (float("-inf"), DecisionLost("connection", "not opened"))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name="policy link", daemon=True).start()

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """Return the answer's bytes to come; cancelling it cuts the connection. It raises DecisionLost, as this does
        after `close`."""
        with self._lock:
            if self._left:
                raise DecisionLost("connection", "the link was closed")
            return asyncio.run_coroutine_threadsafe(self._ask(packed, limit_s), self._loop)

    async def _ask(self, packed: bytes, limit_s: float) -> bytes:
        connection: ClientConnection | None = None
        good = False
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._quiet()
                await connection.send(packed)
                said = await connection.recv()
                if isinstance(said, str):
                    raise DecisionLost("server_error", f"the policy server failed: {last_line(said)}")
                self._pong = None
                with contextlib.suppress(ConnectionClosed):
                    self._pong = asyncio.ensure_future(await connection.ping())
                    if await _has_more(connection):  # which of them is the answer?
                        raise DecisionLost("malformed", "the policy server sent two answers")
            good = True
            return said
        except TimeoutError:
            what = "no connection" if connection is None else "no answer"
            raise DecisionLost("timeout", f"{what} in time") from None
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        finally:
            if not good and connection is not None:  # whatever it says now is of this question, or of one before
                self._cut(connection)

    async def _quiet(self) -> ClientConnection:
        """Return a connection on which nothing is left of older questions."""
        while True:
            connection = await self._opened()
            if self._pong is not None:
                await asyncio.wait([self._pong])
            with contextlib.suppress(ConnectionClosed):
                if not await _has_more(connection):
                    return connection
            self._cut(connection)

    async def _opened(self) -> ClientConnection:
        if self._connection is None:
            if time.monotonic() >= self._failed[0] + RETRY_S:
                self._open_again()
            if self._opening is not None:
                await asyncio.shield(self._opening)
        if self._connection is None:
            lost = self._failed[1]
            raise DecisionLost(lost.loss, str(lost))
        return self._connection

    def _open_again(self) -> None:
        """Begin to open a connection, unless one is being opened."""
        if not self._left and (self._opening is None or self._opening.done()):
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_S):
                self._connection, self.metadata = await self._greeted()
            self._pong = None
            self.connections += 1
            return
        except TimeoutError:
            lost = DecisionLost("timeout", f"{self.url} accepted no connection within {OPEN_S:g} s")
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            if 300 <= status < 400:
                hint = "; no redirect is followed: name the server's own address"
            lost = DecisionLost("http", f"{self.url} answered HTTP {status}{hint}")
        except (OSError, WebSocketException, EOFError) as error:
            why = " ".join(str(error).split())[:LONGEST_TEXT]
            lost = DecisionLost("connection", f"{self.url} cannot be reached ({type(error).__name__}: {why})")
        except DecisionLost as error:
            lost = error
        self._failed = time.monotonic(), lost

    async def _greeted(self) -> tuple[ClientConnection, Mapping[str, Any]]:
        """Return a new connection, and the server's first message."""
        connection = await _Straight(
            self.url,
            compression=None,
            max_size=MOST_BYTES,
            additional_headers=dict(self._headers),
            open_timeout=None,
            ping_interval=None,
            close_timeout=0.0,
            proxy=None,
            max_queue=2,
        )
        try:
            first = await connection.recv()
            if isinstance(first, str):
                raise DecisionLost("server_error", f"the policy server failed: {last_line(first)}")
            metadata = unpack_message(first)
            if not isinstance(metadata, dict):
                raise MalformedMessage("it is no map")
        except BaseException as error:
            connection.transport.abort()
            if isinstance(error, MalformedMessage):
                what = f"the first message of {self.url} is not a policy server's: {error}"
                raise DecisionLost("malformed", what) from None
            raise
        return connection, metadata

    def cut(self) -> None:
        """Read nothing more on this connection: its server's last answer was wrong."""
        with self._lock:
            if not self._left and (connection := self._connection) is not None:
                self._loop.call_soon_threadsafe(self._cut, connection)

    def _cut(self, connection: ClientConnection) -> None:
        connection.transport.abort()
        if self._connection is connection:
            self._connection = None
            self._open_again()  # the next question then has one

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        with self._lock:
            left, self._left = self._left, True
        if not left:
            with contextlib.suppress(RuntimeError):  # Python ends
                asyncio.run_coroutine_threadsafe(_end(self._connection), self._loop)

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            self.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(connection: ClientConnection | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if connection is not None:
        connection.transport.abort()
    await asyncio.gather(*others, return_exceptions=True)
    asyncio.get_running_loop().stop()


async def _has_more(connection: ClientConnection) -> bool:
    """Whether a message is there that answers no question. Raises ConnectionClosed."""
    await asyncio.sleep(0)  # what came right behind the last one is with its reader
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except TimeoutError:
        return False
    return True


def last_line(text: str) -> str:
    """Of a traceback what was raised, in short."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "it says nothing")[:LONGEST_TEXT]


def _closed(closed: ConnectionClosed) -> DecisionLost:
    code = closed.sent.code if closed.sent is not None and closed.rcvd is None else closed.rcvd and closed.rcvd.code
    if code == 1009:
        return DecisionLost("malformed", "the policy server sent a message that is too large, or refused ours as such")
    return DecisionLost("connection", f"the policy server closed the connection (code {code or 1006})")
