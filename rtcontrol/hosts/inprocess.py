"""Decides in this process: in worker threads that all sessions share, or at once on the caller's own thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, Queue
from typing import Any

from rtcontrol.hosts.deciders import DeciderLane, build, describe, end
from rtcontrol.hosts.protocol import (
    LIMIT,
    SHARES,
    Decider,
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderUnavailable,
    HostEvent,
)
from rtcontrol.hosts.scheduler import EdfScheduler


class Places:
    """How many sessions are open or being opened; at most `limit`. Any thread may call it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Raise DecoderUnavailable when all are taken."""
        with self._lock:
            if self.taken >= self.limit:
                what = f"The decoder has {self.limit} open sessions, as many as it may."
                raise DecoderUnavailable(what, "Close one, or try again later.", full=True)
            self.taken += 1

    def free(self) -> None:
        with self._lock:
            self.taken -= 1


class InProcessPool:
    """Deciders are built on the thread that opens the session, one at a time, and asked on the workers' threads: one
    for each lane. Without lanes each is asked inside `submit`: for those that take no time (no-op, random, expert).

    Python's one lock is shared with everything else in the process: for tests, embedding and machines without Ray.
    `preload` loads torch at the start: it holds the interpreter for a second or two, so not while sessions go on.
    """

    gave_up: str | None = None

    def __init__(self, limit: int = LIMIT, lanes: int = 1, preload: bool = True) -> None:
        self.name = "inprocess" if lanes else "inline"
        self.lanes, self._preload = lanes, preload and lanes > 0
        self.places = Places(limit)
        self.rota = EdfScheduler(lanes)
        self.arrived = threading.Condition()
        self.closed = False
        self._building = threading.Lock()
        made = [self._lane(i) for i in range(lanes or 1)]
        self.inline = None if lanes else made[0]
        self._workers = [
            threading.Thread(target=self._work, args=(made[i],), name=f"decider-{i}", daemon=True) for i in range(lanes)
        ]

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self._preload:
            import rtcontrol.models.runners.torch_runner  # noqa: F401
        for worker in self._workers:
            worker.start()
        return {}

    def open(self, session: str, source: DeciderSource) -> InProcessHost:
        host = InProcessHost(source, pool=self)
        host.start()
        return host

    def build(self, source: DeciderSource) -> list[Decider]:
        """A decider for each lane, and a place for the session; free it."""
        self.places.take()
        try:
            with self._building:
                if self.closed:
                    raise DecoderUnavailable("The decoder is closed.", "Start it again.")
                return [build(source) for _ in range(self.lanes or 1)]
        except BaseException:
            self.places.free()
            raise

    @property
    def threads(self) -> list[tuple[int, int]]:
        """Process and thread number of each worker."""
        return [(os.getpid(), worker.native_id) for worker in self._workers if worker.native_id is not None]

    def alive(self) -> bool:
        return not self.closed and all(worker.is_alive() for worker in self._workers)

    def close(self) -> None:
        """A decision that is being made ends with the process: the workers are daemons."""
        with self.arrived:
            self.closed = True
            self.arrived.notify_all()
        for worker in self._workers:
            if worker.is_alive():
                worker.join(timeout=1.0)

    def _lane(self, i: int) -> DeciderLane:
        return DeciderLane(
            self.rota, partial(InProcessHost.decider, lane=i), InProcessHost.given_up, InProcessHost.take
        )

    def _work(self, lane: DeciderLane) -> None:
        while True:
            with self.arrived:
                turn = lane.take(time.monotonic_ns())
                while not (turn or self.closed or not lane.idle):
                    self.arrived.wait()
                    turn = lane.take(time.monotonic_ns())
                for host, request in turn:
                    host.deciding.add(request.tick)
            if self.closed:
                return
            lane.run(turn)


class InProcessHost:
    """One session's part of an `InProcessPool`; without one it has a pool of its own, with so many lanes."""

    gave_up: str | None = None

    def __init__(self, source: DeciderSource, lanes: int = 1, pool: InProcessPool | None = None) -> None:
        self.incarnation = 0
        self.shares: deque[float] = deque(maxlen=SHARES)
        self.events: list[HostEvent] = []
        self._source, self._own = source, pool is None
        self._pool = pool or InProcessPool(1, lanes, preload=False)
        self.name = self._pool.name
        self.deciders: list[Decider] = []
        # Ticks; what is cancelled is no longer among them, and is given up before its next forward pass.
        self.deciding: set[int] = set()
        # No SimpleQueue: its timed get waits for ever where a signal's handler outlasts the timeout (CPython 3.11).
        self._replies: Queue[DecisionReply | None] = Queue()

    @property
    def threads(self) -> list[tuple[int, int]]:
        return self._pool.threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.deciders:
            self.deciders = self._pool.build(self._source)
            if self._own:
                self._pool.start()
        return describe(self.deciders[0])

    def submit(self, request: DecisionRequest) -> None:
        pool = self._pool
        if not self.alive():
            return
        if pool.inline is not None:
            self.deciding.add(request.tick)
            for _ in pool.inline.decide([(self, request)]):
                pass
            return
        with pool.arrived:
            pool.rota.put(self, request, time.monotonic_ns())
            pool.arrived.notify()

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        try:
            reply = self._replies.get_nowait() if timeout_ns <= 0 else self._replies.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None
        if reply is not None:
            self.shares.append(reply.decide_ns / reply.together)
        return reply

    def wake(self) -> None:
        self._replies.put(None)

    def alive(self) -> bool:
        return bool(self.deciders) and not self._pool.closed

    def cancel(self, tick: int) -> None:
        with self._pool.arrived:
            self.deciding.discard(tick)
            self._pool.rota.cancel(self, tick)

    def close(self) -> None:
        with self._pool.arrived:
            self._pool.rota.remove(self)
            deciders, self.deciders = self.deciders, []
        for decider in deciders:
            end(decider)
        if deciders:
            self._pool.places.free()
        if self._own:
            self._pool.close()

    # -- for the lanes ------------------------------------------------------------------------------------------------

    def decider(self, lane: int) -> Decider | None:
        """Return the lane's, None once it is closed."""
        return next(iter(self.deciders[lane : lane + 1]), None)

    def given_up(self, request: DecisionRequest) -> bool:
        return request.tick not in self.deciding

    def take(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        """Take a reply, or None of a request that was given up."""
        self.deciding.discard(request.tick)
        if reply is not None:
            self._replies.put(reply)
