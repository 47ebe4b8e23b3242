"""A decoder pool in this process: one thread decides for all sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionReply, DecisionRequest, Host, HostEvent, PlaceTrouble
from rtcontrol.hosts.inprocess import answer, describe
from rtcontrol.hosts.pool import LIMIT, Places, Rota, build


class InProcessPool:
    """Deciders are built on the thread that opens the session, one at a time, and asked on the worker's thread.

    Python's one lock is shared with everything else in the process: for tests, embedding and machines without Ray.
    """

    name = "inprocess"

    def __init__(self, limit: int = LIMIT) -> None:
        self._places = Places(limit)
        self._rota = Rota()
        self._arrived = threading.Condition()
        self._building = threading.Lock()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="decoder-pool", daemon=True)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        # Loading torch holds the interpreter for a second or two: not while sessions go on.
        import rtcontrol.models.engines.torch_engine  # noqa: F401

        self._worker.start()
        return {}

    def open(self, session: str, source: DeciderSource) -> Host:
        self._places.take()
        try:
            with self._building:
                if self._closed:
                    raise PlaceTrouble("The decoder is closed.", "Start it again.")
                return SessionHost(self, build(source))
        except BaseException:
            self._places.free()
            raise

    def alive(self) -> bool:
        return self._worker.is_alive()

    def close(self) -> None:
        """A decision that is being made ends with the process: the worker is a daemon."""
        with self._arrived:
            self._closed = True
            self._arrived.notify()
        if self._worker.is_alive():
            self._worker.join(timeout=1.0)

    def _work(self) -> None:
        while True:
            with self._arrived:
                while (turn := self._rota.take()) is None and not self._closed:
                    self._arrived.wait()
            if self._closed or turn is None:
                return
            host, request = turn
            # What is left of the turn would keep a closed session's decider alive until the next request.
            host.decide(request)
            del turn, host, request


class SessionHost:
    """One session's part of an `InProcessPool`."""

    name = "inprocess"

    def __init__(self, pool: InProcessPool, decider: Decider) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self._pool = pool
        self._decider: Decider | None = decider
        self._replies: SimpleQueue[DecisionReply | None] = SimpleQueue()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return {} if self._decider is None else describe(self._decider)

    def submit(self, request: DecisionRequest) -> None:
        pool = self._pool
        with pool._arrived:
            if self.alive():
                pool._rota.put(self, request)
                pool._arrived.notify()

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        try:
            if timeout_ns <= 0:
                return self._replies.get_nowait()
            return self._replies.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None

    def wake(self) -> None:
        self._replies.put(None)

    def alive(self) -> bool:
        return self._decider is not None and not self._pool._closed

    def cancel(self, tick: int) -> None:
        with self._pool._arrived:
            self._pool._rota.cancel(self, tick)

    def close(self) -> None:
        with self._pool._arrived:
            self._pool._rota.remove(self)
            decider, self._decider = self._decider, None
        if decider is not None:
            self._pool._places.free()

    def decide(self, request: DecisionRequest) -> None:
        """On the worker's thread."""
        decider = self._decider
        if decider is not None:
            self._replies.put(answer(decider, request))
