"""Run LoopCore in real time: wait for events, pass them to the core, and execute the core's actions.

All this runs on the thread that calls `run`. Only `advance` of a lockstep world can block this thread.
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
from rtcontrol.envs.base import AcknowledgingEnvironment, Emission, Environment
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

SPIN_NS = 200_000  # the last 0.2 ms of a wait are polled: the kernel may wake a sleeping thread 0.1 ms late
MAX_SLEEP_NS = 50_000_000  # sleep at most this long, to check the flags that signal handlers set
TIMER_FIRED = ev.TimerFired()
TAKEN_BACK = "{0} was caught by the environment's code or a library. Its handler is restored, so that {0} ends the run."
RESTORE_NS = 10_000_000  # signal handlers are checked once per tick, but at most every 10 ms


class LoopClock:
    """A clock that waits until LoopCore has work. `spin_ns`: how long the end of a wait is polled (0 if many loops
    share a process).

    `advance` is for a world that waits for the controller. It advances the world by a number of nanoseconds, or waits
    for the next observation, and returns since when a release is due (None: no release is due)."""

    def __init__(
        self, grid: ReleaseGrid, spin_ns: int = SPIN_NS, advance: Callable[[int], int | None] = lambda dt_ns: None
    ) -> None:
        self.grid, self.advance = grid, advance
        self._spin_ns = spin_ns

    def wait(self, core: LoopCore, host: Host) -> DecisionReply | None:
        """Wait until `core.wake_ns` or until a reply arrives. Return the reply or None. May return early."""
        until_ns, busy = core.wake_ns, core.busy
        if until_ns is None:
            return host.wait(MAX_SLEEP_NS)
        while (left := until_ns - time.monotonic_ns()) > 0:
            if left > self._spin_ns:
                # Sleep in `host.wait`. A reply ends this sleep early, and so does the end of a call (by `host.wake`).
                return host.wait(min(left - self._spin_ns, MAX_SLEEP_NS))
            if busy and (reply := host.wait(0)) is not None:
                return reply
        return host.wait(0) if busy else None


def wall_clock(period_ns: int, spin_ns: int = SPIN_NS) -> LoopClock:
    """Return the clock for a world that does not wait for the controller."""
    return LoopClock(WallGrid(period_ns), spin_ns)


def lockstep_clock(period_ns: int, advance: Callable[[int], None]) -> LoopClock:
    """Return the clock for a lockstep world, which advances by a period before each release.

    A decision that takes longer than the deadline in real time counts as a miss. Its call is still executed, because
    the world waited, and the course of the run must not depend on the machine's speed."""

    def advance_world(dt_ns: int) -> int:
        advance(dt_ns)
        return time.monotonic_ns()

    return LoopClock(StepGrid(period_ns, "lockstep"), advance=advance_world)


def arrival_clock(period_ns: int, arrival: Callable[[int], int | None]) -> LoopClock:
    """Return the clock in which each observation starts a tick. Each observation gets a decision, in order, without a
    time limit. `arrival` waits at most a number of nanoseconds for the next observation, and returns the time of its
    arrival, or None."""
    return LoopClock(StepGrid(period_ns, "arrival"), advance=lambda dt_ns: arrival(MAX_SLEEP_NS))


@dataclass(frozen=True, slots=True)
class Ports:
    """The objects and functions with which LoopRunner executes actions. `write` records a line, `notify` shows a line
    to the user, `stop` ends the run for a reason, `report` calls the run's Listener. `restore_handlers` restores signal
    handlers that user code replaced, and returns the names of these signals."""

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
    restore_handlers: Callable[[], list[str]]


def observation_text(agent: Agent, data: Any) -> str:
    """Return the text into which the agent turns an observation. Raises the errors of the agent's code."""
    text = agent.observe(data)
    return text if isinstance(text, str) and text.isascii() else plain_text(text)


class LoopRunner:
    """A runner of LoopCore. `inbox`: events of other threads. `halt`: set by a signal handler to suspend the run."""

    def __init__(self, core: LoopCore, clock: LoopClock, ports: Ports) -> None:
        self.core, self.clock, self.ports = core, clock, ports
        self.halt: Callable[[], None] | None = None
        self.inbox: deque[ev.Event] = deque()
        self._world = ports.env if isinstance(ports.env, AcknowledgingEnvironment) else None
        self._next_restore_ns = 0
        self._safe: ev.SafeState | None = None
        self._handled_changes = 0  # the last `change_count` of ActuatorCore that was handled
        self._host: tuple[bool, int, str | None, int] = (True, 0, None, 0)
        self._epoch = -1  # the last epoch that the core received
        self._reports: deque[Any] = getattr(ports.host, "reports", deque())  # host events other than replies

    def run(self, collector: SlackCollector | None) -> None:
        """Run ticks until the core is stopped."""
        core, clock, host = self.core, self.clock, self.ports.host
        self.ports.sampler.open_files()
        self.dispatch(TIMER_FIRED)
        while not core.world.stopped:
            if (halt := self.halt) is not None:
                self.halt = None
                if (why := self.ports.operator.suspend(not core.grid.enforced, self.process_events, halt)) is not None:
                    self.ports.notify(why)
            if (reply := clock.wait(core, host)) is not None:
                self.dispatch(reply)
                continue
            woke_ns = time.monotonic_ns()
            self.process_events()
            self.dispatch(TIMER_FIRED, woke_ns)
            if woke_ns >= self._next_restore_ns:  # only now, so that it does not delay the request
                self.restore_signal_handlers()
                self._next_restore_ns = woke_ns + RESTORE_NS
            # Call `collect` even if there is no slack, because it must collect when there is too much garbage.
            if collector is not None and gc.get_count()[0] >= collector.THRESHOLD:
                collector.collect(core.slack_ns(time.monotonic_ns()))

    def dispatch(self, event: ev.Event, now_ns: int | None = None) -> None:
        """Pass an event of the time `now_ns` to the core, execute its actions, and pass their results to the core."""
        events, advance = [event], self.core.advance
        for event in events:  # the results of actions are appended to this list
            if type(event) is ev.AdvanceResult:
                self.process_events()  # the step of the world may have taken long, so handle other events first
            for action in advance(event, now_ns or time.monotonic_ns()):
                if (answer := ACTION_HANDLERS[type(action)](self, action)) is not None:
                    events.append(answer)
            now_ns = None

    def process_events(self) -> None:
        """Pass all pending events of the host, the actuator and other threads to the core."""
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
            ports.sampler.open_files()
            self.dispatch(HostChanged(*state[:3], tuple(host.events)))
        if actuator.change_count != self._handled_changes:
            self._handled_changes = actuator.change_count
            if (safe := actuator.state) != self._safe:
                self._safe = safe
                self.dispatch(safe)
        while self.inbox:
            self.dispatch(self.inbox.popleft())
        while actuator.effects:
            self.dispatch(actuator.effects.popleft())

    def restore_signal_handlers(self) -> None:
        """Restore signal handlers that user code has replaced."""
        for name in self.ports.restore_handlers():
            self.ports.notify(TAKEN_BACK.format(name))

    # -- actions with a result ----------------------------------------------------------------------------------------

    def _observe(self, action: ev.Observe) -> ev.ObserveResult:
        ports, env, since_ns = self.ports, self.ports.env, action.sample_since_ns
        schedstats = ports.sampler.read_schedstats()
        acks = None if self._world is None else self._world.acknowledgements
        event = ev.ObserveResult(env.latest(), env.finished, schedstats, acks)
        if since_ns is not None:
            event.sample = ports.sampler.sample(since_ns)
        if (observation := event.observation) is not None:
            if observation.epoch != self._epoch:
                self._epoch, event.episodes = observation.epoch, env.episodes
            self._convert_observation(observation.data, event)
        return event

    def _convert_observation(self, data: Any, event: ev.ObserveResult) -> None:
        if self._world is not None:
            event.acknowledged = self._world.pop_acknowledged_calls()
        try:
            event.text = observation_text(self.ports.agent, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the agent's code may raise any error, even SystemExit
            event.error = error

    def _submit(self, request: DecisionRequest) -> ev.SendResult:
        try:
            self.ports.host.submit(request)
            return ev.SendResult()
        except Exception as error:
            return ev.SendResult(error)

    def _execute(self, command: ev.Command) -> ev.Event:
        replaced = self.ports.actuator.call_core(ActuatorCore.execute, command)
        return None if replaced is None else ev.CallPreempted(replaced.tick, "call")

    def _demand(self, action: ev.DemandSafeCalls) -> ev.Event:
        cleared = self.ports.actuator.call_core(ActuatorCore.demand_safe_calls, action.why, action.emission)
        self._safe = None  # the next `process_events` passes the state of the safe calls to the core
        return None if cleared is None else ev.CallPreempted(cleared.tick, "safe")

    def _withdraw(self, k: int) -> ev.WithdrawResult:
        return ev.WithdrawResult(k, self.ports.actuator.call_core(ActuatorCore.withdraw, k))

    def _retry(self, action: ev.RetrySafeCalls) -> ev.SafeState:
        again = self.ports.actuator.call_core(ActuatorCore.retry_safe_calls)
        self._safe = None
        return ev.SafeState(again, again)


# Functions that execute an action. Each returns the result as an event for the core, or None.
ACTION_HANDLERS: dict[type, Callable[[LoopRunner, Any], ev.Event]] = {
    ev.Observe: LoopRunner._observe,
    DecisionRequest: LoopRunner._submit,
    ev.Command: LoopRunner._execute,
    Emission: lambda self, emission: self.ports.actuator.call_core(ActuatorCore.emit, emission),
    ev.DemandSafeCalls: LoopRunner._demand,
    ev.AdvanceWorld: lambda self, action: ev.AdvanceResult(self.clock.advance(action.dt_ns)),
    ev.WithdrawCall: lambda self, action: self._withdraw(action.k),
    ev.TakeSample: lambda self, action: ev.SampleResult(action.k, self.ports.sampler.sample(action.since_ns)),
    ev.CancelRequest: lambda self, action: self.ports.host.cancel(action.k),
    ev.RetrySafeCalls: LoopRunner._retry,
    ev.ArmGuard: lambda self, action: self.ports.actuator.arm_watchdog(action.until_ns, action.emission),
    ev.Instruct: lambda self, action: self.ports.actuator.call_core(ActuatorCore.instruct, action.text),
    ev.ShowApproval: lambda self, action: self.ports.operator.show_approval(action),
    ev.RecordLine: lambda self, action: self.ports.write(action.line),
    ev.Notify: lambda self, action: self.ports.notify(action.text),
    ev.LoopReport: lambda self, action: self.ports.report(action),
    ev.StopRun: lambda self, action: self.ports.stop(action.why),
}
