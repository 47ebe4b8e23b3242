"""Run a user's functions on separate threads, so that slow functions do not delay heartbeats or expired calls."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol_client import clock
from rtcontrol_client.client.active import Standing
from rtcontrol_client.client.errors import Declined
from rtcontrol_client.client.link import Link
from rtcontrol_client.wire.messages import Outcomes

AGAIN_S = 0.1  # pause before a failed safe call is retried while there is no session
SELDOM_S = 1.0  # in a session, this pause is the tick period, but at most SELDOM_S
CLOSE_S, SAFE_S = 1.0, 5.0  # `wait_for_safe_call` waits so long for the safe call's start, and for its end
NOT_LIVE_S = 0.02  # interval at which a ObservationThread checks whether there is a session
LOOK_ERROR_S = 10.0  # minimum interval between two log entries for errors in `look`
log = logging.getLogger(__name__)


class HandlerThread:
    """A thread that calls the user's function `handle` with each new active call (if `safe_only`, each safe call), one
    at a time. Several safe calls are handled separately. If `handle` raises an error for a safe call, the thread
    retries it in each tick period, until `handle` returns or another call is active.
    """

    def __init__(self, link: Link, safe_only: bool, handle: Callable[[Standing], Any]) -> None:
        self._link, self._core, self._safe_only, self._handle = link, link.core, safe_only, handle
        self._event, self._idle = threading.Event(), threading.Event()
        self._idle.set()  # cleared while a safe call runs
        self._retries: list[Standing] = []  # safe calls that the handler has not executed successfully
        self._retry_s = 0.0  # when to retry the safe calls in `_retries`
        self.wake = self._event.set
        self._thread = threading.Thread(target=self._run, name="rtcontrol-handler", daemon=True)
        self._thread.start()

    def wait_for_safe_call(self) -> None:
        """Wait until the handler has executed the safe call: CLOSE_S, or SAFE_S while it runs. The core has ended."""
        if threading.current_thread() is self._thread:
            return  # the user's handler itself has called this, so do not wait
        self._thread.join(CLOSE_S)
        self._idle.wait(SAFE_S - CLOSE_S)
        if self._has_pending:
            log.error("The client is closed, but its handler has not executed the safe call.")

    @property
    def _has_pending(self) -> bool:
        return self._safe_only in self._core.handler_queue.next_calls or bool(self._retries)

    def _run(self) -> None:
        while self._should_continue():
            self._event.wait(max(0.0, self._retry_s - time.monotonic()) if self._retries else None)
            self._event.clear()
            queue = self._core.handler_queue
            while self._safe_only in queue.next_calls or (self._retries and time.monotonic() >= self._retry_s):
                self._execute_next()

    def _should_continue(self) -> bool:
        with self._link.lock:  # under this lock, the core ends and queues the safe call in a single step
            return self._has_pending or self._core.error is None

    def _execute_next(self) -> None:
        """Execute the queued call, or retry failed safe calls if the queue is empty."""
        with self._link.lock:
            queued = self._core.pop_call(self._safe_only, clock.now_ns())
            active = self._core.active.standing_at(clock.now_ns())
        self._link.wake()
        safe = (queued or active).status == "safe"
        if queued is not None and safe:
            self._retries = [replace(queued, call=call, more=()) for call in queued.calls] or [queued]
        elif not safe:
            self._retries = []
        if self._retries:
            self._idle.clear()
        results: list[Any] = []
        errors: list[BaseException] = []
        for standing in list(self._retries) if queued is None or safe else [queued]:
            try:
                result = self._handle(standing)
                if inspect.isawaitable(result):
                    raise TypeError("the handler returned an awaitable, which is never awaited: use a plain function")
                results.append(result)
                self._retries = [failed for failed in self._retries if failed is not standing]
            except BaseException as error:
                errors.append(error)
        welcome = None if self._core.error is not None else self._core.session.welcome
        self._retry_s = time.monotonic() + (min(welcome.period_ms / 1e3, SELDOM_S) if welcome else AGAIN_S)
        if queued is not None:
            self._report_outcome(queued, results, errors)
        if queued is None or safe:
            self._idle.set()

    def _report_outcome(self, standing: Standing, results: Sequence[Any], errors: Sequence[BaseException]) -> None:
        outcome: Outcomes = "refused" if errors else "executed"
        for error in errors:
            if not isinstance(error, Declined):
                outcome = "failed"
                log.error("A handler failed.", exc_info=error)
        words = {"result": _join([r for r in results if r is not None], 8192), "error": _join(errors, 1000)}
        with self._link.lock:
            self._core.acknowledge(standing, outcome, clock.now_ns(), **words)
        self._link.wake()


def _join(values: Sequence[Any], limit: int) -> str | None:
    """Join values to a text of at most `limit` characters, or None if empty; an error's text starts with its type."""
    try:
        failed = [isinstance(value, BaseException) and not isinstance(value, Declined) for value in values]
        words = [f"{type(v).__name__}: {v}" if error else str(v) for v, error in zip(values, failed, strict=True)]
        text = "; ".join(words)[:limit]
    except BaseException as error:  # the __str__ of a value raised an error, although the call was executed
        text = f"no text ({type(error).__name__})"
    # Replace lone surrogates (in file names, for example), which a message cannot contain.
    return text.encode("utf-8", "replace").decode("utf-8") or None


class ObservationThread:
    """A thread that calls the user's function `look` before each tick and sends the observation that it returns.

    The time stamp of an observation is the time just before `look` was called. `close` ends the thread, but cannot stop
    a `look` that does not return.
    """

    def __init__(self, client: Any, look: Callable[[], Any]) -> None:
        self._client, self._look, self._ended = client, look, threading.Event()
        self._logged_s = -LOOK_ERROR_S
        self._thread = threading.Thread(target=self._run, name="rtcontrol-look", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.5)

    def _run(self) -> None:
        client, over = self._client, self._ended
        due_ns = 0  # observe immediately, because the server's ticks start with the first observation
        while not over.is_set() and client.error is None:
            if not client.connected:
                over.wait(NOT_LIVE_S)
                due_ns = 0
            elif (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
                over.wait(left_s)
            else:
                self._observe()
                due_ns = client.next_observation_ns()

    def _observe(self) -> None:
        t_ns = time.monotonic_ns()
        try:
            look = self._look()
            if isinstance(look, Mapping):
                self._client.observe(data=look, t_ns=t_ns)
            elif look is not None:
                self._client.observe(look, t_ns=t_ns)
        except Exception:  # an error of the user's function or of `observe`; this tick has no new observation
            if time.monotonic() > self._logged_s + LOOK_ERROR_S:
                log.exception("look() returned no observation.")
                self._logged_s = time.monotonic()
