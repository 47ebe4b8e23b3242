"""The state of a decoder pool (which sessions have a decider), and the scheduler that chooses the next requests.

These classes use no clock, thread or lock. `inprocess.py` and `ray_pool.py` call them under their own locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, DecoderUnavailable, Host, HostBase
from rtcontrol.models.errors import UserError

# After a loss, a session's decider is rebuilt in at most REBUILDS attempts, with REBUILD_DELAY_NS between them.
REBUILDS, REBUILD_DELAY_NS = 30, 1_000_000_000
# A new session gives up after only this number of failed builds, because its build may kill the process.
ATTEMPTS = 3


def start_host(host: Host) -> Host:
    """Start and return a host. If the host cannot start, close it and raise the error."""
    try:
        host.start()
    except BaseException:
        host.close()
        raise
    return host


class PooledHost(HostBase):
    """The host of one session of a pool. If `owns_pool`, the host also starts and closes the pool.

    `error`: why the first build of the decider failed. `failures`: number of failed builds. `due_ns`: the earliest
    time of the next build."""

    def __init__(self, pool: Any, source: DeciderSource, session: str, owns_pool: bool = False) -> None:
        super().__init__(pool.name)
        self.pool, self.source, self.session = pool, source, session
        self.info: dict[str, Any] = {}
        self.error: UserError | None = None
        self.failures = self.due_ns = 0
        self._owns_pool = owns_pool

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.up and not self.info:
            if self._owns_pool:
                self.pool.start(stopped)
            if not stopped():
                self.pool.admit(self, stopped)
        return self.info

    def close(self) -> None:
        self.pool.release(self)
        if self._owns_pool:
            self.pool.close()


class Pool:
    """A pool of at most `limit` sessions in a process that may be lost and replaced.

    `process_info`: what the process returned at its start (endpoint, pid, threads), or None while there is no process.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self.process_info: Any = None
        self.gave_up: str | None = None
        self.closed = False
        self.sessions: list[Any] = []

    def alive(self) -> bool:
        return self.process_info is not None

    def add(self, host: PooledHost) -> None:
        """Add a session that needs a decider. Raises DecoderUnavailable if the pool is full, closed, or gave up."""
        if self.closed or self.gave_up is not None:
            raise DecoderUnavailable(self.gave_up or "The decoder is closed.", "Start it again.")
        if len(self.sessions) >= self.limit:
            message = f"The decoder already has {self.limit} open sessions, which is the maximum."
            raise DecoderUnavailable(message, "Close a session, or try again later.", full=True)
        self.sessions.append(host)

    def remove(self, host: PooledHost) -> bool:
        """Remove a session. Return False if the pool did not have the session."""
        host.up = False
        known = host in self.sessions
        if known:
            self.sessions.remove(host)
        return known

    def mark_running(self, process_info: Any) -> None:
        """Record that the process is running."""
        if not self.closed:
            self.process_info = process_info

    def mark_lost(self, now_ns: int) -> None:
        """Record that the process was lost, with the deciders of all sessions."""
        self.process_info = None
        for host in self.sessions:
            if host.up:
                host.mark_lost(now_ns)

    def hosts_to_build(self, now_ns: int) -> list[Any]:
        """Return the sessions whose deciders must be built now."""
        if self.process_info is None:
            return []
        due = [host for host in self.sessions if not host.up and now_ns >= host.due_ns]
        return [host for host in due if host.gave_up is None and host.error is None]

    def mark_built(self, host: PooledHost, process_info: Any, now_ns: int) -> bool:
        """Record that a session's decider was built. Return False if the session or the process has ended meanwhile."""
        if process_info is None or process_info is not self.process_info or host not in self.sessions:
            return False
        if host.lost_ns is not None:
            host.failures = 0
        host.mark_ready(now_ns)
        return True

    def mark_failed(self, host: PooledHost, error: UserError, now_ns: int) -> None:
        """Record that a build failed. Schedule another attempt, or let the session give up."""
        host.failures += 1
        if host.lost_ns is not None:
            host.due_ns = now_ns + REBUILD_DELAY_NS
            if host.failures >= REBUILDS:
                host.gave_up = f"The decider could not be built again after a loss, in {REBUILDS} attempts: {error}"
        elif host.failures >= ATTEMPTS or not isinstance(error, DecoderUnavailable):
            host.error = error

    def end(self, why: str | None = None) -> None:
        """Mark all sessions as ended. `why`: why the process cannot be restarted, or None if the pool was closed."""
        self.process_info = None
        self.closed, self.gave_up = self.closed or why is None, why or self.gave_up
        for host in self.sessions:
            host.up, host.gave_up = False, why or host.gave_up


ScheduledRequest = tuple[Any, DecisionRequest]
# The scheduler assumes this time limit for a request without a deadline.
UNLIMITED_NS = 1_000_000_000
NEWEST_WEIGHT = 0.1  # weight of the newest duration in the moving average of durations
# A measured duration is ignored after this number of further batches, if at least one newer measurement exists.
OLD_BATCHES = 64


class EdfScheduler:
    """A scheduler that dispatches requests by earliest deadline first (EDF). It keeps the `depth` newest requests of
    each session (`key`)."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._waiting: dict[Any, deque[tuple[int, DecisionRequest]]] = {}  # by session: (time of enqueueing, request)
        self._waiting_since: dict[Any, int] = {}  # by session: since when it has had a waiting request
        # By batch key and batch size: (average duration in ns, number of the last batch that was measured).
        self._durations: dict[Hashable, dict[int, tuple[float, int]]] = {}
        self._batch_counts: dict[Hashable, int] = {}  # by batch key: number of batches so far

    def enqueue(self, key: Any, request: DecisionRequest, now_ns: int) -> None:
        """Add a session's request. If `depth` requests of the session wait already, drop the oldest request."""
        self._waiting.setdefault(key, deque(maxlen=self._depth)).append((now_ns, request))
        self._waiting_since.setdefault(key, now_ns)

    def next_batch(
        self,
        now_ns: int,
        batch_key: Callable[[Any], Hashable] = lambda key: None,
        patient: Callable[[Any], bool] = lambda key: False,
        allow_patient: bool = True,
    ) -> list[ScheduledRequest]:
        """Remove and return the requests of the next batch: the request with the earliest deadline, and as many other
        requests as can be decided in the same batch before this deadline.

        Only sessions for which `batch_key` returns the same key share a batch (None: no batch with other sessions).
        A `patient` session is served only if `allow_patient` is True and no other session waits."""
        waiting = sorted((key for key, requests in self._waiting.items() if requests), key=self._due_ns)
        eager = [key for key in waiting if not patient(key)]
        if not eager:
            return [self._pop_request(waiting[0], now_ns)] if waiting and allow_patient else []
        # Use the deadline of the session's newest request, because the deadline of an older request may have passed.
        first_key, (enqueued_ns, newest) = batch_key(eager[0]), self._waiting[eager[0]][-1]
        left_ns = enqueued_ns + _limit_ns(newest) - now_ns
        alike = eager[:1] if first_key is None else [key for key in eager if batch_key(key) == first_key]
        count = 1
        while count < len(alike) and self.expected_ns(first_key, count + 1) <= left_ns:
            count += 1
        return [self._pop_request(key, now_ns) for key in alike[:count]]

    def record_duration(self, batch_key: Hashable, count: int, ns: int) -> None:
        """Record that a batch of `count` decisions took `ns` nanoseconds."""
        times, number = self._durations.setdefault(batch_key, {}), self._batch_counts.get(batch_key, 0) + 1
        before, last = times.get(count, (float(ns), number))
        if number - last > OLD_BATCHES:
            before = float(ns)
        times[count], self._batch_counts[batch_key] = (before + NEWEST_WEIGHT * (ns - before), number), number

    def expected_ns(self, batch_key: Hashable, count: int) -> float:
        """Return the expected duration of a batch of `count` decisions in ns.

        The estimate is the lowest measured time per decision of all batch sizes up to `count`, multiplied by `count`.
        So a batch size that was slow once is tried again. Old measurements are used only if there are no newer ones."""
        since = self._batch_counts.get(batch_key, 0) - OLD_BATCHES
        sizes = self._durations.get(batch_key, {}).items()
        times = [(ns * count / n, number) for n, (ns, number) in sizes if n <= count]
        return min([ns for ns, number in times if number >= since] or [ns for ns, _ in times], default=0.0)

    def cancel(self, key: Any, tick: int) -> None:
        """Remove the request of a tick. The session keeps its waiting time, so its next request is not delayed."""
        for entry in self._waiting.get(key, ()):
            if entry[1].tick == tick:
                self._waiting[key].remove(entry)
                break

    def remove(self, key: Any) -> None:
        self._waiting.pop(key, None)
        self._waiting_since.pop(key, None)

    def _due_ns(self, key: Any) -> int:
        return self._waiting_since[key] + _limit_ns(self._waiting[key][-1][1])

    def _pop_request(self, key: Any, now_ns: int) -> ScheduledRequest:
        # Take the newest request, because the loop drops replies to older requests.
        requests = self._waiting.pop(key)
        _, request = requests.pop()
        del self._waiting_since[key]
        if requests:
            self._waiting[key] = requests  # serve the remaining requests after those of other sessions
            self._waiting_since[key] = now_ns
        return key, request


def _limit_ns(request: DecisionRequest) -> int:
    return request.within_ns or UNLIMITED_NS
