"""The WebSocket to a policy server: it does what a `LinkCore` says, and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rtcontrol.hosts import policy_link_core as core
from rtcontrol.hosts.policy_socket import has_more, open_socket, send
from rtcontrol.hosts.protocol import DecisionLost
from rtcontrol.models.loop_thread import LoopThread


class PolicyLink:
    """Asks a policy server on a connection that is kept, and made again where it is lost; any thread may ask."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url, self._headers = url, headers
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
        asked = self._thread.start(self._ask, core.Requested(packed, round(limit_s * 1e9)))
        if asked is None:
            raise DecisionLost("connection", "the link was closed")
        return asked

    def cut(self) -> None:
        """Read nothing more on this connection: its server's last answer was wrong."""
        self._thread.call(self._dispatch, core.Distrusted())

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        self._thread.end(self._abort)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()

    # -- on the link's thread -----------------------------------------------------------------------------------------

    async def _ask(self, asked: core.Requested) -> bytes:
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._dispatch(asked)
        try:
            return await answer
        except asyncio.CancelledError:
            self._dispatch(core.GivenUp())
            raise

    def _dispatch(self, event: core.Event) -> None:
        if self._thread.ended:
            return
        for action in self._core.advance(event, time.monotonic_ns()):
            self._do(action)
        if self._timer is not None:
            self._timer.cancel()
        wake_ns = self._core.wake_ns
        loop = asyncio.get_running_loop()
        left_s = None if wake_ns is None else max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)
        self._timer = None if left_s is None else loop.call_later(left_s, self._dispatch, core.Woke())

    def _do(self, action: core.Action) -> None:
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
            self._spawn(send(connection, action.packed))
        elif isinstance(action, core.Ping) and connection is not None:
            self._spawn(self._ping(connection))
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
            connection = await open_socket(self.url, self._headers)
            self._connection = connection
            self._dispatch(core.Opened(await connection.recv()))
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            self._dispatch(core.Refused("http", f"{self.url} answered HTTP {status}{hint}"))
            return
        except Exception as error:
            self._connection = None
            why = " ".join(str(error).split())[: core.LONGEST_TEXT]
            what = f"{self.url} cannot be reached ({type(error).__name__}: {why})"
            self._dispatch(core.Refused("connection", what))
            return
        await self._read(connection)

    async def _read(self, connection: ClientConnection) -> None:
        try:
            while self._connection is connection:
                message = await connection.recv()
                self._dispatch(core.Received(message, await has_more(connection)))
        except ConnectionClosed as closed:
            if self._connection is connection:
                self._connection = None
                self._dispatch(core.Closed(str(closed)))

    async def _ping(self, connection: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await (await connection.ping())
            for _ in range(3):  # what came before it is with its reader
                await asyncio.sleep(0)
            if self._connection is connection:
                self._dispatch(core.Pong())

    async def _abort(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
