"""Simulate one run: the real cores, runner and operator control, on a simulated machine with a simulated world."""

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
from rtcontrol.drill.simulation.decoder import FUNCTIONS, SimDecoder, SimHost, layered
from rtcontrol.drill.simulation.faults import ENDS, NETWORK, SIMULATED, UNKNOWABLE, WORLD, Faults, SimFault
from rtcontrol.drill.simulation.referee import STEPS, Referee
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline, Thread
from rtcontrol.drill.simulation.world import SimText, SimWorld
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

# Points of the code at which an operator's command may come: at once, just before a call is ordered, while a call waits
# for the world, while the agent computes a text, and before a request is sent.
POINTS = ("now", "order", "wait", "text", "send")
MOST_WAITS = 200  # the loop must not wait more often than this within 10 ms of simulated time
REMOTE = 0.04  # the share of remote worlds
RATES_HZ = (2, 8, 16, 16, 16, 50, 100)
# Modes of runs with a local world. Half of the runs have the mode "plain".
MODES = (*("plain",) * 7, "lockstep", "arrivals", "calls", "plans", "backup", "standby", "ends")
Trace = Callable[[Any, dict[str, Any]], None] | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """The scenario of a seed: settings, agent, and faults of these `kinds`, on average one per `every` periods.

    `null_share`, `unsure_share`: the share of null decisions, and of decisions below the minimum confidence."""

    seed: int
    config: RunConfig
    agent: Agent
    kinds: tuple[str, ...]
    every: float
    null_share: float
    unsure_share: float
    mode: str

    @property
    def name(self) -> str:
        config, faults = self.config, "all faults" if len(self.kinds) > 2 else ", ".join(self.kinds)
        return f"{config.hz:g} Hz, {config.pipeline} at once, on_miss={config.on_miss}, {self.mode}, {faults}"


def scenario(seed: int, only: tuple[str, ...] = ()) -> Scenario:
    """Return the random scenario of a seed. Three of four seeds have one kind of fault, the others all kinds that are
    possible in the world. `only`: use only these kinds."""
    rng, other_rng = random.Random(f"{seed} scenario"), random.Random(f"{seed} mode")
    remote = rng.random() < REMOTE
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
    names = sorted(set(SIMULATED) - set(ENDS) - set(WORLD if remote else NETWORK))
    if mode in STEPS:
        names = [name for name in names if name not in UNKNOWABLE]
    mixed = rng.random() < 0.25
    kinds = tuple(names) if mixed else (rng.choice(names),)
    if mode == "ends":
        kinds = (*kinds, *ENDS)
    if only:
        kinds = tuple(name for name in only if name in (*names, *(() if remote else ENDS)))
    safe_calls = rng.choice((["stop"], ["stop"], ["stop", "open"]))
    if doubts := rng.choice((0.0, 0.0, 0.1)):
        options["min_confidence"] = 0.5
    if rng.random() < 0.15 and not remote:
        options["confirm"] = ("grip",)
    every = rng.uniform(3.0, 8.0) if mixed else rng.uniform(5.0, 12.0)
    config = RunConfig(env="remote", agent="sim", model="noop", hz=hz, **options)
    return Scenario(seed, config, agent_of(safe_calls), kinds, every, rng.choice((0.0, 0.1)), doubts, mode)


def agent_of(safe_calls: list[str]) -> Agent:
    """Return an agent with the simulated tools, and tools for the safe calls."""
    x = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 3}}}
    tools = Tools([{"name": name, "parameters": x} for name in FUNCTIONS] + [{"name": name} for name in safe_calls])
    return tools_only_agent("sim", tools, "go", Fallback(calls=[Call(name) for name in safe_calls]))


class SimSampler:
    """A simulated Sampler: pauses, the actuator's calls and thread statistics come from the simulated machine."""

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
    """A simulated LoopClock: `wait` advances the simulated time. It calls `fail` if the loop waits without progress."""

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
        if self._waits > MOST_WAITS:
            self._fail("the loop waits without progress")
        until_ns = time.now_ns + S if until_ns is None else until_ns
        self.thread.sleep(min(until_ns, host.wake_ns or until_ns), host.replies)
        return host.wait(0)


class Machine:
    """The simulated machine: time, the loop's process with two threads, decoders, and faults. Several loops may share
    it."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = settings = settings_of(scenario.config, scenario.agent)
        self.time = time = SimTimeline(scenario.seed)
        self.process = Process(time)
        self.thread = Thread(self.process, time.rng("loop"))
        self.worker = Thread(self.process, time.rng("actuator"))
        self.people = time.rng("people")
        self.scenario, self.rng = scenario, time.rng("machine")
        every = scenario.every / 4 if scenario.mode == "lockstep" else scenario.every
        self.faults = faults = Faults(time, settings.period_ns, scenario.kinds, every)
        self.decoders = [self._decoder(i) for i in range(2 if scenario.mode in ("backup", "standby") else 1)]
        any_decoder = lambda: self.rng.choice(self.decoders)  # noqa: E731
        faults.effects |= {
            "stop_decoder": lambda fault: any_decoder().stop(fault),
            "stray": lambda fault: any_decoder().send_stray_reply(),
        }
        faults.effects |= dict.fromkeys(("kill_decoder", "give_up"), lambda fault: any_decoder().kill(fault))

    def _decoder(self, i: int) -> SimDecoder:
        scenario, settings = self.scenario, self.settings
        usual_ns = (settings.deadline_ns // 20 + 50 * US, settings.deadline_ns // 3 + 60 * US)
        decoder = SimDecoder(self.time, self.faults, usual_ns, settings.period_ns, settings.pipeline, "b" * i)
        decoder.null_share, decoder.unsure_share = scenario.null_share, scenario.unsure_share
        if scenario.mode == "plans":
            decoder.patience_ns = 2 * (settings.max_age_ns + settings.period_ns)
        return decoder

    def host(self) -> SimHost:
        """Return a host with the machine's decoders, for a new run."""
        for decoder in self.decoders:
            decoder.inbox.clear()
            decoder.events = []
        inner = layered(self.scenario.mode, self.decoders, self.settings)
        return SimHost(self.time, self.decoders, inner)


class SimRun(ControlLoop):
    """A simulated run of a loop. `trace` is called with each line of the record. `env` None: use a SimWorld."""

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
        self.steps = scenario.mode in STEPS
        self.limit = 0  # the number of ticks to simulate, if the world waits for decisions
        self.referee = Referee(self.time, self.faults, self.settings, scenario.mode, self.process)
        self.referee.threads = [self.thread, self.worker]
        self.referee.blocked_spans = self._blocked_spans
        self.text = SimText(self.thread, self.faults, self.settings.deadline_ns)
        self.confirmed: set[int] = set()  # ticks with a call that an operator confirmed
        agent, host = replace(scenario.agent, observe=self.text.observe), machine.host()
        host.on_point = self.text.on_point = self._at_point
        host.on_reply = self._handle_reply
        recorder: Any = SimpleNamespace(write=self._write)
        super().__init__(scenario.config, agent, env or self._world(), host, recorder)  # type: ignore[arg-type]
        self.state.launched = True
        self.faults.effects |= {"stop_loop": self._stop_loop, "gc": self._collect_garbage, "starve_loop": self._starve}
        self.faults.effects |= {"starve_actuator": self._starve, "pause": self._pause, "instruct": self._instruct}

    def _world(self) -> SimWorld:
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
        """Advance a lockstep world by a period."""
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
        """Simulate a number of periods, or until the decoder gives up. Raises Violation if the run violates a law."""
        with simulated(self.time):
            self.faults.start()
            self.limit = ticks
            self.time.at(self.time.now_ns + ticks * self.settings.period_ns, self.end)
            self.loop()

    def loop(self) -> None:
        """Run ticks until the run is stopped, and then the shutdown. Raises Violation if the run violates a law."""
        self.referee.record_renewal()
        self.runner.run(None)
        self.state.t_end_ns = self.time.now_ns
        self.referee.exit_ns = self.time.now_ns
        finish(self, 10.0)
        if self.referee.violation is not None:
            raise self.referee.violation  # a violation in the agent's code was handled as a miss, so raise it again

    def end(self) -> None:
        """Stop the run, and inject no further faults."""
        self.faults.running = False
        self.stop("duration")

    def stop(self, why: str) -> None:
        super().stop(why)
        self.host.wake()

    def _write(self, line: dict[str, Any]) -> None:
        if self.trace is not None:
            self.trace(self, line)
        self.referee.check_line(line)
        if self.steps and self.referee.ticks >= self.limit:
            self.end()
        if "end" in line:
            self.referee.check_end(self.state.t_end_ns, line["open"] + line.get("skipped", 0))

    # -- reports to the referee ----------------------------------------------------------------------------------------

    def _check_act(self, call: Call, command: Command) -> None:
        k = command.tick
        requested_ns, request = self.host.requested[k]
        reply = self.host.decided[k]
        if reply.older_request is not None:
            request = reply.older_request  # the reply is a step of a plan for an older observation
            requested_ns = request.captured_ns
        decision, named = reply.decision, call.name in self.config.confirm
        wrong = {
            "in another epoch": request.epoch != self.env.epoch,
            "in doubt": decision is None
            or (bool(self.scenario.unsure_share) and decision.confidence.get("function", 1) < 0.5),
            "illegal": call.name not in FUNCTIONS,
            "without a yes": named and k not in self.confirmed,
        }
        self.referee.check_act(k, requested_ns, request.captured_ns, wrong, named)

    def _handle_reply(self, reply: DecisionReply) -> None:
        """Record a renewal of the active call if a reply is a null decision in time."""
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

    # -- faults of the machine, and commands of operators --------------------------------------------------------------

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
        self.faults.use("pause")
        self.next_point = self.people.choice(POINTS)
        if self.next_point == "now":
            self.process.at(self.time.now_ns, lambda: self._at_point("now"))

    def _at_point(self, point: str) -> None:
        """Give the operator's next command if it is scheduled for this point of the code (one of POINTS). At the point
        "hang", schedule the check that the actuator demands the safe call by itself."""
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
        """Expect the safe call if the agent's code still hangs, because the actuator must demand it by itself."""
        if self.text.since_ns == since_ns:
            self.referee.expect_safe(self.time.now_ns, self.time.now_ns)

    def _check_call(self, call: Call) -> tuple[Call, str]:
        """Validate a call, as the agent's rules do. An operator's command may come just before the call is ordered."""
        checked = self.rules.check(call)
        self._at_point("order")
        return checked

    def _give_command(self, word: str) -> None:
        if self.operator.state == "stopped":
            return
        self.operator.say(word, "page")
        self.referee.record_command(word)

    def _instruct(self, fault: SimFault) -> None:
        self.faults.use("instruct")
        self.runner.inbox.append(NewInstruction(f"go {self.time.now_ns}"))

    def _schedule_answer(self, report: LoopReport) -> None:
        """Schedule the operator's answer to a call that waits for approval, in most cases."""
        asking = self.operator.pending_approval
        if report.kind == "changed" and asking is not None:
            word = self.people.choice(("confirm", "confirm", "deny", None))
            if word is not None:
                at_ns = self.time.now_ns + self.people.randrange(1, 3 * self.settings.period_ns)
                self.process.at(at_ns, lambda: self._answer(word, asking.tick.k))

    def _answer(self, word: str, k: int) -> None:
        if word == "confirm":
            self.confirmed.add(k)
        self.operator.say(word, "page", k)


@contextmanager
def simulated(timeline: SimTimeline) -> Iterator[None]:
    """Replace `time.monotonic_ns` and `time.monotonic` by the simulated clock in the context."""
    real = time.monotonic_ns, time.monotonic
    time.monotonic_ns, time.monotonic = (lambda: timeline.now_ns), (lambda: timeline.now_ns / 1e9)
    try:
        yield
    finally:
        time.monotonic_ns, time.monotonic = real
