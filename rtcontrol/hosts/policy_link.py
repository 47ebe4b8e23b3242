"""The WebSocket to a policy server: one question at a time, and what answers which.

A connection answers one question after the other. One on which an answer was late, or something came that was not
requested, is cut and never used again: what it would say next answers an older question. A ping follows each answer,
and the next question waits for its pong: a second answer that the server sent before it is then there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rtcontrol.hosts.array_message import MOST_BYTES, MalformedMessage, unpack_message
from rtcontrol.hosts.protocol import DecisionLost
from rtcontrol.models.loop_thread import LoopThread

OPEN_S = 10.0  # the handshake, and the server's first message
RETRY_S = 0.1  # from a try that failed to the next
LONGEST_TEXT = 300  # characters of a server's words


class _Straight(connect):
    """A redirect is an answer like any other status: the key goes where its owner sent it, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_socket(url: str, headers: Mapping[str, str]) -> ClientConnection:
    """Return a new connection as policy servers have it: no redirect, no compression, no ping of its own."""
    return await _Straight(
        url,
        compression=None,
        max_size=MOST_BYTES,
        additional_headers=dict(headers),
        open_timeout=None,
        ping_interval=None,
        close_timeout=0.0,
        proxy=None,
        max_queue=2,
    )


async def has_message(connection: ClientConnection) -> bool:
    """Return whether a message is there. Raises ConnectionClosed."""
    await asyncio.sleep(0)  # what came right behind the last one is with its reader
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except TimeoutError:
        return False
    return True


class Conversation:
    """Asks the policy server at `url` on a connection that is kept, and made again by `connected` where it is lost."""

    def __init__(self, url: str, connected: Callable[[], Awaitable[ClientConnection]]) -> None:
        self._url, self._connected = url, connected
        self._line: asyncio.Task[ClientConnection] | None = None  # the connection, or the try to make one
        self._pong: Awaitable[float] | None = None  # of the ping behind the last answer
        self._retry_s = 0.0
        self._turn = asyncio.Lock()

    async def ask(self, packed: bytes, limit_s: float) -> bytes:
        """Return the answer. Raises DecisionLost. Where it is given up, or wrong, the connection is cut."""
        try:
            async with asyncio.timeout(limit_s), self._turn:
                message = await self._answer(packed)
        except TimeoutError:
            raise DecisionLost("timeout", "no answer in time") from None
        except ConnectionClosed as closed:
            raise DecisionLost("connection", f"the connection to the policy server ended: {closed}") from None
        if isinstance(message, str):
            raise DecisionLost("server_error", f"the policy server failed: {last_line(message)}")
        return message

    async def _answer(self, packed: bytes) -> bytes | str:
        good = False
        try:
            connection = await self._ready()
            await connection.send(packed)
            message = await connection.recv()
            with contextlib.suppress(ConnectionClosed):  # the next question finds that
                if await has_message(connection):  # which of them is the answer?
                    raise DecisionLost("malformed", "the policy server sent two answers")
                self._pong = await connection.ping()
            good = isinstance(message, bytes)
            return message
        finally:
            if not good:
                self.cut()

    def cut(self) -> None:
        """Cut the connection, and open another one: the next question then has one."""
        if self.abort():
            self._begin()

    def abort(self) -> bool:
        """Cut the connection; return whether there was one."""
        line = self._line
        if line is None or not line.done() or line.cancelled() or line.exception() is not None:
            return False
        line.result().transport.abort()
        self._line = self._pong = None
        return True

    async def end(self) -> None:
        """Cut the connection, or the try to make one."""
        if not self.abort() and self._line is not None:
            self._line.cancel()
            await asyncio.wait([self._line])

    async def _ready(self) -> ClientConnection:
        """Return a connection on which nothing is left of older questions. Raises DecisionLost."""
        while True:
            line = self._line
            now_s = asyncio.get_running_loop().time()
            if line is None or (line.done() and line.exception() is not None and now_s >= self._retry_s):
                line = self._begin()
            connection = await asyncio.shield(line)
            with contextlib.suppress(ConnectionClosed):
                if self._pong is not None:
                    await self._pong
                if not await has_message(connection):
                    return connection
            self.cut()

    def _begin(self) -> asyncio.Task[ClientConnection]:
        self._line = line = asyncio.get_running_loop().create_task(self._open())
        line.add_done_callback(lambda done: done.cancelled() or done.exception())  # of no question, it is not logged
        return line

    async def _open(self) -> ClientConnection:
        """Return a new connection to a policy server. Raises DecisionLost, for questions until the next try."""
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(OPEN_S):
                connection = await self._connected()
                self._check(await connection.recv())
            return connection
        except DecisionLost as error:
            lost = error
        except TimeoutError:
            lost = DecisionLost("timeout", f"{self._url} accepted no connection within {OPEN_S:g} s")
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            lost = DecisionLost("http", f"{self._url} answered HTTP {status}{hint}")
        except Exception as error:
            why = " ".join(str(error).split())[:LONGEST_TEXT]
            lost = DecisionLost("connection", f"{self._url} cannot be reached ({type(error).__name__}: {why})")
        if connection is not None:
            connection.transport.abort()
        self._retry_s = asyncio.get_running_loop().time() + RETRY_S
        raise lost

    def _check(self, first: bytes | str) -> None:
        """Raise DecisionLost for a first message that is not a policy server's."""
        if isinstance(first, str):
            raise DecisionLost("server_error", f"the policy server failed: {last_line(first)}")
        try:
            what = None if isinstance(unpack_message(first), dict) else "it is no map"
        except MalformedMessage as error:
            what = str(error)
        if what is not None:
            raise DecisionLost("malformed", f"the first message of {self._url} is not a policy server's: {what}")


class PolicyLink:
    """A conversation on a thread of its own; any thread may ask."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._talk = Conversation(url, partial(open_socket, url, headers))
        self._thread = LoopThread("policy link")

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """Return the answer's bytes to come; cancelling it cuts the connection. It raises DecisionLost, as this does
        after `close`."""
        asked = self._thread.start(self._talk.ask, packed, limit_s)
        if asked is None:
            raise DecisionLost("connection", "the link was closed")
        return asked

    def cut(self) -> None:
        """Read nothing more on this connection: its server's last answer was wrong."""
        self._thread.call(self._talk.cut)

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        self._thread.end(self._talk.end)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def last_line(text: str) -> str:
    """Return what a traceback says was raised, in short."""
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()[:LONGEST_TEXT]
