"""Runs a user's handlers beside the socket's thread, so that a slow one delays neither heartbeats nor expiry."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol.bridges.client.errors import Declined
from rtcontrol.bridges.client.execution import What
from rtcontrol.bridges.client.inforce import Standing
from rtcontrol.bridges.client.link import Link

CANCEL_S = 0.05  # how long a cancelled coroutine may still take before the safe call begins beside it
Loop = asyncio.AbstractEventLoop
log = logging.getLogger(__name__)


class Handler:
    """A thread that calls `handle` with what a queue of the core holds, one at a time. A coroutine function runs in
    `loop`, where it is cancelled when safe comes into force."""

    def __init__(
        self, link: Link, queue: deque[Standing], handle: Callable[[Standing], Any], loop: Loop | None
    ) -> None:
        self._link, self._queue, self._handle, self._loop = link, queue, handle, loop
        self._event = threading.Event()
        self._running: Standing | None = None  # in the loop
        self.wake = self._event.set
        threading.Thread(target=self._run, name="rtcontrol-handler", daemon=True).start()

    def _run(self) -> None:
        while self._queue or self._link.core.error is None:
            self._event.wait()
            self._event.clear()
            while self._queue:
                if self._loop is not None:
                    self._await(self._loop)
                elif (standing := self._take()) is not None:
                    try:
                        self._tell(standing, "executed", self._handle(standing))
                    except Exception as error:
                        self._failed(standing, error)

    def _await(self, loop: Loop) -> None:
        coroutine = self._one()
        try:
            task = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop was closed: nothing of it will run any more
            coroutine.close()
            self._queue.clear()
            return
        task.add_done_callback(lambda _: self._event.set())
        while not task.done():
            self._event.wait()
            self._event.clear()
            if self._over():
                task.cancel()
                concurrent.futures.wait([task], CANCEL_S)
                return

    async def _one(self) -> None:
        # The loop may have been busy since: taken in the step that begins it.
        if (standing := self._take()) is None:
            return
        self._running = standing
        try:
            self._tell(standing, "executed", await self._handle(standing))
        except asyncio.CancelledError:
            self._tell(standing, "failed", error="cancelled before its end")
            raise
        except Exception as error:
            self._failed(standing, error)

    def _take(self) -> Standing | None:
        with self._link.lock:
            taken = self._link.core.execution.take(self._queue, time.monotonic_ns())
        self._link.wake()
        return taken

    def _over(self) -> bool:
        """Whether safe came into force instead of what runs. A reset does not count: the handler may have made it."""
        with self._link.lock:
            now = self._link.core.force.at(time.monotonic_ns())
        running = self._running
        return running is not None and running.status != "safe" and now.status == "safe" and now.cause != "reset"

    def _failed(self, standing: Standing, error: Exception) -> None:
        if isinstance(error, Declined):
            self._tell(standing, "refused", error=str(error)[:1000])
        else:
            log.error("A handler failed.", exc_info=error)
            self._tell(standing, "failed", error=f"{type(error).__name__}: {error}"[:1000])

    def _tell(self, standing: Standing, outcome: What, result: Any = None, error: str | None = None) -> None:
        try:
            result = None if result is None else str(result)[:8192]
        except Exception as fault:  # of the result's own __str__: what was done is done all the same
            result = f"{type(result).__name__} without words ({type(fault).__name__})"
        words = {"result": _unicode(result), "error": _unicode(error)}
        with self._link.lock:
            self._link.core.execution.acknowledge(standing.tick, outcome, time.monotonic_ns(), **words)
        self._link.wake()


def _unicode(text: str | None) -> str | None:
    """What is no Unicode (a file's name may hold lone surrogates) cannot be told otherwise."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
