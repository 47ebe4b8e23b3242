"""Hosts that combine other hosts in real time: a standby, a backup, plans. The cores of these hosts decide."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rtcontrol.hosts import layered_core as ev
from rtcontrol.hosts.backup import BACKUP, FIRST, BackupCore, Handover
from rtcontrol.hosts.layered_core import Notify, Report
from rtcontrol.hosts.plans import PLANNER, PlanCore, PlanTerms
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.models.call import Call

# How often to poll the hosts that `wait` does not sleep in, while an answer would be used at once.
POLL_NS = 500_000
MOST_REPORTS = 4096


class LayeredHost:
    """A host that combines `inner` hosts, by name, and closes them in reverse order. `core` makes the decisions."""

    incarnation, events = property(attrgetter("core.state.incarnation")), property(attrgetter("core.state.events"))
    gave_up, wake_ns = property(attrgetter("core.state.gave_up")), property(attrgetter("core.wake_ns"))
    shares, threads = property(attrgetter("main.shares")), property(attrgetter("main.threads"))

    def __init__(self, core: ev.LayeredCore, inner: Mapping[str, Host]) -> None:
        self.name, self.core, self.inner = core.state.name, core, inner
        reports = [host.reports for host in inner.values() if isinstance(host, LayeredHost)]
        self.reports: deque[Report | Notify] = reports[0] if reports else deque(maxlen=MOST_REPORTS)
        self.replies: deque[DecisionReply] = deque()
        self._woken = False

    @property
    def main(self) -> Host:
        """The inner host in whose `wait` this host sleeps."""
        return self.inner[self.core.main]

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        infos: dict[str, dict[str, Any]] = {}
        for name, host in self.inner.items():
            infos[name] = host.start(stopped)
            if stopped():
                return {}
        return self.core.info(infos)

    def submit(self, request: DecisionRequest) -> None:
        self._collect()
        self._take(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        end_ns = time.monotonic_ns() + timeout_ns
        while True:
            self._collect()
            now_ns, due_ns = time.monotonic_ns(), self.core.wake_ns
            if due_ns is not None and now_ns >= due_ns:
                self._take(ev.Woke())
                due_ns = self.core.wake_ns
            if self.replies:
                return self.replies.popleft()
            left_ns = (end_ns if due_ns is None else min(end_ns, due_ns)) - now_ns
            if self._woken or now_ns >= end_ns:
                self._woken = False
                return None
            name = self.core.main
            reply = self.main.wait(min(left_ns, POLL_NS) if self.core.watching else left_ns)
            if reply is not None:
                self._take(ev.Replied(name, reply))

    def wake(self) -> None:
        self._woken = True  # a wait of an inner host that ends early may be the end of a poll
        self.main.wake()

    def alive(self) -> bool:
        self._look()
        return self.core.state.up

    def cancel(self, tick: int) -> None:
        self._take(ev.Cancelled(tick))

    def close(self) -> None:
        with ExitStack() as closing:
            for host in self.inner.values():
                closing.callback(host.close)

    def _collect(self) -> None:
        """Pass the status and the replies of the inner hosts to the core."""
        self._look()
        for name, host in self.inner.items():
            while (reply := host.wait(0)) is not None:
                self._take(ev.Replied(name, reply))

    def _look(self) -> None:
        hosts = self.inner.items()
        status = {name: ev.Status(h.alive(), h.incarnation, h.gave_up, tuple(h.events)) for name, h in hosts}
        if status != self.core.status:
            self._take(ev.Changed(status))

    def _take(self, event: ev.Event) -> None:
        for action in self.core.advance(event, time.monotonic_ns()):
            match action:
                case ev.Ask(name, request):
                    self._submit(name, request)
                case ev.Withdraw(name, tick):
                    self.inner[name].cancel(tick)
                case DecisionReply():
                    self.replies.append(action)
                case _:
                    self.reports.append(action)

    def _submit(self, name: str, request: DecisionRequest) -> None:
        try:
            self.inner[name].submit(request)
        except Exception as error:
            reply = DecisionReply(request.tick, None, f"{type(error).__name__}: {error}", 0)
            self._take(ev.Replied(name, reply))


class BackupHost(LayeredHost):
    """Two deciders; the backup decides if the first decider is late or not confident."""

    def __init__(self, first: Host, backup: Host, terms: Handover) -> None:
        core = BackupCore(replace(terms, plans=executes_plans(first)))
        super().__init__(core, {FIRST: first, BACKUP: backup})


class PlanHost(LayeredHost):
    """A planner whose plans are executed step by step. `legal` returns whether a call is valid."""

    def __init__(self, planner: Host, terms: PlanTerms, legal: Callable[[Call], bool]) -> None:
        super().__init__(PlanCore(terms, legal), {PLANNER: planner})


class StandbyHost(LayeredHost):
    """A decoder and its warm standby."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__(ev.StandbyCore(), dict(zip(ev.PAIR, hosts, strict=True)))


def executes_plans(host: Host) -> bool:
    """Return whether the host's replies are steps of plans."""
    return isinstance(host, PlanHost)
