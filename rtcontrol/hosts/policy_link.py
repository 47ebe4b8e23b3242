"""The WebSocket to a policy server: it does what a `LinkCore` says, and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rtcontrol.hosts import policy_link_core as core
from rtcontrol.hosts.array_message import MOST_BYTES
from rtcontrol.hosts.protocol import DecisionLost
from rtcontrol.models.loop_thread import LoopThread


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


async def until_closed(work: Coroutine[Any, Any, None]) -> None:
    """Do it; where the connection has ended, its reader reports it."""
    with contextlib.suppress(ConnectionClosed):
        await work


async def has_more(connection: ClientConnection) -> bool:
    """Return whether another message is there."""
    await asyncio.sleep(0)  # what came right behind the last one is with its reader
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except (TimeoutError, ConnectionClosed):  # the next look reports the end
        return False
    return True


class PolicyLink:
    """Asks a policy server on a connection that is kept, and made again where it is lost; any thread may ask."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, headers
        self._core = core.LinkCore(url)
        self._answer: asyncio.Future[bytes] | None = None
        self._connection: ClientConnection | None = None
        self._life: asyncio.Task[None] | None = None  # of the connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = LoopThread("policy link")

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """Return the answer's bytes to come; cancelling it cuts the connection. It raises DecisionLost, as this does
        after `close`."""
        asked = self._thread.start(self._ask, packed, round(limit_s * 1e9))
        if asked is None:
            raise DecisionLost("connection", "the link was closed")
        return asked

    def cut(self) -> None:
        """Read nothing more on this connection: its server's last answer was wrong."""
        self._thread.call(self._tell, self._core.distrusted)

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        self._thread.end(self._abort)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()

    # -- on the link's thread -----------------------------------------------------------------------------------------

    async def _ask(self, packed: bytes, limit_ns: int) -> bytes:
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._tell(self._core.requested, packed, limit_ns)
        try:
            return await answer
        except asyncio.CancelledError:
            self._tell(self._core.given_up)
            raise

    def _tell(self, event: Callable[..., list[core.Action]], *given: Any) -> None:
        """Report an event to the core, do what it says, and sleep until it is due again."""
        if self._thread.ended:
            return
        for action in event(*given, time.monotonic_ns()):
            self._act(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wake_ns := self._core.wake_ns) is not None:
            left_s = max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._tell, self._core.woke)

    def _act(self, action: core.Action) -> None:
        connection, answer = self._connection, self._answer
        if isinstance(action, core.Open):
            self._life = self._spawn(self._live())
        elif isinstance(action, core.Cut):
            if connection is not None:
                connection.transport.abort()
            self._connection = None
            if self._life is not None:
                self._life.cancel()
        elif isinstance(action, core.Send) and connection is not None:
            self._spawn(until_closed(connection.send(action.packed)))
        elif isinstance(action, core.Ping) and connection is not None:
            self._spawn(until_closed(self._ping(connection)))
        elif answer is not None and not answer.done():
            if isinstance(action, core.Answer):
                answer.set_result(action.message)
            elif isinstance(action, core.Lose):
                answer.set_exception(action.lost)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop alone would forget it
        task.add_done_callback(self._tasks.discard)
        return task

    async def _live(self) -> None:
        """Open a connection, and report all that comes on it."""
        try:
            self._connection = connection = await open_socket(self._url, self._headers)
            self._tell(self._core.opened, await connection.recv())
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            self._tell(self._core.refused, "http", f"{self._url} answered HTTP {status}{hint}")
        except Exception as error:
            self._connection = None
            why = " ".join(str(error).split())[: core.LONGEST_TEXT]
            lost = f"{self._url} cannot be reached ({type(error).__name__}: {why})"
            self._tell(self._core.refused, "connection", lost)
        else:
            await self._read(connection)

    async def _read(self, connection: ClientConnection) -> None:
        try:
            while self._connection is connection:
                message = await connection.recv()
                self._tell(self._core.received, message, await has_more(connection))
        except ConnectionClosed as closed:
            if self._connection is connection:
                self._connection = None
                self._tell(self._core.closed, str(closed))

    async def _ping(self, connection: ClientConnection) -> None:
        await (await connection.ping())
        for _ in range(3):  # what came before it is with its reader
            await asyncio.sleep(0)
        if self._connection is connection:
            self._tell(self._core.pong)

    async def _abort(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
