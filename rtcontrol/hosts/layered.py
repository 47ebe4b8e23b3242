"""The base of hosts that are made of other hosts: a standby, a backup, plans.

What such a host decides takes the instant (`now_ns`) of an event and reads no clock; `LayeredHost` calls it in real
time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostBase

# A host that is not slept in is polled so often while its answer would be used at once.
POLL_NS = 500_000
# So much of a tick's time is left when a better answer is waited for no longer: the one that is there has to act.
RESERVE, LEAST_NS = 8, 1_000_000
MOST_OPEN = 256  # ticks and questions that are remembered
MOST_REPORTS = 4096
RECENT = 16  # answers that show whether the next one will be in time


@dataclass(slots=True)
class Report:
    """A line for the record: its instant (CLOCK_MONOTONIC) and its fields."""

    t_ns: int
    fields: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """A line for people."""

    text: str


def reports_of(host: Host) -> deque[Report | Notify]:
    """Return what a host reports besides its replies, for the loop to take; empty for most hosts."""
    reports: deque[Report | Notify] = getattr(host, "reports", deque())
    return reports


class Status(NamedTuple):
    """What an inner host showed at the last look."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: int = 0


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request of the loop, and the `answer` to it. Until `due_ns` a better one may be waited for (0: for ever).

    `waited`: the loop waits for its one reply.
    """

    request: DecisionRequest
    sent_ns: int
    due_ns: int
    answer: DecisionReply | None = None
    waited: bool = True


def is_usual(recent: Sequence[bool]) -> bool:
    """Return whether at least half of a decider's recent answers were in time."""
    return 2 * sum(recent) >= len(recent)


def due_of(now_ns: int, within_ns: int) -> int:
    """Return until when a question of this time may wait for a better answer; 0: for ever."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def remember(entries: dict[int, Any], number: int, entry: Any) -> None:
    """Add an entry, and forget the oldest beyond MOST_OPEN."""
    entries[number] = entry
    if len(entries) > MOST_OPEN:
        del entries[next(iter(entries))]


class LayeredHost(HostBase):
    """A host of `inner` hosts, by name, which are closed in the reverse of their order. It sleeps in `main`.

    A subclass decides: `requested` and `replied` are events; after each event, and at `wake_ns`, `settle` replies to
    the `open` questions whose answer is known. The others are polled often while `watching`, else before each event.
    """

    def __init__(self, name: str, inner: Mapping[str, Host], main: str) -> None:
        super().__init__(name)
        self.inner, self.main = inner, main
        self.up = True
        self.status = {name: Status() for name in inner}
        self.open: dict[int, Any] = {}  # questions without a reply, by number
        self.replies: deque[DecisionReply] = deque()
        reports = [host.reports for host in inner.values() if isinstance(host, LayeredHost)]
        self.reports: deque[Report | Notify] = reports[0] if reports else deque(maxlen=MOST_REPORTS)
        self._now_ns = 0  # of the last event
        self._woken = False

    # -- what a subclass decides ---------------------------------------------------------------------------------------

    watching = False

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the lines of the report, by those of the inner hosts."""
        return infos[self.main]

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        """Ask inner hosts for a decision."""
        raise NotImplementedError

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        """Take the answer of an inner host."""
        raise NotImplementedError

    def cancelled(self, tick: int) -> None:
        """Note that the loop does not wait for this tick any more."""
        raise NotImplementedError

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Note that the `status` of an inner host is another than `before`."""
        raise NotImplementedError

    def has_other(self, question: Any) -> bool:
        """Return whether there is an answer that acts where no better one comes."""
        return True

    def chosen(self, question: Any, now_ns: int) -> DecisionReply | None:
        """Return the question's reply, once it is known."""
        raise NotImplementedError

    # -- events --------------------------------------------------------------------------------------------------------

    @property
    def wake_ns(self) -> int | None:
        """When an answer that is there acts in place of the better one; None: nothing becomes due by itself."""
        dues = [q.due_ns for q in self.open.values() if q.waited and q.due_ns > self._now_ns and self.has_other(q)]
        return min(dues, default=None)

    def ask(self, name: str, request: DecisionRequest, now_ns: int) -> None:
        """Submit a request to an inner host. An error is its answer."""
        try:
            self.inner[name].submit(request)
        except Exception as error:
            self.replied(name, DecisionReply(request.tick, None, f"{type(error).__name__}: {error}", 0), now_ns)

    def look(self, now_ns: int) -> None:
        """Take notice of what became of the inner hosts."""
        hosts = self.inner.items()
        status = {name: Status(h.alive(), h.incarnation, h.gave_up, len(h.events)) for name, h in hosts}
        if status != self.status:
            before, self.status = self.status, status
            self.changed(before, now_ns)
            self.settle(now_ns)

    def settle(self, now_ns: int) -> None:
        """Reply to every question whose answer is known."""
        self._now_ns = now_ns
        for number, question in tuple(self.open.items()):
            reply = self.chosen(question, now_ns)
            if reply is not None:
                question.waited = False
                del self.open[number]
                self.replies.append(reply)

    # -- in real time --------------------------------------------------------------------------------------------------

    @property
    def shares(self) -> deque[float]:
        return self.inner[self.main].shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return self.inner[self.main].threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        infos: dict[str, dict[str, Any]] = {}
        for name, host in self.inner.items():
            infos[name] = host.start(stopped)
            if stopped():
                return {}
        return self.info(infos)

    def submit(self, request: DecisionRequest) -> None:
        self._collect()
        now_ns = time.monotonic_ns()
        self.requested(request, now_ns)
        self.settle(now_ns)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        now_ns = time.monotonic_ns()
        end_ns = now_ns + timeout_ns
        while True:
            self._collect()
            due_ns = self.wake_ns
            if due_ns is not None and now_ns >= due_ns:
                self.settle(now_ns)
                due_ns = self.wake_ns
            if self.replies:
                return self.replies.popleft()
            if self._woken:
                self._woken = False
                return None
            left_ns = (end_ns if due_ns is None else min(end_ns, due_ns)) - now_ns
            main = self.main
            reply = self.inner[main].wait(min(left_ns, POLL_NS) if self.watching else left_ns)
            now_ns = time.monotonic_ns()
            if reply is not None:
                self._take(main, reply, now_ns)
            elif now_ns >= end_ns:
                self._woken = False
                return None

    def wake(self) -> None:
        self._woken = True  # a wait of an inner host that ends early may be the end of a poll
        self.inner[self.main].wake()

    def alive(self) -> bool:
        self.look(time.monotonic_ns())
        return self.up

    def cancel(self, tick: int) -> None:
        self.cancelled(tick)
        self.settle(time.monotonic_ns())

    def close(self) -> None:
        with ExitStack() as closing:
            for host in self.inner.values():
                closing.callback(host.close)

    def _collect(self) -> None:
        """Take what the inner hosts are, and have answered."""
        self.look(time.monotonic_ns())
        for name, host in self.inner.items():
            while (reply := host.wait(0)) is not None:
                self._take(name, reply, time.monotonic_ns())

    def _take(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        self.replied(name, reply, now_ns)
        self.settle(now_ns)
