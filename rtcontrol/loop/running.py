"""A run as its parts know it: what it consists of, how far it is, and what each of them may say of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.clock import WallClock, lockstep_clock
from rtcontrol.loop.config import RunConfig, instruction_text
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.instructions import Instructions
from rtcontrol.loop.interpreter import Interpretation
from rtcontrol.loop.ports import LoopOptions, Ports
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.loop.sampling import PauseWatch, Sampler
from rtcontrol.loop.shell import TickShell
from rtcontrol.loop.warmup import Warmup
from rtcontrol.records import Instructed, Stopped
from rtcontrol.telemetry.recent import Recent
from rtcontrol.telemetry.recorder import Recorder

# A safe call that is not active is tried again every period, but at slow rates too as often as this.
RETRY_NS = 1_000_000_000
TAKEN_BACK = "{} was taken by the world's code or a library, and is taken back: it ends the run safely."


@dataclass(slots=True)
class RunState:
    """How far a run is, and how it ended. `failure`: in one sentence, how the world broke down. `safe_in_force`: False
    where the run was over and its safe call was not active; `unsafe`: the same, but for a world whose last episode had
    ended by itself. `t_end_ns` is when the ticks were over."""

    phase: str = "not started"
    warmup: Warmup = field(default_factory=Warmup)
    host_info: dict[str, Any] = field(default_factory=dict)
    launched: bool = False
    ended_by: str | None = None
    failure: str | None = None
    safe_in_force: bool = True
    unsafe: bool = False
    t_end_ns: int = 0
    end_written: bool = False

    def stopped(self) -> bool:
        """Return whether the run is to end."""
        return self.ended_by is not None


class RunningLoop:
    """The parts of a run. `shell` runs its ticks; any thread may call `put`, `tell` and `stop`."""

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        env: Environment,
        host: Host,
        recorder: Recorder,
        options: LoopOptions | None = None,
    ) -> None:
        self.config, self.agent, self.env, self.host = config, agent, env, host
        self.recorder, self.options = recorder, options or LoopOptions()
        self.state = RunState()
        self._watch = self.options.watch or PauseWatch(config.period_ns)
        self.shell = self._assemble()
        self.interpretation: Interpretation | None = None
        if (interpreter := self.options.interpreter) is not None:
            answered = self.options.listener.understood
            self.interpretation = Interpretation(interpreter, self.put, recorder.write, self.tell, self.now_s, answered)

    @property
    def recent(self) -> Recent:
        """For those who look on."""
        return self.recorder.recent

    @property
    def operator(self) -> OperatorControl:
        """What people may say."""
        return self.shell.ports.operator

    @property
    def instructions(self) -> Instructions:
        """What is decided by, and what waits to be."""
        return self.shell.core.requests.instructions

    @property
    def instruction(self) -> str:
        return self.instructions.now

    def put(self, text: str) -> None:
        """Decide by this text, as it is."""
        self.shell.inbox.append(Instructed(instruction_text(text)))

    def tell(self, line: str) -> None:
        self.recorder.write({"log": line, "t_s": self.now_s()})
        self.options.notify(line)

    def now_s(self) -> float:
        """Return the run's time: seconds since the first release."""
        return self.shell.core.ledger.t_s(time.monotonic_ns())

    def stop(self, why: str) -> None:
        """End the run soon, with the safe call and the report; the first reason stays."""
        if self.state.ended_by is None:
            self.state.ended_by = why
            self.shell.inbox.append(Stopped(why))

    def _assemble(self) -> TickShell:
        """Return what runs the ticks."""
        config, agent, env, host, options = self.config, self.agent, self.env, self.host, self.options
        clock = options.clock
        if clock is None:
            wall = config.clock == "wall"
            clock = WallClock(config.period_ns) if wall else lockstep_clock(config.period_ns, env.advance)
        core = LoopCore(settings_of(config, agent, env), rules_of(config, agent, options.goals), clock.grid)
        retry_ns = min(config.period_ns, RETRY_NS) if clock.grid.enforced else None
        actuator = Actuator(agent, env, retry_ns, host.wake)

        def retake() -> None:
            for name in options.retake():
                self.tell(TAKEN_BACK.format(name))

        ports = Ports(
            agent=agent,
            env=env,
            host=host,
            actuator=actuator,
            sampler=Sampler(self._watch, host, actuator),
            operator=OperatorControl(actuator, core.settings.confirm_ns, self.stop, host.wake),
            write=self.recorder.write,
            notify=self.tell,
            stop=self.stop,
            report=options.listener.report,
            retake=retake,
        )
        return TickShell(core, clock, ports)
