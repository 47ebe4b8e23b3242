"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rtcontrol.bridges.client.base import Base
from rtcontrol.bridges.client.handler import Handler, LoopHandler, Queue
from rtcontrol.bridges.client.standing import Standing


class AsyncClient(Base):
    """As `Client`, with `await` where that one blocks. The socket stays in a thread of its own: an event loop that is
    busy delays neither heartbeats nor expiry. A coroutine `on_call` runs in the event loop, one at a time: it is not
    begun for a call that ran out while the loop was busy, and is cancelled where safe comes into force meanwhile. While
    the loop is blocked nothing of it can run, nor its safe call: a machine that must stop in time has an `on_safe`.

    Example:

        async with await AsyncClient.connect("tcp://127.0.0.1:5555", agent="lander") as client:
            client.observe(text=look())
            standing = await client.wait(0.2)
    """

    _awaits = True

    @classmethod
    async def connect(cls, endpoint: str, **options: Any) -> Self:
        """As `Client.connect`."""
        return await cls(endpoint, options, listens=False)._ready()

    @classmethod
    async def listen(cls, endpoint: str, **options: Any) -> Self:
        """As `Client.listen`."""
        return await cls(endpoint, options, listens=True)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any], listens: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        super().__init__(endpoint, options, listens)
        self._seen = 0

    def _notify(self) -> None:
        # A loop that was closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)

    def _handler(self, queue: Queue, on_call: Callable[[Standing], Any]) -> Handler:
        if inspect.iscoroutinefunction(on_call):
            return LoopHandler(queue, on_call, self._loop)
        return super()._handler(queue, on_call)

    async def _ready(self) -> Self:
        try:
            if not await self._until(lambda: self.connected or self.error is not None, self.options.connect_timeout_s):
                raise self.unwelcomed(self.options.connect_timeout_s or 0)
            if self.error is not None:
                raise self.error
        except BaseException:
            self._link.close()
            raise
        return self

    async def _until(self, ready: Callable[[], bool], limit_s: float | None) -> bool:
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not ready():
            self._news.clear()
            if ready():
                break
            try:
                async with asyncio.timeout(None if end_s is None else max(0.0, end_s - time.monotonic())):
                    await self._news.wait()
            except TimeoutError:
                return ready()
        return True

    async def wait(self, timeout: float | None = None) -> Standing:
        """As `Client.wait`."""
        await self._until(lambda: self._version() != self._seen or self.error is not None, timeout)
        self._seen = self._version()
        return self.call()

    async def decide(
        self,
        observation: str | Mapping[str, Any] | None = None,
        *,
        arrays: Mapping[str, Any] | None = None,
        t_ns: int | None = None,
        timeout: float | None = None,
    ) -> Standing:
        """As `Client.decide`."""
        sent = self._decide(observation, arrays, t_ns)
        try:
            await self._until(self._answered, self._decide_s(timeout, sent))
        finally:
            standing = self._decided()
        return standing

    async def close(self) -> None:
        """As `Client.close`."""
        self._link.begin_close()
        await self._until(self._link.closed, 0.09)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()
