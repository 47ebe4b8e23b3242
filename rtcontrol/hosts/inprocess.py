"""Decides in this process: in worker threads that all sessions share, or at once on the caller's own thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any

from rtcontrol.hosts.deciders import DeciderLane, build, describe, end
from rtcontrol.hosts.pool import Pool, PooledHost
from rtcontrol.hosts.protocol import LIMIT, Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.scheduler import EdfScheduler, Turn


class InProcessPool(Pool):
    """Deciders are built on the thread that opens the session, one at a time, and asked on the workers' threads: one
    for each lane. Without lanes each is asked inside `submit`: for those that take no time (no-op, random, expert).

    Python's one lock is shared with everything else in the process: for tests, embedding and machines without Ray.
    `preload` loads torch at the start: it holds the interpreter for a second or two, so not while sessions go on.
    """

    def __init__(self, limit: int = LIMIT, lanes: int = 1, preload: bool = True) -> None:
        super().__init__(limit)
        self.name = "inprocess" if lanes else "inline"
        self.lanes, self._preload = lanes, preload and lanes > 0
        self.core.restored(self)  # it lives as long as this process
        self.rota = EdfScheduler(lanes)
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

    def host(self, session: str, source: DeciderSource) -> InProcessHost:
        return InProcessHost(source, pool=self, session=session)

    def admit(self, host: InProcessHost, stopped: Callable[[], bool]) -> None:
        """Build the host a decider for each lane."""
        with self.changed:
            self.core.open(host.session)
        with self._building:
            host.deciders = [build(host.source) for _ in range(self.lanes or 1)]
        host.info = describe(host.deciders[0])
        with self.changed:
            self.core.built(host.session, self.core.life, time.monotonic_ns())

    def release(self, host: InProcessHost) -> None:
        """Free the deciders of a host that is being closed."""
        with self.changed:
            self.rota.remove(host)
            self.core.released(host.session)
            host.deciding.clear()
            deciders, host.deciders = host.deciders, []
        for decider in deciders:
            end(decider)

    @property
    def threads(self) -> list[tuple[int, int]]:
        """Process and thread number of each worker."""
        return [(os.getpid(), worker.native_id) for worker in self._workers if worker.native_id is not None]

    def alive(self) -> bool:
        return super().alive() and all(worker.is_alive() for worker in self._workers)

    def close(self) -> None:
        """A decision that is being made ends with the process: the workers are daemons."""
        with self.changed:
            self.core.end()
            self.changed.notify_all()
        for worker in self._workers:
            if worker.is_alive():
                worker.join(timeout=1.0)

    def _lane(self, i: int) -> DeciderLane:
        return DeciderLane(
            self.rota,
            lambda host: host.decider(i),
            lambda host, request: host.given_up(request),
            lambda host, request, reply: host.take(request, reply),
        )

    def _work(self, lane: DeciderLane) -> None:
        while (turn := self.turn(lane)) is not None:
            lane.run(turn)

    def turn(self, lane: DeciderLane) -> list[Turn] | None:
        """Wait for a lane's next turn, empty where it continues what is under way; None once the pool is closed."""
        with self.changed:
            turn = self.take(lane)
            while not (turn or self.core.closed or not lane.idle):
                self.changed.wait()
                turn = self.take(lane)
            return None if self.core.closed else turn

    def take(self, lane: DeciderLane) -> list[Turn]:
        """Return whose turn it is now, under the lock; empty where nobody waits."""
        turn = lane.take(time.monotonic_ns())
        for host, request in turn:
            host.deciding.add(request.tick)
        return turn


class InProcessHost(PooledHost):
    """One session's part of an `InProcessPool`; without one it has a pool of its own, with so many lanes."""

    def __init__(
        self, source: DeciderSource, lanes: int = 1, pool: InProcessPool | None = None, session: str = "the run"
    ) -> None:
        super().__init__(pool or InProcessPool(1, lanes, preload=False), source, session, pool is None)
        self.deciders: list[Decider] = []
        # Ticks; what is cancelled is no longer among them, and is given up before its next forward pass.
        self.deciding: set[int] = set()
        # No SimpleQueue: its timed get waits for ever where a signal's handler outlasts the timeout (CPython 3.11).
        self._replies: Queue[DecisionReply | None] = Queue()

    @property
    def threads(self) -> list[tuple[int, int]]:
        pool: InProcessPool = self._pool
        return pool.threads

    def submit(self, request: DecisionRequest) -> None:
        pool = self._pool
        if not self.alive():
            return
        if pool.inline is not None:
            self.deciding.add(request.tick)
            for _ in pool.inline.decide([(self, request)]):
                pass
            return
        with pool.changed:
            pool.rota.put(self, request, time.monotonic_ns())
            pool.changed.notify()

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        with contextlib.suppress(Empty):
            return self.noted(self._replies.get(timeout_ns > 0, max(timeout_ns, 0) / 1e9))
        return None

    def wake(self) -> None:
        self._replies.put(None)

    def cancel(self, tick: int) -> None:
        with self._pool.changed:
            self.deciding.discard(tick)
            self._pool.rota.cancel(self, tick)

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
