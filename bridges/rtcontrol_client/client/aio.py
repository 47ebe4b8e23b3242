"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Self

from rtcontrol_client.client.client import Client
from rtcontrol_client.client.session import Standing


class AsyncClient:
    """As `Client`, with `await` where that one blocks (`connect`, `listen`, `wait`, `decide`, `close`). The socket
    stays in a thread of its own: an event loop that is busy delays neither heartbeats nor expiry. A coroutine `on_call`
    runs in the event loop, one at a time: it is not begun for a call that ran out while the loop was busy, and is
    cancelled where safe comes into force meanwhile. While the loop is blocked nothing of it can run, nor its safe call:
    a machine that must stop in time has an `on_safe`. Once the loop has ended, the safe call alone is run, in another.

    Example:

        async with await AsyncClient.connect("tcp://127.0.0.1:5555", agent="lander") as client:
            client.observe(text=look())
            standing = await client.wait(0.2)
    """

    @classmethod
    async def connect(cls, endpoint: str, **options: Any) -> Self:
        return await cls(endpoint, options)._ready()

    @classmethod
    async def listen(cls, endpoint: str, **options: Any) -> Self:
        return await cls(endpoint, options, listens=True)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any], listens: bool = False) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self.client = Client(endpoint, options, listens, self._loop)
        self.client.notified, self.client.until = self._notify, self._until

    def __getattr__(self, name: str) -> Any:
        """What never blocks is the client's."""
        return getattr(self.__dict__["client"], name)

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody who waits
            self._loop.call_soon_threadsafe(self._news.set)

    async def _until(self, ready: Callable[[], bool], limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not ready():
                    self._news.clear()
                    if not ready():
                        await self._news.wait()

    async def _ready(self) -> Self:
        try:
            await self.client.welcomed()
        except BaseException:
            await self.close()
            raise
        return self

    async def wait(self, timeout: float | None = None) -> Standing:
        return await self.client.waited(timeout)

    async def decide(self, observation: Any = None, **given: Any) -> Standing:
        return await self.client.decided(observation, **given)

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
