"""A pool of decoder sessions: which sessions have a decider after a loss, and whose request is decided next.

The pool has no clock, thread or lock: `inprocess.py` and `ray_pool.py` call it under their own lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, DecoderUnavailable, Host, HostBase
from rtcontrol.models.errors import UserError

# How often to rebuild a session's decider in a running process, and how long to wait between two builds.
REBUILDS, REBUILD_DELAY_NS = 30, 1_000_000_000
# A new session gives up after this many builds, so that a build that kills the process is not repeated for ever.
ATTEMPTS = 3


def start_host(host: Host) -> Host:
    """Start the host and return it. A host that cannot start is closed."""
    try:
        host.start()
    except BaseException:
        host.close()
        raise
    return host


class PooledHost(HostBase):
    """One session of a pool. A host that `owns_pool` starts and ends the pool.

    `error`: why there never was a decider. `due_ns`: when the decider may be built again after so many `failures`."""

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

    `process_info` is the start answer of the process, or None while the process is away. A lost process is killed."""

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self.process_info: Any = None
        self.gave_up: str | None = None
        self.closed = False
        self.sessions: list[Any] = []

    def alive(self) -> bool:
        return self.process_info is not None

    def add(self, host: PooledHost) -> None:
        """Add a session that needs a decider. Raises DecoderUnavailable if the pool is full, closed or gave up."""
        if self.closed or self.gave_up is not None:
            raise DecoderUnavailable(self.gave_up or "The decoder is closed.", "Start it again.")
        if len(self.sessions) >= self.limit:
            message = f"The decoder already has {self.limit} open sessions, which is the limit."
            raise DecoderUnavailable(message, "Close one, or try again later.", full=True)
        self.sessions.append(host)

    def remove(self, host: PooledHost) -> bool:
        """Remove a session; return whether it was known, so that its decider must be freed."""
        host.up = False
        known = host in self.sessions
        if known:
            self.sessions.remove(host)
        return known

    def mark_up(self, process_info: Any) -> None:
        """Note that the process is up."""
        if not self.closed:
            self.process_info = process_info

    def mark_lost(self, now_ns: int) -> None:
        """Note that the process and all its deciders are gone, also those not yet rebuilt after an earlier loss."""
        self.process_info = None
        for host in self.sessions:
            if host.up:
                host.mark_lost(now_ns)

    def hosts_to_build(self, now_ns: int) -> list[Any]:
        """Return the sessions whose deciders are to be built now."""
        if self.process_info is None:
            return []
        due = [host for host in self.sessions if not host.up and now_ns >= host.due_ns]
        return [host for host in due if host.gave_up is None and host.error is None]

    def mark_built(self, host: PooledHost, process_info: Any, now_ns: int) -> bool:
        """Note that a session's decider is built. Return False if the session or this process has ended meanwhile."""
        if process_info is None or process_info is not self.process_info or host not in self.sessions:
            return False
        if host.lost_ns is not None:
            host.failures = 0
        host.mark_ready(now_ns)
        return True

    def mark_failed(self, host: PooledHost, error: UserError, now_ns: int) -> None:
        """Note that a build failed. The build is repeated if that may help."""
        host.failures += 1
        if host.lost_ns is not None:
            host.due_ns = now_ns + REBUILD_DELAY_NS
            if host.failures >= REBUILDS:
                host.gave_up = f"The decider could not be built again in {REBUILDS} attempts: {error}"
        elif host.failures >= ATTEMPTS or not isinstance(error, DecoderUnavailable):
            host.error = error

    def end(self, why: str | None = None) -> None:
        """Note that the process will not come back (`why`), or that its owner closed it (None)."""
        self.process_info = None
        self.closed, self.gave_up = self.closed or why is None, why or self.gave_up
        for host in self.sessions:
            host.up, host.gave_up = False, why or host.gave_up


ScheduledRequest = tuple[Any, DecisionRequest]
# A request without a limit counts as due after this time, so that it does not wait for ever.
UNLIMITED_NS = 1_000_000_000
NEWEST = 0.1  # weight of the newest time of a batch in the mean
# The measured time of a batch size is out of date after so many later batches of its kind, if there is a newer time.
OLD_BATCHES = 64


class EdfScheduler:
    """Choose requests by earliest deadline first. Each session keeps its `depth` newest requests. No clock, no lock."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._waiting: dict[Any, deque[tuple[int, DecisionRequest]]] = {}  # with the instant at which each was put
        self._waiting_since: dict[Any, int] = {}  # when the session began to wait
        self._durations: dict[Hashable, dict[int, tuple[float, int]]] = {}  # by kind and size: ns, batch number
        self._batch_counts: dict[Hashable, int] = {}  # how many batches each kind had so far

    def enqueue(self, key: Any, request: DecisionRequest, now_ns: int) -> None:
        """Add a session's request, which replaces the session's oldest one if `depth` requests wait already."""
        self._waiting.setdefault(key, deque(maxlen=self._depth)).append((now_ns, request))
        self._waiting_since.setdefault(key, now_ns)

    def next_batch(
        self,
        now_ns: int,
        kind: Callable[[Any], Hashable] = lambda key: None,
        patient: Callable[[Any], bool] = lambda key: False,
        late: bool = True,
    ) -> list[ScheduledRequest]:
        """Return the newest request of the session whose time ends first, and other requests to decide in one batch.

        `kind`: only sessions of one kind are decided together (None: alone), as many as are expected to be decided
        within that request's time. If `late`, one `patient` session is taken when no other session waits."""
        waiting = sorted((key for key, requests in self._waiting.items() if requests), key=self._due_ns)
        eager = [key for key in waiting if not patient(key)]
        if not eager:
            return [self._pop(waiting[0], now_ns)] if waiting and late else []
        # Not the session's deadline: if that is past, the session would be decided alone, and miss even more ticks.
        first_kind, (put_ns, newest) = kind(eager[0]), self._waiting[eager[0]][-1]
        left_ns = put_ns + _within(newest) - now_ns
        alike = eager[:1] if first_kind is None else [key for key in eager if kind(key) == first_kind]
        count = 1
        while count < len(alike) and self.expected_ns(first_kind, count + 1) <= left_ns:
            count += 1
        return [self._pop(key, now_ns) for key in alike[:count]]

    def record_duration(self, kind: Hashable, count: int, ns: int) -> None:
        """Note that a batch of `count` decisions of a kind took `ns`."""
        times, turn = self._durations.setdefault(kind, {}), self._batch_counts.get(kind, 0) + 1
        before, last = times.get(count, (float(ns), turn))
        if turn - last > OLD_BATCHES:
            before = float(ns)
        times[count], self._batch_counts[kind] = (before + NEWEST * (ns - before), turn), turn

    def expected_ns(self, kind: Hashable, count: int) -> float:
        """Return the nanoseconds that a batch of `count` decisions is expected to take.

        The estimate is at most that of a smaller batch, scaled up: so a size that was slow once is tried again. A
        size that was fast once counts until there is a newer measurement."""
        since = self._batch_counts.get(kind, 0) - OLD_BATCHES
        times = [(ns * count / n, turn) for n, (ns, turn) in self._durations.get(kind, {}).items() if n <= count]
        return min([ns for ns, turn in times if turn >= since] or [ns for ns, _ in times], default=0.0)

    def cancel(self, key: Any, tick: int) -> None:
        """Remove a session's request. The session keeps its place, so that one that cancels often does not starve."""
        for entry in self._waiting.get(key, ()):
            if entry[1].tick == tick:
                self._waiting[key].remove(entry)
                break

    def remove(self, key: Any) -> None:
        self._waiting.pop(key, None)
        self._waiting_since.pop(key, None)

    def _due_ns(self, key: Any) -> int:
        return self._waiting_since[key] + _within(self._waiting[key][-1][1])

    def _pop(self, key: Any, now_ns: int) -> ScheduledRequest:
        # Take the newest request: an older one would be dropped at its deadline.
        requests = self._waiting.pop(key)
        _, request = requests.pop()
        del self._waiting_since[key]
        if requests:
            self._waiting[key] = requests  # after the others
            self._waiting_since[key] = now_ns
        return key, request


def _within(request: DecisionRequest) -> int:
    return request.within_ns or UNLIMITED_NS
