"""Run all code of a world, from its creation to its close, on a single thread."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rtcontrol.agents.signatures import run_to_completion

T = TypeVar("T")
CLOSE_S = 5.0  # seconds that the current step and the world's close() may take together
# A signal does not wake a main thread that waits for a job, so the wait is interrupted after this number of seconds.
POLL_S = 0.1
GRACE_S = 0.001  # after a job, the thread waits this long for another job before it makes the next step


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
        except BaseException as error:  # the caller gets any error, even SystemExit
            self.error = error
        self.done.release()


class WorldThread:
    """A thread that runs all code of one world, since OpenGL, sqlite and event loops need the thread that created them.

    Between jobs, the thread calls `due_work`, which makes due steps and returns the seconds until its next call, or
    None if the next call follows the next job. `close` stops waiting when `must_hurry()` is True. `close_error` is the
    error text if the world's `close()` failed, else "".
    """

    def __init__(self, name: str, world: Any = None) -> None:
        self.name, self.world, self.close_error = name, world, ""
        self.due_work: Callable[[], float | None] = lambda: None
        self.must_hurry: Callable[[], bool] = lambda: False
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = self._is_over = False

    def run(self, function: Callable[[], T]) -> T:
        """Run a function on the thread after all earlier jobs; return its result or raise its error.

        Raises RuntimeError if the thread is closed. If an exception such as KeyboardInterrupt ends the wait, a function
        that has not started is dropped. On the world's thread itself, the function runs immediately.
        """
        if threading.current_thread() is self._thread:
            return function()
        job = _Job(function)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the world {self.name} is closed, so it cannot run anything")
            if self._thread is None:
                self._start()
            self._jobs.put(job)
        try:
            while not job.done.acquire(timeout=POLL_S):
                pass
        except BaseException:
            job.dropped = True
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def create_world(self, function: Callable[[], T]) -> T:
        """Create the world on the thread and return it."""

        def create() -> T:
            self.world = function()
            return self.world

        return self.run(create)

    def close(self) -> None:
        """Close the world on its thread; later calls do nothing. Any thread may call this method, and it never raises.
        If a step or close() hangs, the thread (a daemon) runs until the process ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._thread is None:
                if self.world is None:
                    return
                self._start()
        self.due_work = lambda: None
        self._jobs.put(job := _Job(self._close_world))
        started_s = time.monotonic()
        while not job.done.acquire(timeout=POLL_S):
            if (waited_s := time.monotonic() - started_s) >= CLOSE_S or self.must_hurry():
                self.close_error = (
                    f"The world {self.name} did not close within {waited_s:.0f} s; its resources may leak."
                )
                return
        if job.error is not None:
            where = traceback.extract_tb(job.error.__traceback__)[-1]
            self.close_error = (
                f"The world {self.name} failed in its close() ({type(job.error).__name__}: {job.error}, "
                f"{where.filename}:{where.lineno}); its resources may leak."
            )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run_jobs, name=f"env-{self.name}", daemon=True)
        self._thread.start()

    def _close_world(self) -> None:
        self._is_over = True
        close_world(self.world)

    def _run_jobs(self) -> None:
        grace_end_s = 0.0  # until this time, wait for another job before `due_work`
        while not self._is_over:
            wait_s: float | None = 0.0
            # Jobs run before `due_work`, so that calls are executed even if the steps take all the time.
            if self._jobs.empty() and (wait_s := grace_end_s - time.monotonic()) <= 0:
                wait_s, grace_end_s = self.due_work(), 0.0
            try:
                job = self._jobs.get(timeout=wait_s)
            except Empty:
                continue
            job.run()
            grace_end_s = grace_end_s or time.monotonic() + GRACE_S  # if later jobs extended it, steps would be late


def close_world(world: Any) -> None:
    """Call the `close()` of an object if it has one."""
    if callable(close := getattr(world, "close", None)):
        run_to_completion(close)


def find_partly_created(error: BaseException, matches: Callable[[Any], bool]) -> Any:
    """Search the stack frames of `error` for an object that `matches`, so that it can be closed; None if absent."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if matches(value):
                return value
    return None
