"""Run a world on one thread, which creates, resets, calls, steps and closes the world."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
# Seconds that the current step and the world's close() may take together.
CLOSE_S = 5.0
# A signal on another thread does not wake the main thread, so that the main thread checks at this interval.
LOOK_S = 0.1
# After a job, the next step waits so long for a caller that has a newer call.
GRACE_S = 0.001


class _Job:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function, self.done = function, threading.Lock()
        self.done.acquire()
        self.dropped = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if not self.dropped:
                self.result = self._function()
        except BaseException as error:  # also SystemExit, which the caller gets
            self.error = error
        self.done.release()


class WorldThread:
    """A thread for one world, since OpenGL contexts, sqlite and event loops belong to the thread that created them.

    The thread calls `due` between jobs, which does pending work and returns the seconds until the next call (None:
    after the next job). `world` is the created or given object, with or without a `close()`. `fault` is an error at
    closing.
    """

    def __init__(self, name: str, world: Any = None) -> None:
        self.name, self.world, self.fault = name, world, ""
        self.due: Callable[[], float | None] = lambda: None
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = self._over = False

    def do(self, function: Callable[[], T]) -> T:
        """Run a function on the thread after all earlier jobs; return its result or raise its error. Raises
        RuntimeError if the thread is closed.

        If the caller is interrupted while waiting, a started function continues, and one that has not started is
        dropped. A call from the thread itself runs at once.
        """
        if threading.current_thread() is self._thread:
            return function()
        job = _Job(function)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the world {self.name} is closed")
            if self._thread is None:
                self._start()
            self._jobs.put(job)
        try:
            while not job.done.acquire(timeout=LOOK_S):
                pass
        except BaseException:
            job.dropped = True
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def make(self, function: Callable[[], T]) -> T:
        """Create the world on the thread and return it. After an error, a partly created world is closed
        (`half_made`)."""

        def make() -> T:
            self.world = function()
            return self.world

        return self.do(make)

    def close(self) -> None:
        """Close the world on its thread, once. Any thread may call this; nothing is raised. The thread is a daemon, so
        a step or close() that hangs lasts until the process ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._thread is None:
                if self.world is None:
                    return
                self._start()
        self.due = lambda: None
        self._jobs.put(job := _Job(self._shut))
        if not job.done.acquire(timeout=CLOSE_S):
            self.fault = f"The world {self.name} has not closed within {CLOSE_S:g} s, and may hold on to what it uses."
        elif job.error is not None:
            where = traceback.extract_tb(job.error.__traceback__)[-1]
            self.fault = (
                f"The world {self.name} failed in its close() ({type(job.error).__name__}: {job.error}, "
                f"{where.filename}:{where.lineno}), and may hold on to what it uses."
            )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"env-{self.name}", daemon=True)
        self._thread.start()

    def _shut(self) -> None:
        self._over = True
        shut(self.world)

    def _work(self) -> None:
        until = 0.0  # a caller may send another job before the next due work
        while not self._over:
            wait_s: float | None = 0.0
            # Jobs run before due work, so that a world that needs all its time for steps still takes calls.
            if self._jobs.empty() and (wait_s := until - time.monotonic()) <= 0:
                wait_s, until = self.due(), 0.0
            try:
                job = self._jobs.get(timeout=wait_s)
            except Empty:
                continue
            job.run()
            until = until or time.monotonic() + GRACE_S  # only once, so that the world keeps its clock


def shut(world: Any) -> None:
    """Close an object if it has a `close()`."""
    if callable(close := getattr(world, "close", None)):
        close()


def half_made(error: BaseException, is_one: Callable[[Any], bool]) -> Any:
    """Return the object whose `__init__` (or the `__init__` of a wrapper) raised `error`, so that its resources can be
    released, or None."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if is_one(value):
                return value
    return None
