"""Simulate one run with the real cores, runner and operator control on a simulated machine and world."""

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

# When an operator's command may come: at any time, just before a call is ordered, while the call waits for the world,
# or while the loop runs code of the agent or the host.
POINTS = ("now", "order", "wait", "text", "send")
MOST_TURNS = 200  # of the loop, within 10 ms
REMOTE = 0.04  # the share of remote worlds
RATES_HZ = (2, 8, 16, 16, 16, 50, 100)
# Modes of the ticks, calls and decisions of a local world: half of the runs have the most common mode.
MODES = (*("plain",) * 7, "lockstep", "arrivals", "calls", "plans", "backup", "standby", "ends")
Trace = Callable[[Any, dict[str, Any]], None] | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """The scenario of a seed: settings and agent of the run, and faults, on average one per `every` periods.

    `null` and `doubts`: the shares of null decisions, and of decisions below the run's least confidence."""

    seed: int
    config: RunConfig
    agent: Agent
    kinds: tuple[str, ...]
    every: float
    null: float
    doubts: float
    mode: str

    @property
    def name(self) -> str:
        config, faults = self.config, "all faults" if len(self.kinds) > 2 else ", ".join(self.kinds)
        return f"{config.hz:g} Hz, {config.pipeline} at once, on_miss={config.on_miss}, {self.mode}, {faults}"


def scenario(seed: int, only: tuple[str, ...] = ()) -> Scenario:
    """Return the scenario of a seed. Three of four seeds have one kind of fault, the others all kinds, or `only` the
    given ones, as far as the world has them."""
    chance, other = random.Random(f"{seed} scenario"), random.Random(f"{seed} mode")
    remote = chance.random() < REMOTE
    mode = "remote" if remote else other.choice(MODES)
    hz = chance.choice(RATES_HZ[1:] if remote else RATES_HZ)
    period_ms = 1e3 / hz
    pipeline = chance.choice((1, 1, 1, 1, 2, 3))
    options: dict[str, Any] = {
        "pipeline": pipeline,
        "deadline_ms": period_ms * (pipeline - chance.choice((0.0, 0.0, 0.1, 0.3))),
        "max_age_ms": period_ms * chance.uniform(1.5, 2.5) + 6,
        "hold_ms": period_ms * chance.choice((0.0, 0.5, 1.5, 3.0, 8.0)),
        "confirm_s": 4 / hz,
        "on_miss": chance.choice(("hold", "hold", "hold", "safe")),
        "record_observations": "yes" if chance.random() < 0.5 else "no",
        "hysteresis": "margin=0.1" if chance.random() < 0.2 and mode != "calls" else None,
        "calls_per_tick": other.choice((2, 3)) if mode == "calls" else 1,
    }
    names = sorted(set(SIMULATED) - set(ENDS) - set(WORLD if remote else NETWORK))
    if mode in STEPS:
        names = [name for name in names if name not in UNKNOWABLE]
    mixed = chance.random() < 0.25
    kinds = tuple(names) if mixed else (chance.choice(names),)
    if mode == "ends":
        kinds = (*kinds, *ENDS)
    if only:
        kinds = tuple(name for name in only if name in (*names, *(() if remote else ENDS)))
    safe_calls = chance.choice((["stop"], ["stop"], ["stop", "open"]))
    if doubts := chance.choice((0.0, 0.0, 0.1)):
        options["min_confidence"] = 0.5
    if chance.random() < 0.15 and not remote:
        options["confirm"] = ("grip",)
    every = chance.uniform(3.0, 8.0) if mixed else chance.uniform(5.0, 12.0)
    config = RunConfig(env="remote", agent="sim", model="noop", hz=hz, **options)
    return Scenario(seed, config, agent_of(safe_calls), kinds, every, chance.choice((0.0, 0.1)), doubts, mode)


def agent_of(safe_calls: list[str]) -> Agent:
    """Return an agent with the simulated tools."""
    x = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 3}}}
    tools = Tools([{"name": name, "parameters": x} for name in FUNCTIONS] + [{"name": name} for name in safe_calls])
    return tools_only_agent("sim", tools, "go", Fallback(calls=[Call(name) for name in safe_calls]))


class SimSampler:
    """A simulated sampler of evidence from the kernel, the heartbeats and the garbage collector's callbacks."""

    def __init__(self, run: SimRun) -> None:
        self._run = run
        self.collections: list[tuple[int, int]] = []

    def read_schedstats(self) -> tuple[bytes, ...]:
        run = self._run
        return run.thread.schedstat, run.worker.schedstat

    def follow(self) -> None: ...

    def sample(self, since_ns: int) -> EvidenceSample:
        run, now = self._run, self._run.time.now_ns
        run.referee.samples(since_ns)
        least_ns = min(max(run.settings.period_ns // 5, 2 * MS), 10 * MS)
        pauses = [(b, e, "gc") for b, e in self.collections if e > since_ns]
        pauses += [(b, min(e, now), "stall") for b, e in run.process.stood if e > since_ns and e - b > least_ns]
        decoder, waits = run.host.near, "R" if run.worker.ready_ns else "S"
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
    """A clock that advances simulated time until the loop has something to do. It calls `fail` if the loop never waits.
    `advance` lets a world that waits advance."""

    def __init__(
        self, thread: Thread, grid: ReleaseGrid, fail: Callable[[str], None], advance: Callable[[int], int | None]
    ) -> None:
        self.thread, self.grid, self._fail, self.advance = thread, grid, fail, advance
        self._turns = self._since_ns = 0

    def wait(self, core: LoopCore, host: Any) -> Any:
        time, until_ns = self.thread.process.time, core.wake_ns
        if time.now_ns - self._since_ns > 10 * MS:
            self._since_ns, self._turns = time.now_ns, 0
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._fail("the loop spins")
        until_ns = time.now_ns + S if until_ns is None else until_ns
        self.thread.sleep(min(until_ns, host.wake_ns or until_ns), host.replies)
        return host.wait(0)


class Machine:
    """The simulated machine, which outlives a loop: time, the loop's process with two threads, decoders and faults."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = settings = settings_of(scenario.config, scenario.agent)
        self.time = time = SimTimeline(scenario.seed)
        self.process = Process(time)
        self.thread = Thread(self.process, time.chance("loop"))
        self.worker = Thread(self.process, time.chance("actuator"))
        self.people = time.chance("people")
        self.scenario, self.chance = scenario, time.chance("machine")
        every = scenario.every / 4 if scenario.mode == "lockstep" else scenario.every  # the world loses no time
        self.faults = faults = Faults(time, settings.period_ns, scenario.kinds, every)
        self.decoders = [self._decoder(i) for i in range(2 if scenario.mode in ("backup", "standby") else 1)]
        any_decoder = lambda: self.chance.choice(self.decoders)  # noqa: E731
        faults.effects |= {
            "stop_decoder": lambda fault: any_decoder().stop(fault),
            "stray": lambda fault: any_decoder().stray(),
        }
        faults.effects |= dict.fromkeys(("kill_decoder", "give_up"), lambda fault: any_decoder().kill(fault))

    def _decoder(self, i: int) -> SimDecoder:
        scenario, settings = self.scenario, self.settings
        usual_ns = (settings.deadline_ns // 20 + 50 * US, settings.deadline_ns // 3 + 60 * US)
        decoder = SimDecoder(self.time, self.faults, usual_ns, settings.period_ns, settings.pipeline, "b" * i)
        decoder.null, decoder.doubts = scenario.null, scenario.doubts
        if scenario.mode == "plans":
            decoder.patience_ns = 2 * (settings.max_age_ns + settings.period_ns)
        return decoder

    def host(self) -> SimHost:
        """Return a host with the decoders, ready for a run."""
        for decoder in self.decoders:
            decoder.inbox.clear()
            decoder.events = []
        inner = layered(self.scenario.mode, self.decoders, self.settings)
        return SimHost(self.time, self.decoders, inner)


class SimRun(ControlLoop):
    """A simulated run of a loop. `trace` takes each line of the record. Without `env` the environment is simulated,
    too."""

    host: Any
    env: Any

    def __init__(
        self, scenario: Scenario, trace: Trace = None, machine: Machine | None = None, env: Any = None
    ) -> None:
        self.machine = machine = machine or Machine(scenario)
        self.scenario, self.settings, self.trace = scenario, replace(machine.settings, emits=env is not None), trace
        self.time, self.process, self.thread = machine.time, machine.process, machine.thread
        self.worker, self.faults, self.people = machine.worker, machine.faults, machine.people
        self.point = ""
        self.steps = scenario.mode in STEPS
        self.limit = 0  # number of ticks, if the world waits
        self.referee = Referee(self.time, self.faults, self.settings, scenario.mode, self.process)
        self.referee.threads = [self.thread, self.worker]
        self.referee.absent = self._absent
        self.text = SimText(self.thread, self.faults, self.settings.deadline_ns)
        self.confirmed: set[int] = set()  # ticks with a call that an operator confirmed
        agent, host = replace(scenario.agent, observe=self.text.observe), machine.host()
        host.reach = self.text.reach = self._reach
        host.taken = self._taken
        recorder: Any = SimpleNamespace(write=self._write)
        super().__init__(scenario.config, agent, env or self._world(), host, recorder)  # type: ignore[arg-type]
        self.state.launched = True
        self.faults.effects |= {"stop_loop": self._stop, "gc": self._collect, "starve_loop": self._starve}
        self.faults.effects |= {"starve_actuator": self._starve, "pause": self._pause, "instruct": self._instruct}

    def _world(self) -> SimWorld:
        step_ns = self.settings.period_ns // (1 if self.steps else 3)
        world = SimWorld(
            self.faults, self.process, (step_ns, self.settings.deadline_ns), self._acts, self.referee.renewed
        )
        world.waits = self.steps
        world.reach = self._reach
        return world

    def _assemble(self) -> LoopRunner:
        self.rules = rules_of(self.config, self.agent)
        self.actuator = SimActuator(
            self.agent, self.env, self.host.wake, self.worker, self.referee, frozenset(self.config.confirm)
        )
        period_ns, by = self.settings.period_ns, "arrival" if self.scenario.mode == "arrivals" else "lockstep"
        grid = StepGrid(period_ns, by) if self.steps else WallGrid(period_ns)  # type: ignore[arg-type]
        clock: Any = SimClock(self.thread, grid, self.referee.fail, self._arrival if by == "arrival" else self._step)
        core = LoopCore(self.settings, replace(self.rules, check=self._check), grid)
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
            report=self._report,
            restore_handlers=list,
        )
        return LoopRunner(core, clock, ports)

    def _step(self, dt_ns: int) -> int:
        """Advance the world by a period."""
        self.env.step()
        self.thread.pause(50 * US)
        return self.time.now_ns

    def _arrival(self, dt_ns: int) -> int | None:
        """Wait for the next observation."""
        self.thread.sleep(max(self.env.arrives_ns, self.time.now_ns), lambda: False)
        arrived_ns: int | None = self.env.take()
        return arrived_ns

    # -- the run ------------------------------------------------------------------------------------------------------

    def simulate(self, ticks: int) -> None:
        """Run on a new machine for so many releases, or until the decoder gives up. Raises Violation if a law is
        broken."""
        with simulated(self.time):
            self.faults.start()
            self.limit = ticks
            self.time.at(self.time.now_ns + ticks * self.settings.period_ns, self.end)
            self.loop()

    def loop(self) -> None:
        """Run the loop until it is stopped, and end with the safe call. Raises Violation if a law is broken."""
        self.referee.renewed()
        self.runner.run(None)
        self.state.t_end_ns = self.time.now_ns
        self.referee.left_ns = self.time.now_ns
        finish(self, 10.0)
        if self.referee.violation is not None:
            raise self.referee.violation  # a violation within user code only costs a tick, so raise it again

    def end(self) -> None:
        """Stop the run at the end of its time."""
        self.faults.running = False
        self.stop("duration")

    def stop(self, why: str) -> None:
        super().stop(why)
        self.host.wake()

    def _write(self, line: dict[str, Any]) -> None:
        if self.trace is not None:
            self.trace(self, line)
        self.referee.write(line)
        if self.steps and self.referee.ticks >= self.limit:
            self.end()
        if "end" in line:
            self.referee.ended(self.state.t_end_ns, line["open"] + line.get("skipped", 0))

    # -- what the referee receives -------------------------------------------------------------------------------------

    def _acts(self, call: Call, command: Command) -> None:
        k = command.tick
        requested_ns, request = self.host.requested[k]
        reply = self.host.decided[k]
        if reply.older_request is not None:
            request = reply.older_request  # from an older observation, whose plan continues
            requested_ns = request.captured_ns
        decision, named = reply.decision, call.name in self.config.confirm
        wrong = {
            "in another epoch": request.epoch != self.env.epoch,
            "in doubt": decision is None
            or (bool(self.scenario.doubts) and decision.confidence.get("function", 1) < 0.5),
            "illegal": call.name not in FUNCTIONS,
            "without a yes": named and k not in self.confirmed,
        }
        self.referee.acts_now(k, requested_ns, request.captured_ns, wrong, named)

    def _taken(self, reply: DecisionReply) -> None:
        """Handle a reply that the loop takes. A null reply in time renews the active call."""
        settings, decision = self.settings, reply.decision
        due_ns = self.referee.origin_ns + reply.tick * settings.period_ns + settings.deadline_ns
        if decision is not None and decision.call is None and (self.steps or self.time.now_ns <= due_ns):
            self.referee.renewed()

    def _absent(self, now: int) -> list[tuple[int, int]]:
        spans = []
        if self.actuator.busy_ns:
            spans.append((self.actuator.busy_ns, now + self.settings.period_ns // 4))
        if self.text.since_ns:
            guard_ns = self.text.since_ns + self.settings.guard_ns
            if now < guard_ns:
                spans.append((self.text.since_ns, guard_ns))
        return spans

    # -- faults of the machine, and commands of operators --------------------------------------------------------------

    def _stop(self, fault: SimFault) -> None:
        self.process.freeze(fault.end_ns - self.time.now_ns)
        fault.touch(fault.end_ns + self.settings.period_ns)

    def _collect(self, fault: SimFault) -> None:
        self._stop(fault)
        self.runner.ports.sampler.collections.append(self.process.stood[-1])  # type: ignore[attr-defined]

    def _starve(self, fault: SimFault) -> None:
        thread = self.thread if fault.kind.name == "starve_loop" else self.worker
        thread.starved_ns = fault.end_ns
        fault.touch(fault.end_ns + self.settings.period_ns)

    def _pause(self, fault: SimFault) -> None:
        self.faults.take("pause")
        self.point = self.people.choice(POINTS)
        if self.point == "now":
            self.process.at(self.time.now_ns, lambda: self._reach("now"))

    def _reach(self, point: str) -> None:
        """Handle a point in a thread at which an operator's command may come, or the agent's code may hang."""
        if point == "hang" and not self.steps:
            self.time.at(self.time.now_ns + self.settings.guard_ns, partial(self._guard, self.text.since_ns))
        if self.point != point:
            return
        self.point = ""
        if self.operator.state == "running":
            self._say("pause")
            resumes_ns = self.time.now_ns + self.people.randrange(1, 6 * self.settings.period_ns)
            self.process.at(resumes_ns, lambda: self._say("resume"))

    def _guard(self, since_ns: int) -> None:
        """Expect the actuator to demand the safe call by itself if the loop still hangs."""
        if self.text.since_ns == since_ns:
            self.referee.expect_safe(self.time.now_ns, self.time.now_ns)

    def _check(self, call: Call) -> tuple[Call, str]:
        """Return a legal call. An operator's command may come at this point."""
        checked = self.rules.check(call)
        self._reach("order")
        return checked

    def _say(self, word: str) -> None:
        if self.operator.state == "stopped":
            return
        self.operator.say(word, "page")
        self.referee.commanded(word)

    def _instruct(self, fault: SimFault) -> None:
        self.faults.take("instruct")
        self.runner.inbox.append(NewInstruction(f"go {self.time.now_ns}"))

    def _report(self, report: LoopReport) -> None:
        """Answer a call that waits for a yes, in most cases."""
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
    """Let this process read the simulated clock within a `with` block."""
    real = time.monotonic_ns, time.monotonic
    time.monotonic_ns, time.monotonic = (lambda: timeline.now_ns), (lambda: timeline.now_ns / 1e9)
    try:
        yield
    finally:
        time.monotonic_ns, time.monotonic = real
