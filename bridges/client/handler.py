"""Runs a user's handlers beside the socket's thread, so that a slow one delays neither heartbeats nor expiry.

What is too old by the time that its handler could begin is not begun: it is acknowledged as expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rtcontrol.bridges.client.errors import Declined
from rtcontrol.bridges.client.link import Link
from rtcontrol.bridges.client.standing import Standing
from rtcontrol.bridges.client.talk import What

CANCEL_S = 0.05  # how long a cancelled handler may still take before the safe call begins beside it
log = logging.getLogger(__name__)


class Handler(Protocol):
    """What empties one of the talk's queues."""

    def wake(self) -> None:
        """There may be something new; from any thread, never blocks."""


class Queue:
    """One of the talk's queues, as its handler sees it."""

    def __init__(self, link: Link, waiting: deque[Standing]) -> None:
        self._link, self._waiting = link, waiting

    def take(self) -> Standing | None:
        """The newest that waits; the ones before it are acknowledged as expired."""
        with self._link.lock:
            if not self._waiting:
                return None
            *skipped, newest = self._waiting
            self._waiting.clear()
            for old in skipped:
                self._expired(old, "superseded while the handler was busy")
            return newest

    def begins(self, standing: Standing) -> bool:
        """Whether it is in force at this instant; else it is acknowledged as expired."""
        with self._link.lock:
            now = self._link.talk.rule.at(time.monotonic_ns())
            good = now.status == "safe" if standing.status == "safe" else now.call is standing.call
            if not good:
                self._expired(standing, "no longer in force when the handler could begin")
        if not good:
            self._link.wake()
        return good

    def over(self, standing: Standing) -> bool:
        """Whether safe came into force instead of this call. A reset does not count: the handler may have made it."""
        with self._link.lock:
            now = self._link.talk.rule.at(time.monotonic_ns())
            return standing.status != "safe" and now.status == "safe" and now.cause != "reset"

    def done(self, standing: Standing, result: Any = None) -> None:
        """Acknowledge it as executed."""
        try:
            told = None if result is None else str(result)[:8192]
        except Exception as error:  # of the result's own __str__: what was done is done all the same
            told = f"{type(result).__name__} without words ({type(error).__name__})"
        self._told(standing, "executed", result=told)

    def undone(self, standing: Standing, error: Exception | str) -> None:
        """Acknowledge it as refused, where the handler said so, else as failed; that is logged."""
        if isinstance(error, Declined):
            self._told(standing, "refused", error=str(error)[:1000])
            return
        if isinstance(error, Exception):
            log.error("A handler failed.", exc_info=error)
            error = f"{type(error).__name__}: {error}"[:1000]
        self._told(standing, "failed", error=error)

    def _told(self, standing: Standing, outcome: What, result: str | None = None, error: str | None = None) -> None:
        if standing.tick is not None:
            with self._link.lock:
                self._link.talk.acknowledge(standing.tick, outcome, _clean(result), _clean(error))
            self._link.wake()

    def ended(self) -> bool:
        """Whether nothing will come any more."""
        with self._link.lock:
            return self._link.talk.error is not None and not self._waiting

    def _expired(self, standing: Standing, why: str) -> None:
        if standing.tick is not None:
            self._link.talk.acknowledge(standing.tick, "expired", error=why)


class ThreadHandler:
    """Of a plain function: one thread, one call at a time."""

    def __init__(self, queue: Queue, handle: Callable[[Standing], Any], name: str) -> None:
        self._queue, self._handle = queue, handle
        self._event = threading.Event()
        threading.Thread(target=self._run, name=f"rtcontrol-{name}", daemon=True).start()

    def wake(self) -> None:
        self._event.set()

    def _run(self) -> None:
        while True:
            self._event.wait()
            self._event.clear()
            while (standing := self._queue.take()) is not None:
                if self._queue.begins(standing):
                    self._one(standing)
            if self._queue.ended():
                return

    def _one(self, standing: Standing) -> None:
        try:
            result = self._handle(standing)
        except Exception as error:
            self._queue.undone(standing, error)
        else:
            self._queue.done(standing, result)


class LoopHandler:
    """Of a coroutine function: tasks of the user's event loop, one at a time. Safe cancels the one that runs."""

    def __init__(
        self, queue: Queue, handle: Callable[[Standing], Coroutine[Any, Any, Any]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._queue, self._handle, self._loop = queue, handle, loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None  # the one that others wait for
        self._running: Standing | None = None

    def wake(self) -> None:
        # A loop that was closed runs nothing any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._task is None:
            if (standing := self._queue.take()) is not None:
                self._running = standing
                self._task = self._loop.create_task(self._one(standing))
                self._tasks.add(self._task)
                self._task.add_done_callback(self._gone)
        elif self._running is not None and self._queue.over(self._running):
            self._running = None  # cancelled once
            self._task.cancel()
            self._loop.call_later(CANCEL_S, self._next, self._task)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._next(task)

    def _next(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            self._look()

    async def _one(self, standing: Standing) -> None:
        # The loop may have been busy since: looked at in the step that begins it.
        if not self._queue.begins(standing):
            return
        try:
            result = await self._handle(standing)
        except asyncio.CancelledError:
            self._queue.undone(standing, "cancelled before its end")
            raise
        except Exception as error:
            self._queue.undone(standing, error)
        else:
            self._queue.done(standing, result)


def _clean(text: str | None) -> str | None:
    """What is no Unicode (a file's name may hold lone surrogates) cannot be told otherwise."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
