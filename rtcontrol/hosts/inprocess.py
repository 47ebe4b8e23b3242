"""A pool and hosts that decide in this process: on worker threads that all sessions share, or directly in `submit`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from queue import Empty, Queue
from typing import Any

from rtcontrol.hosts.deciders import Worker, build_decider, close_decider, decider_info
from rtcontrol.hosts.pool import EdfScheduler, Pool, PooledHost, ScheduledRequest, start_host
from rtcontrol.hosts.protocol import MAX_SESSIONS, Decider, DeciderSource, DecisionReply, DecisionRequest, Host
from rtcontrol.models.in_flight import run_to_end


class InProcessPool(Pool):
    """A pool that builds each decider on the thread that opens the session, and decides on `workers` threads.

    With 0 workers, `submit` itself decides; this is for fast deciders (no-op, random, expert). `preload`: import torch
    at the start, because a later import would hold the interpreter's lock for 1 to 2 s."""

    def __init__(self, limit: int = MAX_SESSIONS, workers: int = 1, preload: bool = True) -> None:
        super().__init__("inprocess" if workers else "inline", limit)
        self.process_info = self  # this process runs the deciders, so it is never lost
        self.changed = threading.Condition()  # guards the sessions
        self.inline = not workers
        self._preload = preload and workers > 0
        self.scheduler = EdfScheduler(workers)
        self.workers = [Worker(self.scheduler, i) for i in range(workers or 1)]
        self._building = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(self.workers[i],), name=f"decider-{i}", daemon=True)
            for i in range(workers)
        ]

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self._preload:
            import rtcontrol.models.runners.torch_runner  # noqa: F401
        for thread in self._threads:
            thread.start()
        return {}

    def open(self, session: str, source: DeciderSource) -> Host:
        return start_host(InProcessHost(source, pool=self, session=session))

    def admit(self, host: InProcessHost, stopped: Callable[[], bool]) -> None:
        with self.changed:
            self.add(host)
        with self._building:
            host.deciders = [build_decider(host.source) for _ in self.workers]
        host.info = decider_info(host.deciders[0])
        with self.changed:
            self.mark_built(host, self.process_info, time.monotonic_ns())

    def release(self, host: InProcessHost) -> None:
        with self.changed:
            self.scheduler.remove(host)
            self.remove(host)
            host.deciding.clear()
            deciders, host.deciders = host.deciders, []
        for decider in deciders:
            close_decider(decider)

    @property
    def threads(self) -> list[tuple[int, int]]:
        return [(os.getpid(), thread.native_id) for thread in self._threads if thread.native_id is not None]

    def close(self) -> None:
        """Stop the worker threads. A thread that is still deciding after 1 s is left to end with the process."""
        with self.changed:
            self.end()
            self.changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=1.0)

    def _work(self, worker: Worker) -> None:
        while (batch := self.next_batch(worker)) is not None:
            worker.run(batch)

    def next_batch(self, worker: Worker) -> list[ScheduledRequest] | None:
        """Wait for requests, and return the next batch of a worker. Return an empty list if the worker must continue
        its paused decision, or None if the pool was closed."""
        with self.changed:
            batch = self.dequeue_batch(worker)
            while not (batch or self.closed or not worker.idle):
                self.changed.wait()
                batch = self.dequeue_batch(worker)
            return None if self.closed else batch

    def dequeue_batch(self, worker: Worker) -> list[ScheduledRequest]:
        """Return the requests that the worker must decide now, or an empty list. The caller must hold `changed`."""
        batch = worker.next_batch(time.monotonic_ns())
        for host, request in batch:
            host.deciding.add(request.tick)
        return batch


class InProcessHost(PooledHost):
    """The host of one session of an `InProcessPool`. If `pool` is None, the host creates a pool with `workers`."""

    threads = property(attrgetter("pool.threads"))

    def __init__(self, source: DeciderSource, workers: int = 1, pool: Any = None, session: str = "the run") -> None:
        super().__init__(pool or InProcessPool(1, workers, preload=False), source, session, pool is None)
        self.deciders: list[Decider] = []
        self.deciding: set[int] = set()  # ticks whose decisions are running and were not cancelled
        # Use Queue, because in CPython 3.11 SimpleQueue.get may ignore its timeout if a signal handler runs longer.
        self._replies: Queue[DecisionReply | None] = Queue()

    def submit(self, request: DecisionRequest) -> None:
        pool = self.pool
        if self.up and pool.inline:
            self.deciding.add(request.tick)
            run_to_end(pool.workers[0].decide([(self, request)]))
        elif self.up:
            with pool.changed:
                pool.scheduler.enqueue(self, request, time.monotonic_ns())
                pool.changed.notify()

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        with contextlib.suppress(Empty):
            return self.record_reply(self._replies.get(timeout_ns > 0, max(timeout_ns, 0) / 1e9))
        return None

    def wake(self) -> None:
        self._replies.put(None)

    def cancel(self, tick: int) -> None:
        with self.pool.changed:
            self.deciding.discard(tick)
            self.pool.scheduler.cancel(self, tick)

    def decider(self, number: int) -> Decider | None:
        """Return the decider of a worker, or None if the host is closed."""
        return next(iter(self.deciders[number:]), None)

    def is_cancelled(self, request: DecisionRequest) -> bool:
        """Return whether a request was cancelled. The worker checks this between two forward passes."""
        return request.tick not in self.deciding

    def deliver(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        """Enqueue the reply to a request; `wait` returns it. `reply` is None if the request was cancelled."""
        self.deciding.discard(request.tick)
        if reply is not None:
            self._replies.put(reply)
