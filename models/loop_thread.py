"""An event loop on a thread of its own, for clients that are used from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on a daemon thread until `end`; any thread may start them."""

    def __init__(self, name: str) -> None:
        self._lock, self._ended = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._ended

    def start(self, work: Callable[..., Coroutine[Any, Any, T]], *given: Any, **named: Any) -> Future[T] | None:
        """Start `work` on the thread; return a future of its result, None after `end`."""
        with self._lock:
            return None if self._ended else asyncio.run_coroutine_threadsafe(work(*given, **named), self._loop)

    def call(self, act: Callable[..., object], *given: Any) -> None:
        """Call `act` on the thread soon; do nothing after `end`."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(act, *given)

    def end(self, last: Callable[[], Awaitable[object]]) -> None:
        """Cancel all tasks, await `last`, and end the thread. A second call does nothing."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            with contextlib.suppress(RuntimeError):  # Python ends
                asyncio.run_coroutine_threadsafe(_end(last), self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(last: Callable[[], Awaitable[object]]) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    asyncio.get_running_loop().stop()
