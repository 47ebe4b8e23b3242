"""The shell of hosts that are made of other hosts: it does what a core says, in real time, and decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rtcontrol.hosts import host_core
from rtcontrol.hosts.backup_core import BACKUP, FIRST, BackupCore, Handover
from rtcontrol.hosts.plan_core import PLANNER, PlanCore, PlanTerms
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, StatefulHost
from rtcontrol.models.call import Call

# A host that is not slept in is polled so often while its answer would be given at once.
POLL_NS = 500_000


class LayeredHost(StatefulHost):
    """Runs `core` over `inner` hosts by name. They are closed in the reverse of their order.

    What it `reports` (for the record, and for people) waits there for the loop, with what inner hosts report.
    """

    MOST = 4096

    def __init__(self, core: host_core.HostCore, inner: Mapping[str, Host]) -> None:
        super().__init__(core.name, core)
        self.core, self.inner = core, inner
        told = [host.reports for host in inner.values() if isinstance(host, LayeredHost)]
        self.reports: deque[host_core.Report | host_core.Notify] = told[0] if told else deque(maxlen=self.MOST)
        self._replies: deque[DecisionReply] = deque()
        self._shown: list[Any] = []  # of the inner hosts, when it was last looked at
        self._woken = False

    @property
    def shares(self) -> deque[float]:
        return self.inner[self.core.main].shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return self.inner[self.core.main].threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        infos: dict[str, dict[str, Any]] = {}
        for name, host in self.inner.items():
            infos[name] = host.start(stopped)
            if stopped():
                return {}
        return self.core.info(infos)

    def submit(self, request: DecisionRequest) -> None:
        self._collect()
        now = time.monotonic_ns()
        self._take(self.core.requested(request, now), now)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        now = time.monotonic_ns()
        until = now + timeout_ns
        while True:
            self._collect()
            due = self.core.wake_ns
            if due is not None and now >= due:
                self._take([], now)
                due = self.core.wake_ns
            if self._replies:
                return self._replies.popleft()
            if self._woken:
                self._woken = False
                return None
            ends = until if due is None else min(until, due)
            left = min(ends - now, POLL_NS) if self.core.watching else ends - now
            main = self.core.main
            reply = self.inner[main].wait(left)
            now = time.monotonic_ns()
            if reply is not None:
                self._take(self.core.replied(main, reply, now), now)
            elif now >= until:
                self._woken = False
                return None

    def wake(self) -> None:
        self._woken = True  # a wait of an inner host that ends early may be the end of a poll
        self.inner[self.core.main].wake()

    def alive(self) -> bool:
        self._look()
        return self.core.alive

    def cancel(self, tick: int) -> None:
        self._take(self.core.cancelled(tick), time.monotonic_ns())

    def close(self) -> None:
        with ExitStack() as closing:
            for host in self.inner.values():
                closing.callback(host.close)

    def _collect(self) -> None:
        """Let the core know what the inner hosts are, and have answered."""
        self._look()
        for name, host in self.inner.items():
            while (reply := host.wait(0)) is not None:
                now = time.monotonic_ns()
                self._take(self.core.replied(name, reply, now), now)

    def _look(self) -> None:
        shown = [(h.alive(), h.incarnation, h.gave_up, len(h.events)) for h in self.inner.values()]
        if shown != self._shown:
            self._shown, now = shown, time.monotonic_ns()
            hosts = self.inner.items()
            views = {name: host_core.view_of(h) for name, h in hosts}
            self._take(self.core.changed(views, now), now)

    def _take(self, actions: list[host_core.Action], now_ns: int) -> None:
        """Do what the core says of an event, and what is decided by it."""
        for action in actions + self.core.decided(now_ns):
            self.do(action)

    def do(self, action: host_core.Action) -> None:
        """Do it; a request that cannot be submitted is answered by its error."""
        if isinstance(action, DecisionReply):
            self._replies.append(action)
        elif isinstance(action, host_core.Submit):
            try:
                self.inner[action.host].submit(action.request)
            except Exception as error:
                reply = DecisionReply(action.request.tick, None, f"{type(error).__name__}: {error}", 0)
                now = time.monotonic_ns()
                self._take(self.core.replied(action.host, reply, now), now)
        elif isinstance(action, host_core.Cancel):
            self.inner[action.host].cancel(action.tick)
        else:
            self.reports.append(action)


def plan_host(planner: Host, terms: PlanTerms, legal: Callable[[Call], bool]) -> LayeredHost:
    """Return a host that executes plans step by step, while the next one is made."""
    return LayeredHost(PlanCore(terms, legal), {PLANNER: planner})


def executes_plans(host: Host) -> bool:
    """Return whether its replies are steps of plans."""
    return isinstance(host, LayeredHost) and isinstance(host.core, PlanCore)


def backup_host(first: Host, backup: Host, terms: Handover) -> LayeredHost:
    """Return a host of two deciders (`--backup`), which are asked at once."""
    terms = replace(terms, plans=executes_plans(first))
    return LayeredHost(BackupCore(terms), {FIRST: first, BACKUP: backup})
