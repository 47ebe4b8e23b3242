"""Run an asyncio event loop on a separate thread, so that any thread can start coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An asyncio event loop on a daemon thread, which runs until `end_loop` is called. All methods are thread-safe."""

    def __init__(self, name: str) -> None:
        self._lock, self._ended = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run_loop, args=(self._loop,), name=name, daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._ended

    def start_work(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> Future[T] | None:
        """Start the coroutine `work(*args, **kwargs)` on the thread. Return a future of its result; None after
        `end_loop`."""
        with self._lock:
            return None if self._ended else asyncio.run_coroutine_threadsafe(work(*args, **kwargs), self._loop)

    def schedule_call(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call of `function` on the thread; do nothing after `end_loop`."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(function, *args)

    def end_loop(self, cleanup: Callable[[], Awaitable[object]]) -> None:
        """Cancel all tasks, await `cleanup()`, and end the thread. A second call does nothing."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                asyncio.run_coroutine_threadsafe(_cancel_and_end(cleanup), self._loop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_and_end(cleanup: Callable[[], Awaitable[object]]) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await cleanup()
    asyncio.get_running_loop().stop()
