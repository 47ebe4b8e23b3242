"""Hosts that combine other hosts: with a backup, with a standby, or with plans. A core chooses between the replies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rtcontrol.hosts import layered_core as ev
from rtcontrol.hosts.backup import BACKUP, FIRST, BackupCore, BackupRule
from rtcontrol.hosts.layered_core import Notify, RecordFields
from rtcontrol.hosts.plans import PLANNER, PlanCore, PlanSettings
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.models.call import Call

# Time between two polls of the other hosts during a wait for `main`, if the core would use their answers at once.
POLL_NS = 500_000
MOST_REPORTS = 4096


class LayeredHost:
    """A host that combines the hosts `inner` (by name), and executes the actions of its `core`."""

    incarnation, events = property(attrgetter("core.state.incarnation")), property(attrgetter("core.state.events"))
    gave_up, wake_ns = property(attrgetter("core.state.gave_up")), property(attrgetter("core.wake_ns"))
    durations_ns, threads = property(attrgetter("main.durations_ns")), property(attrgetter("main.threads"))

    def __init__(self, core: ev.LayeredCore, inner: Mapping[str, Host]) -> None:
        self.name, self.core, self.inner = core.state.name, core, inner
        reports = [host.reports for host in inner.values() if isinstance(host, LayeredHost)]
        self.reports: deque[RecordFields | Notify] = reports[0] if reports else deque(maxlen=MOST_REPORTS)
        self.replies: deque[DecisionReply] = deque()
        self._woken = False

    @property
    def main(self) -> Host:
        """Return the inner host in whose `wait` this host sleeps."""
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
        self._advance_core(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        end_ns = time.monotonic_ns() + timeout_ns
        while True:
            self._collect()
            now_ns, due_ns = time.monotonic_ns(), self.core.wake_ns
            if due_ns is not None and now_ns >= due_ns:
                self._advance_core(ev.TimerFired())
                due_ns = self.core.wake_ns
            if self.replies:
                return self.replies.popleft()
            left_ns = (end_ns if due_ns is None else min(end_ns, due_ns)) - now_ns
            if self._woken or now_ns >= end_ns:
                self._woken = False
                return None
            name = self.core.main
            reply = self.main.wait(min(left_ns, POLL_NS) if self.core.polls_often else left_ns)
            if reply is not None:
                self._advance_core(ev.ReplyReceived(name, reply))

    def wake(self) -> None:
        self._woken = True
        self.main.wake()

    def alive(self) -> bool:
        self._update_status()
        return self.core.state.up

    def cancel(self, tick: int) -> None:
        self._advance_core(ev.RequestCancelled(tick))

    def close(self) -> None:
        with ExitStack() as closing:
            for host in self.inner.values():
                closing.callback(host.close)

    def _collect(self) -> None:
        """Pass the status and the replies of the inner hosts to the core."""
        self._update_status()
        for name, host in self.inner.items():
            while (reply := host.wait(0)) is not None:
                self._advance_core(ev.ReplyReceived(name, reply))

    def _update_status(self) -> None:
        """Pass the status of the inner hosts to the core if it has changed."""
        hosts = self.inner.items()
        status = {name: ev.Status(h.alive(), h.incarnation, h.gave_up, tuple(h.events)) for name, h in hosts}
        if status != self.core.status:
            self._advance_core(ev.StatusChanged(status))

    def _advance_core(self, event: ev.Event) -> None:
        for action in self.core.advance(event, time.monotonic_ns()):
            match action:
                case ev.SubmitRequest(name, request):
                    self._submit(name, request)
                case ev.CancelRequest(name, tick):
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
            self._advance_core(ev.ReplyReceived(name, reply))


class BackupHost(LayeredHost):
    """A host of two deciders. The backup decides if the first decider is late or not confident."""

    def __init__(self, first: Host, backup: Host, rule: BackupRule) -> None:
        core = BackupCore(replace(rule, plans=executes_plans(first)))
        super().__init__(core, {FIRST: first, BACKUP: backup})


class PlanHost(LayeredHost):
    """A host that executes a planner's plans step by step. `legal` returns whether a call is valid for the tools."""

    def __init__(self, planner: Host, settings: PlanSettings, legal: Callable[[Call], bool]) -> None:
        super().__init__(PlanCore(settings, legal), {PLANNER: planner})


class StandbyHost(LayeredHost):
    """A host of a decoder and its warm standby."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__(ev.StandbyCore(), dict(zip(ev.PAIR, hosts, strict=True)))


def executes_plans(host: Host) -> bool:
    """Return whether the host's replies are steps of plans."""
    return isinstance(host, PlanHost)
