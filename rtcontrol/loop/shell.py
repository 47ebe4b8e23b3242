"""Do what the core says, in real time, and tell it what came of it. Decides nothing.

All on the thread that calls `run`. Of the environment only a lockstep world's `advance` can block it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.base import Acknowledging
from rtcontrol.hosts.host_core import Notify, reports_of
from rtcontrol.loop.clock import LoopClock
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.ports import Ports, read
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.records import HostChanged

RETAKE_NS = 10_000_000  # the handlers of signals are looked at once a tick, but no more often than this


class TickShell:
    """Runs a core. `halt`: a signal handler sets it where the process is to be stopped."""

    def __init__(self, core: LoopCore, clock: LoopClock, ports: Ports) -> None:
        self.core, self.clock, self.ports = core, clock, ports
        self.halt: Callable[[], None] | None = None
        self.inbox: deque[ev.Event] = deque()  # from any thread
        self._world = ports.env if isinstance(ports.env, Acknowledging) else None
        self._retake_ns = 0
        self._safe: tuple[bool, bool] | None = None
        self._news = 0  # of the actuator's core
        self._host: tuple[bool, int, str | None, int] = (True, 0, None, 0)
        self._reports = reports_of(ports.host)

    def run(self, collector: SlackCollector | None) -> None:
        """Run until the core is over."""
        core, clock, host = self.core, self.clock, self.ports.host
        self.dispatch(ev.Started(self.ports.sampler.follow()))
        while not core.over:
            if (halt := self.halt) is not None:
                self.halt = None
                if (why := self.ports.operator.suspend(not core.grid.enforced, self.collect, halt)) is not None:
                    self.ports.notify(why)
            reply = clock.wait(core.wake_ns, host, core.busy)
            self.collect()
            self.dispatch(ev.Woke() if reply is None else ev.Replied(reply))
            # With a decision always in flight there is never slack, but garbage must not grow without bounds.
            if collector is not None and gc.get_count()[0] >= collector.THRESHOLD:
                collector.collect(core.slack_ns(time.monotonic_ns()))

    def dispatch(self, event: ev.Event) -> None:
        """Let the core take the event, do what it says, and let it take the answers."""
        events, advance = [event], self.core.advance
        for event in events:  # which grow by the answers
            for action in advance(event, time.monotonic_ns()):
                if (answer := DO[type(action)](self, action)) is not None:
                    events.append(answer)

    def collect(self) -> None:
        """Let the core take what happened meanwhile."""
        ports, host, actuator = self.ports, self.ports.host, self.ports.actuator
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, Notify):
                ports.notify(report.text)
            else:
                ports.write({**report.fields, "t_s": self.core.ledger.t_s(report.t_ns)})
        state = (host.alive(), host.incarnation, host.gave_up, len(host.events))
        if state != self._host:
            self._host = state
            self.dispatch(HostChanged(*state[:3], tuple(host.events), ports.sampler.follow()))
        if (news := actuator.core.news) != self._news:
            self._news = news
            if (safe := (actuator.attempting, actuator.pending)) != self._safe:
                self._safe = safe
                self.dispatch(ev.SafeState(*safe))
        for queue in (self.inbox, actuator.effects):
            while queue:
                self.dispatch(queue.popleft())

    # -- actions with an answer ---------------------------------------------------------------------------------------

    def _observe(self, action: ev.Observe) -> ev.Observed:
        ports, since_ns, now = self.ports, action.sample_since_ns, time.monotonic_ns()
        runs = ports.sampler.runs()
        if now >= self._retake_ns:
            ports.retake()
            self._retake_ns = now + RETAKE_NS
        sample = None if since_ns is None else ports.sampler.sample(since_ns)
        heard = None if self._world is None else self._world.heard
        return ev.Observed(ports.env.latest(), ports.env.finished, runs, heard, sample)

    def _read(self, action: ev.Read) -> ev.TextRead:
        done = None if self._world is None else self._world.acknowledged()
        try:
            return ev.TextRead(read(self.ports.agent, action.observation.data), None, done)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the agent's own code, SystemExit too
            return ev.TextRead("", error, done)

    def _ask(self, action: ev.Ask) -> ev.Sent:
        try:
            self.ports.host.submit(action.request)
            return ev.Sent()
        except Exception as error:
            return ev.Sent(error)

    def _execute(self, action: ev.Execute) -> ev.Event | None:
        replaced = self.ports.actuator.execute(action.command)
        return None if replaced is None else ev.GaveWay(replaced.tick, "call")

    def _demand(self, action: ev.Safe) -> ev.Event | None:
        cleared = self.ports.actuator.safe(action.why, action.emission)
        self._safe = None  # the core supposes that it is wanted, until it learns more
        return None if cleared is None else ev.GaveWay(cleared.tick, "safe")

    def _retry(self, action: ev.Retry) -> ev.SafeState:
        again = self.ports.actuator.retry()
        self._safe = None
        return ev.SafeState(again, again)


# Each returns the core's next event, or None.
DO: dict[type, Callable[[TickShell, Any], ev.Event | None]] = {
    ev.Observe: TickShell._observe,
    ev.Read: TickShell._read,
    ev.Ask: TickShell._ask,
    ev.Execute: TickShell._execute,
    ev.Safe: TickShell._demand,
    ev.Advance: lambda self, action: ev.Advanced(self.clock.advance(action.dt_ns)),
    ev.Withdraw: lambda self, action: ev.Withdrawn(action.k, self.ports.actuator.withdraw(action.k)),
    ev.TakeSample: lambda self, action: ev.Sampled(action.k, self.ports.sampler.sample(action.since_ns)),
    ev.ListEpisodes: lambda self, action: ev.Ended(self.ports.env.episodes),
    ev.Cancel: lambda self, action: self.ports.host.cancel(action.k),
    ev.Retry: TickShell._retry,
    ev.Tell: lambda self, action: self.ports.actuator.tell(action.emission),
    ev.Guard: lambda self, action: self.ports.actuator.arm(action.until_ns, action.emission),
    ev.Instruct: lambda self, action: self.ports.actuator.instruct(action.text),
    ev.Question: lambda self, action: self.ports.operator.show(action),
    ev.Record: lambda self, action: self.ports.write(action.line),
    ev.Notify: lambda self, action: self.ports.notify(action.text),
    ev.LoopReport: lambda self, action: self.ports.report(action),
    ev.Stop: lambda self, action: self.ports.stop(action.why),
}
