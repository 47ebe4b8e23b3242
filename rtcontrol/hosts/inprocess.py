"""Decides in this process: in worker threads that all sessions share, or at once on the caller's own thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from queue import Empty, Queue
from typing import Any

from rtcontrol.hosts.base import LIMIT, Decider, DeciderSource, DecisionReply, DecisionRequest, HostEvent, PlaceTrouble
from rtcontrol.hosts.deciders import answer_in_steps, build, describe, patient, rest


class Places:
    """How many sessions are open or being opened; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """PlaceTrouble when all are taken."""
        with self._lock:
            if self.taken >= self.limit:
                raise PlaceTrouble(
                    f"The decoder has {self.limit} open sessions, as many as it may.",
                    "Close one, or try again later.",
                    full=True,
                )
            self.taken += 1

    def free(self) -> None:
        with self._lock:
            self.taken -= 1


class Rota:
    """The waiting requests: of each session the `depth` newest, in the place of the oldest. Not locked."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._waiting: dict[Any, deque[DecisionRequest]] = {}

    def put(self, key: Any, request: DecisionRequest) -> None:
        self._waiting.setdefault(key, deque(maxlen=self._depth)).append(request)

    def take(
        self, patient: Callable[[Any], bool] = lambda key: False, late: bool = True
    ) -> tuple[Any, DecisionRequest] | None:
        """The newest request of the session that has waited longest; `patient` ones after all others, if `late`."""
        waiting = [key for key, requests in self._waiting.items() if requests]
        turns = [key for key in waiting if not patient(key)] or (waiting if late else [])
        if not turns:
            return None
        # The newest: an older one is overtaken, and will be dropped at its deadline.
        requests = self._waiting.pop(turns[0])
        request = requests.pop()
        if requests:
            self._waiting[turns[0]] = requests  # behind the others
        return turns[0], request

    def cancel(self, key: Any, tick: int) -> None:
        # The session keeps its place: with requests that are given up before their turn comes it would starve.
        requests = self._waiting.get(key, ())
        for request in requests:
            if request.tick == tick:
                self._waiting[key].remove(request)
                break

    def remove(self, key: Any) -> None:
        self._waiting.pop(key, None)


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
        self.rota = Rota(lanes)
        self.arrived = threading.Condition()
        self.closed = False
        self._building = threading.Lock()
        self._workers = [
            threading.Thread(target=self._work, args=(i,), name=f"decider-{i}", daemon=True) for i in range(lanes)
        ]

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self._preload:
            import rtcontrol.models.engines.torch_runner  # noqa: F401
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
                    raise PlaceTrouble("The decoder is closed.", "Start it again.")
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

    def _work(self, lane: int) -> None:
        steps: Generator[None, None, None] | None = None  # of a decision that gives way to others
        while True:
            with self.arrived:
                while (
                    not (turn := self.rota.take(InProcessHost.patient, steps is None)) and not steps and not self.closed
                ):
                    self.arrived.wait()
            if self.closed:
                return
            if turn is None:
                steps = go_on(steps)
                continue
            host, request = turn
            # What is left of the turn would keep a closed session's decider alive until the next request.
            if host.patient():
                steps = host.decide_in_steps(lane, request)
            else:
                host.decide(lane, request)
            del turn, host, request


def go_on(steps: Generator[None, None, None] | None) -> Generator[None, None, None] | None:
    """Take the next step; None when it was the last."""
    try:
        if steps is not None:
            next(steps)
            return steps
    except StopIteration:
        pass
    return None


class InProcessHost:
    """One session's part of an `InProcessPool`; without one it has a pool of its own, with so many lanes."""

    gave_up: str | None = None

    def __init__(self, source: DeciderSource, lanes: int = 1, pool: InProcessPool | None = None) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self._source, self._own = source, pool is None
        self._pool = pool or InProcessPool(1, lanes, preload=False)
        self.name = self._pool.name
        self._deciders: list[Decider] = []
        self._cancelled: int | None = None  # one that is being decided is given up before its next forward pass
        # No SimpleQueue: its timed get waits for ever where a signal's handler outlasts the timeout (CPython 3.11).
        self._replies: Queue[DecisionReply | None] = Queue()

    @property
    def threads(self) -> list[tuple[int, int]]:
        return self._pool.threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self._deciders:
            self._deciders = self._pool.build(self._source)
            if self._own:
                self._pool.start()
        return describe(self._deciders[0])

    def submit(self, request: DecisionRequest) -> None:
        pool = self._pool
        if not self.alive():
            return
        if not pool.lanes:
            self.decide(0, request)
            return
        with pool.arrived:
            pool.rota.put(self, request)
            pool.arrived.notify()

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
        return bool(self._deciders) and not self._pool.closed

    def cancel(self, tick: int) -> None:
        self._cancelled = tick
        with self._pool.arrived:
            self._pool.rota.cancel(self, tick)

    def close(self) -> None:
        with self._pool.arrived:
            self._pool.rota.remove(self)
            deciders, self._deciders = self._deciders, []
        if deciders:
            self._pool.places.free()
        if self._own:
            self._pool.close()

    def patient(self) -> bool:
        """Whether its decisions give way to other sessions'."""
        return any(patient(decider) for decider in self._deciders)

    def decide_in_steps(self, lane: int, request: DecisionRequest) -> Generator[None, None, None]:
        """On the lane's thread."""
        for decider in self._deciders[lane : lane + 1]:  # none once it is closed
            steps = answer_in_steps(decider, request)
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    self._replies.put(done.value)
                    rest(decider)
                    break
                if self._cancelled == request.tick:
                    steps.close()
                    break
                yield

    def decide(self, lane: int, request: DecisionRequest) -> None:
        """All steps at once."""
        for _ in self.decide_in_steps(lane, request):
            pass
