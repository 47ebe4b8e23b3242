"""Looks at the world by itself, just in time for each of the server's ticks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rtcontrol_client.client.errors import ClientError

NOT_LIVE_S = 0.02  # how often a session that is not live is asked for
AGAIN_S = 10.0  # how often the same mistake is told
log = logging.getLogger(__name__)


class Observable(Protocol):
    """What is looked for: a client."""

    @property
    def connected(self) -> bool: ...

    @property
    def error(self) -> ClientError | None: ...

    def next_observation_ns(self) -> int: ...

    def observe(self, text: str | None = None, data: Any = None, *, t_ns: int | None = None) -> int: ...


class Looker:
    """A thread that calls `look` and sends what it gives, stamped with the instant before it was called. `close` ends
    it; a `look` that does not return is left behind."""

    def __init__(self, client: Observable, look: Callable[[], Any]) -> None:
        self._client, self._look, self._over = client, look, threading.Event()
        self._told, self._told_s = "", 0.0
        self._thread = threading.Thread(target=self._run, name="rtcontrol-look", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.5)

    def _run(self) -> None:
        client, over = self._client, self._over
        due_ns = 0  # the first look is at once: the server's ticks begin with it
        while not over.is_set() and client.error is None:
            if not client.connected:
                over.wait(NOT_LIVE_S)
                due_ns = 0
            elif (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
                over.wait(left_s)
            else:
                self._see()
                due_ns = client.next_observation_ns()

    def _see(self) -> None:
        t_ns = time.monotonic_ns()
        try:
            seen = self._look()
            if isinstance(seen, Mapping):
                self._client.observe(data=seen, t_ns=t_ns)
            elif seen is not None:
                self._client.observe(seen, t_ns=t_ns)
        except Exception as error:  # the user's own, too: without an observation the server misses its ticks
            words, now_s = f"{type(error).__name__}: {error}", time.monotonic()
            if words != self._told or now_s > self._told_s + AGAIN_S:
                log.exception("look() gave no observation.")
                self._told, self._told_s = words, now_s
