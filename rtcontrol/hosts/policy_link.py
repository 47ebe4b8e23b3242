"""A WebSocket to a policy server that may hang, lie or go away: one question at a time, each within its time.

A connection answers strictly one question after the other, and says nothing by itself. One on which an answer did not
come in time, or something came that nobody waits for, is cut and never used again: what it would say next is an answer
to an older question. Behind each answer goes a ping, and the next question only behind its pong: a second answer that
the server sent before it is then there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rtcontrol.hosts.array_message import MOST_BYTES, MalformedMessage, unpack_message
from rtcontrol.hosts.protocol import DecisionLost

OPEN_S = 10.0  # the handshake, and the server's first message
RETRY_S = 0.1  # from a try that failed to the next
# A server that is deciding may be deaf meanwhile: silence is told by the question's own deadline, and by pings while
# none is owed an answer.
PING_S, PONG_S = 2.0, 10.0
ARRIVED = 8  # answers that are kept until somebody looks at them
TOLD = 300  # characters of a server's words


class _Straight(connect):
    """A redirect is an answer like any other status: the key goes where its owner sent it, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@dataclass
class _Channel:
    """An open connection: what it said first, whose answer it owes, the pong of its last ping, and what is wrong with
    it."""

    connection: ClientConnection
    metadata: Mapping[str, Any]
    owed: asyncio.Future[str | bytes] | None = None
    pong: asyncio.Future[float] | None = None
    fault: DecisionLost | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list, repr=False)

    @property
    def owing(self) -> bool:
        return self.owed is not None and not self.owed.done()

    def open(self) -> None:
        self.tasks = [asyncio.get_running_loop().create_task(work) for work in (self.read(), self.watch())]

    async def read(self) -> None:
        try:
            async for said in self.connection:
                owed = self.owed
                if owed is None or owed.done():
                    self.fault = DecisionLost("malformed", "the policy server said something that nobody asked for")
                    break
                owed.set_result(said)
            else:
                self.fault = _closed(self.connection)
        except ConnectionClosed:
            self.fault = _closed(self.connection)
        self.cut()
        if self.owed is not None and not self.owed.done():
            self.owed.set_exception(_anew(self.fault))

    async def watch(self) -> None:
        """Cut it where a ping is not answered while no question is owed its answer."""
        while self.fault is None:
            await asyncio.sleep(PING_S)
            if self.owing:
                continue
            if self.pong is None or self.pong.done():
                await self._ping()
            waiting = self.pong
            if waiting is not None:
                await asyncio.wait([waiting], timeout=PONG_S)
                if not waiting.done() and not self.owing and waiting is self.pong:
                    self.cut()

    def cut(self) -> None:
        self.fault = self.fault or DecisionLost("connection", "the connection was cut")
        self.connection.transport.abort()
        if len(self.tasks) > 1 and (watching := self.tasks.pop()) is not asyncio.current_task():
            watching.cancel()

    async def quiet(self) -> bool:
        """Whether all that was sent before the last pong was heard, and nothing of it was too much: wait for that."""
        if self.pong is not None:
            await asyncio.wait([self.pong])
            await _heard()
        return self.fault is None

    async def ask(self, packed: bytes) -> str | bytes:
        if self.fault is not None:
            raise _anew(self.fault)
        self.owed = asyncio.get_running_loop().create_future()
        try:
            await self.connection.send(packed)
            said = await self.owed
        except ConnectionClosed:
            raise _anew(self.fault or _closed(self.connection)) from None
        finally:
            self.owed = None
        await self._ping()
        await _heard()
        if self.fault is not None and self.fault.loss == "malformed":  # which of them is the answer?
            raise _anew(self.fault)
        return said

    async def _ping(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            self.pong = asyncio.ensure_future(await self.connection.ping())


async def _heard() -> None:
    """What came right behind is with its reader."""
    for _ in range(2):
        await asyncio.sleep(0)


class PolicyLink:
    """Asks a policy server on a connection that is kept, and made anew where it is lost; any thread may ask. `metadata`
    is what the server said first, empty before; `arrived` are answers, also those that nobody waited for any more."""

    def __init__(self, url: str, headers: Mapping[str, str], most_bytes: int = MOST_BYTES) -> None:
        self.url, self._headers, self._most_bytes = url, headers, most_bytes
        self.metadata: Mapping[str, Any] = {}
        self.arrived: deque[bytes] = deque(maxlen=ARRIVED)
        self.connections = 0
        self._lock, self._left = threading.Lock(), False
        self._channel: _Channel | None = None
        self._opening: asyncio.Task[_Channel | None] | None = None
        self._failed: tuple[float, DecisionLost] | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name="policy link", daemon=True).start()

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """The answer's bytes to come; cancelling it cuts the connection. It raises DecisionLost, as this does after
        `close`."""
        with self._lock:
            if self._left:
                raise DecisionLost("connection", "the link was closed")
            return asyncio.run_coroutine_threadsafe(self._ask(packed, limit_s), self._loop)

    async def _ask(self, packed: bytes, limit_s: float) -> bytes:
        channel: _Channel | None = None
        try:
            async with asyncio.timeout(limit_s):
                channel = await self._opened()
                while not await channel.quiet():  # one that said too much is not asked: another is
                    channel = await self._opened()
                said = await channel.ask(packed)
        except TimeoutError as late:
            _forget(late)
            what = "no connection" if channel is None else "no answer"
            raise DecisionLost("timeout", f"{what} in time") from None
        else:
            if isinstance(said, str):
                raise DecisionLost("server_error", f"the policy server failed: {last_line(said)}")
            answered, channel = channel, None
            self._channel = answered
            self.arrived.append(said)
            return said
        finally:
            if channel is not None:  # whatever it says now is of this question, or of one before
                channel.cut()
            self._renew()

    async def _opened(self) -> _Channel:
        if self._channel is not None and self._channel.fault is None:
            return self._channel
        if self._failed is not None and time.monotonic() < self._failed[0] + RETRY_S:
            raise _anew(self._failed[1])
        self._renew()
        assert self._opening is not None, "it was begun"
        made = await asyncio.shield(self._opening)
        if made is None:
            assert self._failed is not None, "it failed"
            raise _anew(self._failed[1])
        return made

    def _renew(self) -> None:
        """Where there is no connection, begin one: the next question finds it."""
        usable = self._channel is not None and self._channel.fault is None
        if self._left or usable or (self._opening is not None and not self._opening.done()):
            return
        self._channel = None
        self._opening = asyncio.get_running_loop().create_task(self._open())
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _open(self) -> _Channel | None:
        if self._failed is not None:
            await asyncio.sleep(max(0.0, self._failed[0] + RETRY_S - time.monotonic()))
        try:
            async with asyncio.timeout(OPEN_S):
                made = await self._greeted()
        except TimeoutError as late:
            _forget(late)
            lost = DecisionLost("timeout", f"{self.url} accepted no connection within {OPEN_S:g} s")
        except InvalidStatus as refused:
            _forget(refused)
            status = refused.response.status_code
            hint = "; its key is RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            if 300 <= status < 400:
                hint = "; no redirect is followed: name the server's own address"
            lost = DecisionLost("http", f"{self.url} answered HTTP {status}{hint}")
        except (OSError, WebSocketException, EOFError) as error:
            _forget(error)
            lost = DecisionLost("connection", f"{self.url} cannot be reached ({type(error).__name__}: {_short(error)})")
        except DecisionLost as error:
            lost = _anew(error)
        else:
            self._failed, self._channel, self.metadata = None, made, made.metadata
            self.connections += 1
            return made
        self._failed = time.monotonic(), lost
        return None

    async def _greeted(self) -> _Channel:
        """A new connection, once the server has said what it is."""
        connection = await _Straight(
            self.url,
            compression=None,
            max_size=self._most_bytes,
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
        except MalformedMessage as error:
            connection.transport.abort()
            what = f"the first message of {self.url} is not a policy server's: {error}"
            raise DecisionLost("malformed", what) from None
        except BaseException:
            connection.transport.abort()
            raise
        made = _Channel(connection, metadata)
        made.open()
        return made

    def cut(self) -> None:
        """Its server is not to be believed: what else it says on this connection is not read."""
        with self._lock:
            if not self._left:
                self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        if self._channel is not None:
            self._channel.cut()
        self._renew()

    def close(self) -> None:
        """Cut the connection; what is under way is cancelled."""
        with self._lock:
            left, self._left = self._left, True
        if not left:
            with contextlib.suppress(RuntimeError):  # Python ends
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        if self._channel is not None:
            self._channel.cut()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        asyncio.get_running_loop().stop()

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            self.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def last_line(text: str) -> str:
    """Of a traceback what was raised, in short."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "it says nothing")[:TOLD]


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:TOLD]


def _anew(lost: DecisionLost) -> DecisionLost:
    """What is kept is not raised: its traceback would keep the frames, and they the link."""
    return DecisionLost(lost.loss, str(lost))


def _forget(error: BaseException | None) -> None:
    """Its frames, and those of what it came from: some of the libraries' hold it themselves, and with it the link."""
    while error is not None:
        error = error.with_traceback(None).__context__


def _closed(connection: ClientConnection) -> DecisionLost:
    code = connection.close_code
    if code == 1009:
        return DecisionLost("malformed", "the policy server sent a message that is too large, or refused ours as such")
    return DecisionLost("connection", f"the policy server closed the connection (code {code})")
