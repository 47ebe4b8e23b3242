"""Run the core of a loop in real time: wait for events, execute the core's actions, and answer them. Decides nothing.

Everything happens on the thread that calls `run`. Only `advance` of a lockstep world can block this thread.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol import records as ev
from rtcontrol.agents import Agent
from rtcontrol.envs.base import Acknowledging, Emission, Environment
from rtcontrol.hosts.layered_core import Notify
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.actuator_core import ActuatorCore
from rtcontrol.loop.config import plain_text
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.grid import ReleaseGrid, StepGrid, WallGrid
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.sampling import Sampler
from rtcontrol.records import HostChanged

SPIN_NS = 200_000  # the kernel wakes a sleeper up to 0.1 ms late (timer slack, a context switch): the rest is polled
MAX_SLEEP_NS = 50_000_000  # so that a signal's flag is read soon, even at 0.1 Hz
WOKE = ev.Woke()
TAKEN_BACK = "{} was taken by the world's code or a library, and is taken back: it ends the run safely."
RETAKE_NS = 10_000_000  # handlers of signals are checked once a tick, but not more often than this


class LoopClock:
    """A clock that waits until a core has something to do. It polls for the last `spin_ns`, which is 0 if many loops
    share a process.

    For a world that waits, `advance` lets the world run for so many nanoseconds (or waits for the next arrival), and
    returns since when a release is due, or None.
    """

    def __init__(
        self, grid: ReleaseGrid, spin_ns: int = SPIN_NS, advance: Callable[[int], int | None] = lambda dt_ns: None
    ) -> None:
        self.grid, self.advance = grid, advance
        self._spin_ns = spin_ns

    def wait(self, core: LoopCore, host: Host) -> DecisionReply | None:
        """Wait until the core's next instant or a reply, whichever is first. May return early."""
        until_ns, busy = core.wake_ns, core.busy
        if until_ns is None:
            return host.wait(MAX_SLEEP_NS)
        while (left := until_ns - time.monotonic_ns()) > 0:
            if left > self._spin_ns:
                # Sleep in the host's wait, so that a reply or the end of a call ends the sleep.
                return host.wait(min(left - self._spin_ns, MAX_SLEEP_NS))
            if busy and (reply := host.wait(0)) is not None:
                return reply
        return host.wait(0) if busy else None


def wall_clock(period_ns: int, spin_ns: int = SPIN_NS) -> LoopClock:
    """Return the clock for a world that does not wait for the controller."""
    return LoopClock(WallGrid(period_ns), spin_ns)


def lockstep_clock(period_ns: int, advance: Callable[[int], None]) -> LoopClock:
    """Return the clock for a world that advances by a period before each release.

    Decisions are measured in real time all the same, so one that took longer than the deadline counts as a miss; its
    call is executed nevertheless, because nothing happened meanwhile and the run must not depend on the machine.
    """

    def move(dt_ns: int) -> int:
        advance(dt_ns)
        return time.monotonic_ns()

    return LoopClock(StepGrid(period_ns, "lockstep"), advance=move)


def arrival_clock(period_ns: int, arrival: Callable[[int], int | None]) -> LoopClock:
    """Return the clock for which each arriving observation is a release, in order, with one decision for each, however
    long that takes. `arrival` waits at most so many nanoseconds for the next observation and returns its instant, or
    None."""
    return LoopClock(StepGrid(period_ns, "arrival"), advance=lambda dt_ns: arrival(MAX_SLEEP_NS))


@dataclass(frozen=True, slots=True)
class Ports:
    """The outputs of a loop. `write` takes a line for the record, `notify` a line for people, `stop` the reason why the
    run ends, `report` a report for the run's listener; `retake` takes back signals that user code took, and returns
    their names."""

    agent: Agent
    env: Environment
    host: Host
    actuator: Actuator
    sampler: Sampler
    operator: OperatorControl
    write: Callable[[dict[str, Any]], None]
    notify: Callable[[str], None]
    stop: Callable[[str], None]
    report: Callable[[ev.LoopReport], None]
    retake: Callable[[], list[str]]


def read(agent: Agent, data: Any) -> str:
    """Return the agent's text for an observation. Raises the errors of the agent's code."""
    text = agent.observe(data)
    return text if isinstance(text, str) and text.isascii() else plain_text(text)


class LoopRunner:
    """A runner of a core. `inbox` takes events from any thread; a signal handler sets `halt` to stop the process."""

    def __init__(self, core: LoopCore, clock: LoopClock, ports: Ports) -> None:
        self.core, self.clock, self.ports = core, clock, ports
        self.halt: Callable[[], None] | None = None
        self.inbox: deque[ev.Event] = deque()
        self._world = ports.env if isinstance(ports.env, Acknowledging) else None
        self._retake_ns = 0
        self._safe: ev.SafeState | None = None
        self._news = 0  # the `news` count of the actuator's core
        self._host: tuple[bool, int, str | None, int] = (True, 0, None, 0)
        self._epoch = -1  # the epoch whose episodes the core knows
        self._reports: deque[Any] = getattr(ports.host, "reports", deque())  # host events other than replies

    def run(self, collector: SlackCollector | None) -> None:
        """Run until the core is over."""
        core, clock, host = self.core, self.clock, self.ports.host
        self.ports.sampler.follow()
        self.dispatch(WOKE)
        while not core.world.stopped:
            if (halt := self.halt) is not None:
                self.halt = None
                if (why := self.ports.operator.suspend(not core.grid.enforced, self.collect, halt)) is not None:
                    self.ports.notify(why)
            if (reply := clock.wait(core, host)) is not None:
                self.dispatch(reply)
                continue
            woke_ns = time.monotonic_ns()
            self.collect()
            self.dispatch(WOKE, woke_ns)
            if woke_ns >= self._retake_ns:  # after the request was sent, so that this does not delay the decision
                self.retake()
                self._retake_ns = woke_ns + RETAKE_NS
            # If a decision is always running there is never slack, but garbage must not grow without bounds.
            if collector is not None and gc.get_count()[0] >= collector.THRESHOLD:
                collector.collect(core.slack_ns(time.monotonic_ns()))

    def dispatch(self, event: ev.Event, now_ns: int | None = None) -> None:
        """Pass an event at `now_ns` to the core, execute the core's actions, and pass their answers to the core."""
        events, advance = [event], self.core.advance
        for event in events:  # the list grows by the answers
            if type(event) is ev.Advanced:
                self.collect()  # a world that waits may have taken time
            for action in advance(event, now_ns or time.monotonic_ns()):
                if (answer := DO[type(action)](self, action)) is not None:
                    events.append(answer)
            now_ns = None

    def collect(self) -> None:
        """Pass all events that happened meanwhile to the core."""
        ports, host, actuator = self.ports, self.ports.host, self.ports.actuator.core
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, Notify):
                ports.notify(report.text)
            else:
                ports.write({**report.fields, "t_s": self.core.ledger.t_s(report.t_ns)})
        state = (host.alive(), host.incarnation, host.gave_up, len(host.events))
        if state != self._host:
            self._host = state
            ports.sampler.follow()
            self.dispatch(HostChanged(*state[:3], tuple(host.events)))
        if actuator.news != self._news:
            self._news = actuator.news
            if (safe := actuator.state) != self._safe:
                self._safe = safe
                self.dispatch(safe)
        while self.inbox:
            self.dispatch(self.inbox.popleft())
        while actuator.effects:
            self.dispatch(actuator.effects.popleft())

    def retake(self) -> None:
        """Take back signals that user code has taken."""
        for name in self.ports.retake():
            self.ports.notify(TAKEN_BACK.format(name))

    # -- actions with an answer ---------------------------------------------------------------------------------------

    def _observe(self, action: ev.Observe) -> ev.Observed:
        ports, env, since_ns = self.ports, self.ports.env, action.sample_since_ns
        runs = ports.sampler.runs()
        acks = None if self._world is None else self._world.heard
        event = ev.Observed(env.latest(), env.finished, runs, acks)
        if since_ns is not None:
            event.sample = ports.sampler.sample(since_ns)
        if (observation := event.observation) is not None:
            if observation.epoch != self._epoch:
                self._epoch, event.episodes = observation.epoch, env.episodes
            self._read(observation.data, event)
        return event

    def _read(self, data: Any, event: ev.Observed) -> None:
        if self._world is not None:
            event.acknowledged = self._world.acknowledged()
        try:
            event.text = read(self.ports.agent, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # errors of the agent's code, including SystemExit
            event.error = error

    def _ask(self, request: DecisionRequest) -> ev.Sent:
        try:
            self.ports.host.submit(request)
            return ev.Sent()
        except Exception as error:
            return ev.Sent(error)

    def _execute(self, command: ev.Command) -> ev.Event:
        replaced = self.ports.actuator.order(ActuatorCore.execute, command)
        return None if replaced is None else ev.GaveWay(replaced.tick, "call")

    def _demand(self, action: ev.Safe) -> ev.Event:
        cleared = self.ports.actuator.order(ActuatorCore.demand, action.why, action.emission)
        self._safe = None  # the core assumes that the safe call is wanted, until it learns more
        return None if cleared is None else ev.GaveWay(cleared.tick, "safe")

    def _withdraw(self, k: int) -> ev.Withdrawn:
        return ev.Withdrawn(k, self.ports.actuator.order(ActuatorCore.withdraw, k))

    def _retry(self, action: ev.Retry) -> ev.SafeState:
        again = self.ports.actuator.order(ActuatorCore.retry)
        self._safe = None
        return ev.SafeState(again, again)


# Each function returns the next event for the core, or None.
DO: dict[type, Callable[[LoopRunner, Any], ev.Event]] = {
    ev.Observe: LoopRunner._observe,
    DecisionRequest: LoopRunner._ask,
    ev.Command: LoopRunner._execute,
    Emission: lambda self, emission: self.ports.actuator.order(ActuatorCore.tell, emission),
    ev.Safe: LoopRunner._demand,
    ev.Advance: lambda self, action: ev.Advanced(self.clock.advance(action.dt_ns)),
    ev.Withdraw: lambda self, action: self._withdraw(action.k),
    ev.TakeSample: lambda self, action: ev.Sampled(action.k, self.ports.sampler.sample(action.since_ns)),
    ev.Cancel: lambda self, action: self.ports.host.cancel(action.k),
    ev.Retry: LoopRunner._retry,
    ev.Guard: lambda self, action: self.ports.actuator.arm(action.until_ns, action.emission),
    ev.Instruct: lambda self, action: self.ports.actuator.order(ActuatorCore.instruct, action.text),
    ev.Question: lambda self, action: self.ports.operator.show(action),
    ev.Record: lambda self, action: self.ports.write(action.line),
    ev.Notify: lambda self, action: self.ports.notify(action.text),
    ev.LoopReport: lambda self, action: self.ports.report(action),
    ev.Stop: lambda self, action: self.ports.stop(action.why),
}
