"""Simulate a run: the real cores, runner and operator control, on a simulated machine with a simulated world."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from rtcontrol.agents import Agent, Fallback, Tools
from rtcontrol.drill.simulation.actuator import SimActuator
from rtcontrol.drill.simulation.decoder import FUNCTIONS, SimDecoder, SimHost, combined_host
from rtcontrol.drill.simulation.faults import BLOCKING, FAULT_KINDS, FINAL, NETWORK, WORLD, Faults, SimFault
from rtcontrol.drill.simulation.referee import LOCKSTEP_MODES, Referee
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline, Thread
from rtcontrol.drill.simulation.world import SimObserve, SimWorld
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.grid import ReleaseGrid, StepGrid, WallGrid
from rtcontrol.loop.loop import ControlLoop, finish
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.loop.runner import LoopRunner, Ports
from rtcontrol.models.call import Call
from rtcontrol.records import Command, EvidenceSample, LoopReport, NewInstruction, ThreadReading
from rtcontrol.run.user_files import tools_only_agent

# Points at which an operator may give a command: now, just before a call is ordered, while a call waits for
# the world, while the agent computes the observation text, or just before a request is sent.
COMMAND_POINTS = ("now", "order", "wait", "text", "send")
MAX_WAITS = 200  # the loop may wait at most this often in 10 ms of simulated time
REMOTE_SHARE = 0.04  # share of seeds that simulate a remote world
RATES_HZ = (2, 8, 16, 16, 16, 50, 100)
# A run with a local world has one of these modes, chosen at random.
MODES = (*("plain",) * 7, "lockstep", "arrivals", "calls", "plans", "backup", "standby", "ends")
Trace = Callable[[Any, dict[str, Any]], None] | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """The scenario of a seed. `kinds`: kinds of injected faults. `mean_pause`: average periods between faults.

    `null_share`, `unsure_share`: probability of a null decision, and of one below the minimum confidence."""

    seed: int
    config: RunConfig
    agent: Agent
    kinds: tuple[str, ...]
    mean_pause: float
    null_share: float
    unsure_share: float
    mode: str

    @property
    def name(self) -> str:
        config, faults = self.config, "all faults" if len(self.kinds) > 2 else ", ".join(self.kinds)
        return f"{config.hz:g} Hz, {config.pipeline} at once, on_miss={config.on_miss}, {self.mode}, {faults}"


def scenario_for(seed: int, only: tuple[str, ...] = ()) -> Scenario:
    """Return the random scenario of a seed. Three of four seeds have one kind of fault; the others have all kinds that
    are possible in the world. `only`: use only these kinds."""
    rng, other_rng = random.Random(f"{seed} scenario"), random.Random(f"{seed} mode")
    remote = rng.random() < REMOTE_SHARE
    mode = "remote" if remote else other_rng.choice(MODES)
    hz = rng.choice(RATES_HZ[1:] if remote else RATES_HZ)
    period_ms = 1e3 / hz
    pipeline = rng.choice((1, 1, 1, 1, 2, 3))
    options: dict[str, Any] = {
        "pipeline": pipeline,
        "deadline_ms": period_ms * (pipeline - rng.choice((0.0, 0.0, 0.1, 0.3))),
        "max_age_ms": period_ms * rng.uniform(1.5, 2.5) + 6,
        "hold_ms": period_ms * rng.choice((0.0, 0.5, 1.5, 3.0, 8.0)),
        "confirm_s": 4 / hz,
        "on_miss": rng.choice(("hold", "hold", "hold", "safe")),
        "record_observations": "yes" if rng.random() < 0.5 else "no",
        "hysteresis": "margin=0.1" if rng.random() < 0.2 and mode != "calls" else None,
        "calls_per_tick": other_rng.choice((2, 3)) if mode == "calls" else 1,
    }
    names = sorted(set(FAULT_KINDS) - set(FINAL) - set(WORLD if remote else NETWORK))
    if mode in LOCKSTEP_MODES:
        names = [name for name in names if name not in BLOCKING]
    mixed = rng.random() < 0.25
    kinds = tuple(names) if mixed else (rng.choice(names),)
    if mode == "ends":
        kinds = (*kinds, *FINAL)
    if only:
        kinds = tuple(name for name in only if name in (*names, *(() if remote else FINAL)))
    safe_calls = rng.choice((["stop"], ["stop"], ["stop", "open"]))
    if unsure_share := rng.choice((0.0, 0.0, 0.1)):
        options["min_confidence"] = 0.5
    if rng.random() < 0.15 and not remote:
        options["confirm"] = ("grip",)
    mean_pause = rng.uniform(3.0, 8.0) if mixed else rng.uniform(5.0, 12.0)
    config = RunConfig(env="remote", agent="sim", model="noop", hz=hz, **options)
    agent, null_share = simulated_agent(safe_calls), rng.choice((0.0, 0.1))
    return Scenario(seed, config, agent, kinds, mean_pause, null_share, unsure_share, mode)


def simulated_agent(safe_calls: list[str]) -> Agent:
    """Return an agent that has the simulated tools and a tool for each safe call."""
    x = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 3}}}
    tools = Tools([{"name": name, "parameters": x} for name in FUNCTIONS] + [{"name": name} for name in safe_calls])
    return tools_only_agent("sim", tools, "go", Fallback(calls=[Call(name) for name in safe_calls]))


class SimSampler:
    """A Sampler that reads pauses, calls and thread statistics from the simulated machine."""

    def __init__(self, run: SimRun) -> None:
        self._run = run
        self.collections: list[tuple[int, int]] = []

    def read_schedstats(self) -> tuple[bytes, ...]:
        run = self._run
        return run.thread.schedstat, run.worker.schedstat

    def open_files(self) -> None: ...

    def sample(self, since_ns: int) -> EvidenceSample:
        run, now = self._run, self._run.time.now_ns
        run.referee.record_sample(since_ns)
        min_ns = min(max(run.settings.period_ns // 5, 2 * MS), 10 * MS)
        pauses = [(b, e, "gc") for b, e in self.collections if e > since_ns]
        pauses += [(b, min(e, now), "stopped") for b, e in run.process.frozen_spans if e > since_ns and e - b > min_ns]
        decoder, waits = run.host.main_decoder, "R" if run.worker.ready_ns else "S"
        state = "X" if not decoder.up else "T" if now < decoder.process.frozen_ns else "S"
        threads = [
            ThreadReading("loop", "R", run.thread.ran_ns, run.thread.delayed_ns),
            ThreadReading("actuator", waits, run.worker.ran_ns, run.worker.delayed_ns),
            ThreadReading("decoder", state),
        ]
        acting = [(start, end) for start, end in run.actuator.core.call_spans]
        return EvidenceSample(now, sorted(pauses), acting, threads, True, run.host.incarnation)

    def close(self) -> None: ...


class SimClock:
    """A LoopClock whose `wait` advances the simulated time. It calls `fail` if the loop waits without progress."""

    def __init__(
        self, thread: Thread, grid: ReleaseGrid, fail: Callable[[str], None], advance: Callable[[int], int | None]
    ) -> None:
        self.thread, self.grid, self._fail, self.advance = thread, grid, fail, advance
        self._waits = self._since_ns = 0

    def wait(self, core: LoopCore, host: Any) -> Any:
        time, until_ns = self.thread.process.time, core.wake_ns
        if time.now_ns - self._since_ns > 10 * MS:
            self._since_ns, self._waits = time.now_ns, 0
        self._waits += 1
        if self._waits > MAX_WAITS:
            self._fail("the loop waits without progress")
        until_ns = time.now_ns + S if until_ns is None else until_ns
        self.thread.sleep(min(until_ns, host.wake_ns or until_ns), host.replies)
        return host.wait(0)


class Machine:
    """A simulated machine: time, the loop's process with two threads, decoders and faults. Loops may share it."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = settings = settings_of(scenario.config, scenario.agent)
        self.time = time = SimTimeline(scenario.seed)
        self.process = Process(time)
        self.thread = Thread(self.process, time.rng("loop"))
        self.worker = Thread(self.process, time.rng("actuator"))
        self.people = time.rng("people")
        self.scenario, self.rng = scenario, time.rng("machine")
        mean_pause = scenario.mean_pause / 4 if scenario.mode == "lockstep" else scenario.mean_pause
        self.faults = faults = Faults(time, settings.period_ns, scenario.kinds, mean_pause)
        self.decoders = [self._make_decoder(i) for i in range(2 if scenario.mode in ("backup", "standby") else 1)]
        any_decoder = lambda: self.rng.choice(self.decoders)  # noqa: E731
        faults.effects |= {
            "stop_decoder": lambda fault: any_decoder().freeze_until_end(fault),
            "stray": lambda fault: any_decoder().send_stray_reply(),
        }
        faults.effects |= dict.fromkeys(("kill_decoder", "give_up"), lambda fault: any_decoder().kill(fault))

    def _make_decoder(self, i: int) -> SimDecoder:
        scenario, settings = self.scenario, self.settings
        usual_ns = (settings.deadline_ns // 20 + 50 * US, settings.deadline_ns // 3 + 60 * US)
        decoder = SimDecoder(self.time, self.faults, usual_ns, settings.period_ns, settings.pipeline, "b" * i)
        decoder.null_share, decoder.unsure_share = scenario.null_share, scenario.unsure_share
        if scenario.mode == "plans":
            decoder.plan_timeout_ns = 2 * (settings.max_age_ns + settings.period_ns)
        return decoder

    def make_host(self) -> SimHost:
        """Return a new host for a run, which uses the machine's decoders."""
        for decoder in self.decoders:
            decoder.inbox.clear()
            decoder.events = []
        inner = combined_host(self.scenario.mode, self.decoders, self.settings)
        return SimHost(self.time, self.decoders, inner)


class SimRun(ControlLoop):
    """A simulated run of a loop. `trace` is called with each line of the record. If `env` is None, use a SimWorld."""

    host: Any
    env: Any

    def __init__(
        self, scenario: Scenario, trace: Trace = None, machine: Machine | None = None, env: Any = None
    ) -> None:
        self.machine = machine = machine or Machine(scenario)
        self.scenario, self.settings, self.trace = scenario, replace(machine.settings, emits=env is not None), trace
        self.time, self.process, self.thread = machine.time, machine.process, machine.thread
        self.worker, self.faults, self.people = machine.worker, machine.faults, machine.people
        self.next_point = ""
        self.steps = scenario.mode in LOCKSTEP_MODES
        self.max_ticks = 0  # maximum number of ticks; only used if the world waits for decisions
        self.referee = Referee(self.time, self.faults, self.settings, scenario.mode, self.process)
        self.referee.threads = [self.thread, self.worker]
        self.referee.blocked_spans = self._blocked_spans
        self.text = SimObserve(self.thread, self.faults, self.settings.deadline_ns)
        self.confirmed: set[int] = set()  # ticks whose call an operator confirmed
        agent, host = replace(scenario.agent, observe=self.text.observe), machine.make_host()
        host.on_point = self.text.on_point = self._at_point
        host.on_reply = self._handle_reply
        recorder: Any = SimpleNamespace(write=self._write)
        super().__init__(scenario.config, agent, env or self._make_world(), host, recorder)  # type: ignore[arg-type]
        self.state.launched = True
        self.faults.effects |= {"stop_loop": self._stop_loop, "gc": self._collect_garbage, "starve_loop": self._starve}
        self.faults.effects |= {"starve_actuator": self._starve, "pause": self._pause, "instruct": self._instruct}

    def _make_world(self) -> SimWorld:
        step_ns = self.settings.period_ns // (1 if self.steps else 3)
        world = SimWorld(
            self.faults,
            self.process,
            (step_ns, self.settings.deadline_ns),
            self._check_act,
            self.referee.record_renewal,
        )
        world.waits = self.steps
        world.on_point = self._at_point
        return world

    def _assemble(self) -> LoopRunner:
        self.rules = rules_of(self.config, self.agent)
        self.actuator = SimActuator(
            self.agent, self.env, self.host.wake, self.worker, self.referee, frozenset(self.config.confirm)
        )
        period_ns, by = self.settings.period_ns, "arrival" if self.scenario.mode == "arrivals" else "lockstep"
        grid = StepGrid(period_ns, by) if self.steps else WallGrid(period_ns)  # type: ignore[arg-type]
        clock: Any = SimClock(
            self.thread, grid, self.referee.fail, self._next_arrival if by == "arrival" else self._step
        )
        core = LoopCore(self.settings, replace(self.rules, check=self._check_call), grid)
        ports = Ports(
            agent=self.agent,
            env=self.env,
            host=self.host,
            actuator=self.actuator,
            sampler=SimSampler(self),  # type: ignore[arg-type]
            operator=OperatorControl(self.actuator, self.settings.confirm_ns, self.stop, self.host.wake),
            write=self._write,
            notify=lambda line: None,
            stop=self.stop,
            report=self._schedule_answer,
            restore_handlers=list,
        )
        return LoopRunner(core, clock, ports)

    def _step(self, dt_ns: int) -> int:
        """Advance a lockstep world by a period. Return the time after it."""
        self.env.step()
        self.thread.pause(50 * US)
        return self.time.now_ns

    def _next_arrival(self, dt_ns: int) -> int | None:
        """Wait for the next observation. Return its arrival time, or None if the world is frozen."""
        self.thread.sleep(max(self.env.arrives_ns, self.time.now_ns), lambda: False)
        arrived_ns: int | None = self.env.take_arrival()
        return arrived_ns

    # -- the run ------------------------------------------------------------------------------------------------------

    def simulate(self, ticks: int) -> None:
        """Simulate a number of periods, or fewer if the decoder gives up. Raises Violation if a rule is violated."""
        with simulated_clock(self.time):
            self.faults.start()
            self.max_ticks = ticks
            self.time.at(self.time.now_ns + ticks * self.settings.period_ns, self.end)
            self.loop()

    def loop(self) -> None:
        """Run ticks until the run is stopped, and then shut it down. Raises Violation if a rule is violated."""
        self.referee.record_renewal()
        self.runner.run(None)
        self.state.t_end_ns = self.time.now_ns
        self.referee.exit_ns = self.time.now_ns
        finish(self, 10.0)
        if self.referee.violation is not None:
            raise self.referee.violation  # the loop may have counted this exception as a miss, so raise it again

    def end(self) -> None:
        """Stop the run and the injection of faults."""
        self.faults.running = False
        self.stop("duration")

    def stop(self, why: str) -> None:
        super().stop(why)
        self.host.wake()

    def _write(self, line: dict[str, Any]) -> None:
        if self.trace is not None:
            self.trace(self, line)
        self.referee.check_line(line)
        if self.steps and self.referee.ticks >= self.max_ticks:
            self.end()
        if "end" in line:
            self.referee.check_end(self.state.t_end_ns, line["open"] + line.get("skipped", 0))

    # -- reports to the referee ----------------------------------------------------------------------------------------

    def _check_act(self, call: Call, command: Command) -> None:
        k = command.tick
        requested_ns, request = self.host.requests[k]
        reply = self.host.newest_replies[k]
        if reply.older_request is not None:
            request = reply.older_request  # the call is a step of a plan for an older observation
            requested_ns = request.captured_ns
        decision, needs_approval = reply.decision, call.name in self.config.confirm
        wrong = {
            "in another epoch": request.epoch != self.env.epoch,
            "with low confidence": decision is None
            or (bool(self.scenario.unsure_share) and decision.confidence.get("function", 1) < 0.5),
            "illegal": call.name not in FUNCTIONS,
            "without approval": needs_approval and k not in self.confirmed,
        }
        self.referee.check_act(k, requested_ns, request.captured_ns, wrong, needs_approval)

    def _handle_reply(self, reply: DecisionReply) -> None:
        """Record that the active call is renewed, if a reply is a null decision on time."""
        settings, decision = self.settings, reply.decision
        due_ns = self.referee.origin_ns + reply.tick * settings.period_ns + settings.deadline_ns
        if decision is not None and decision.call is None and (self.steps or self.time.now_ns <= due_ns):
            self.referee.record_renewal()

    def _blocked_spans(self, now: int) -> list[tuple[int, int]]:
        spans = []
        if self.actuator.busy_ns:
            spans.append((self.actuator.busy_ns, now + self.settings.period_ns // 4))
        if self.text.since_ns:
            guard_ns = self.text.since_ns + self.settings.guard_ns
            if now < guard_ns:
                spans.append((self.text.since_ns, guard_ns))
        return spans

    # -- faults of the machine, and operators' commands ----------------------------------------------------------------

    def _stop_loop(self, fault: SimFault) -> None:
        self.process.freeze(fault.end_ns - self.time.now_ns)
        fault.extend_to(fault.end_ns + self.settings.period_ns)

    def _collect_garbage(self, fault: SimFault) -> None:
        self._stop_loop(fault)
        self.runner.ports.sampler.collections.append(self.process.frozen_spans[-1])  # type: ignore[attr-defined]

    def _starve(self, fault: SimFault) -> None:
        thread = self.thread if fault.kind.name == "starve_loop" else self.worker
        thread.starved_ns = fault.end_ns
        fault.extend_to(fault.end_ns + self.settings.period_ns)

    def _pause(self, fault: SimFault) -> None:
        self.faults.take_pending("pause")
        self.next_point = self.people.choice(COMMAND_POINTS)
        if self.next_point == "now":
            self.process.at(self.time.now_ns, lambda: self._at_point("now"))

    def _at_point(self, point: str) -> None:
        """Give the operator's command that is scheduled for this point (see COMMAND_POINTS). At "hang",
        schedule a check that the actuator demands the safe call while the loop hangs."""
        if point == "hang" and not self.steps:
            self.time.at(self.time.now_ns + self.settings.guard_ns, partial(self._expect_watchdog, self.text.since_ns))
        if self.next_point != point:
            return
        self.next_point = ""
        if self.operator.state == "running":
            self._give_command("pause")
            resumes_ns = self.time.now_ns + self.people.randrange(1, 6 * self.settings.period_ns)
            self.process.at(resumes_ns, lambda: self._give_command("resume"))

    def _expect_watchdog(self, since_ns: int) -> None:
        """Expect the safe call if the agent's code still hangs, because the actuator must demand it then."""
        if self.text.since_ns == since_ns:
            self.referee.expect_safe(self.time.now_ns, self.time.now_ns)

    def _check_call(self, call: Call) -> tuple[Call, str]:
        """Validate a call by the agent's rules. The operator may give a command directly after this."""
        checked = self.rules.check(call)
        self._at_point("order")
        return checked

    def _give_command(self, word: str) -> None:
        if self.operator.state == "stopped":
            return
        self.operator.execute_command(word, "page")
        self.referee.record_command(word)

    def _instruct(self, fault: SimFault) -> None:
        self.faults.take_pending("instruct")
        self.runner.inbox.append(NewInstruction(f"go {self.time.now_ns}"))

    def _schedule_answer(self, report: LoopReport) -> None:
        """If a call waits for approval, schedule the operator's random answer, or none."""
        pending = self.operator.pending_approval
        if report.kind == "changed" and pending is not None:
            word = self.people.choice(("confirm", "confirm", "deny", None))
            if word is not None:
                at_ns = self.time.now_ns + self.people.randrange(1, 3 * self.settings.period_ns)
                self.process.at(at_ns, lambda: self._answer(word, pending.tick.k))

    def _answer(self, word: str, k: int) -> None:
        if word == "confirm":
            self.confirmed.add(k)
        self.operator.execute_command(word, "page", k)


@contextmanager
def simulated_clock(timeline: SimTimeline) -> Iterator[None]:
    """Let `time.monotonic_ns` and `time.monotonic` return the simulated time in the context."""
    real = time.monotonic_ns, time.monotonic
    time.monotonic_ns, time.monotonic = (lambda: timeline.now_ns), (lambda: timeline.now_ns / 1e9)
    try:
        yield
    finally:
        time.monotonic_ns, time.monotonic = real
