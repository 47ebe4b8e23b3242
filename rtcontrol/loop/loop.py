"""The control loop: one run of an agent in an environment, from the start to the safe call at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Acknowledging, Environment, Observation, WorldError
from rtcontrol.hosts.layered import executes_plans
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.active import Instructions
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.config import RunConfig, instruction_text
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.interpreter import Interpretation, Interpreter, Understood
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.loop.runner import LoopClock, LoopRunner, Ports, lockstep_clock, read, wall_clock
from rtcontrol.loop.sampling import PauseWatch, Sampler
from rtcontrol.loop.warmup import Warmup, first_observation
from rtcontrol.records import Closed, Instructed, Left, LoopReport, Overdue, Stopped
from rtcontrol.telemetry.account import Account, LiveState
from rtcontrol.telemetry.recorder import Recorder

LEAVE_S = 10.0  # how long the shutdown waits for the safe call to be active
LEAVE_AT_ONCE_S = 0.5  # the same after the third signal, which is enough for a world that is not busy
RETRY_NS = 1_000_000_000  # a safe call that is not active is tried again every period, but at least as often as this
UNSAFE = "THE SAFE CALL IS NOT ACTIVE in the world: {}. Whatever acted last may act still: stop it by other means."
OVER = "The last episode is over: its world takes no safe call any more."


class Listener:
    """A listener to events of a run. Its methods are called on the threads that report, and must not block."""

    def report(self, report: LoopReport) -> None:
        """Handle the report that an instruction was accepted, refused or in doubt, or the operator's view changed."""

    def understood(self, result: Understood) -> None:
        """Handle the interpreter's result for a sentence."""


@dataclass(frozen=True)
class LoopOptions:
    """Optional parts of a loop. `sample`: an observation for the warm-up before the environment starts. `notify` takes
    lines for people. `watch`: the entered watch of the process, if many loops share it and garbage is collected for
    all. `interpreter` is closed with the loop. `retake` takes back signals that user code took, and returns the names
    of new ones. `goals`: the agent's goals, if any."""

    sample: Observation | None = None
    notify: Callable[[str], None] = lambda line: None
    clock: LoopClock | None = None
    watch: PauseWatch | None = None
    interpreter: Interpreter | None = None
    retake: Callable[[], list[str]] = list
    goals: GoalTools | None = None
    listener: Listener = field(default_factory=Listener)


@dataclass(slots=True)
class RunState:
    """The progress and the end of a run. `failure`: how the world broke down. `safe_active`: False if the run was over
    and the safe call was not active; `unsafe`: the same, unless the world's last episode had ended by itself.
    `t_end_ns`: when the ticks were over."""

    phase: str = "not started"
    warmup: Warmup = field(default_factory=Warmup)
    host_info: dict[str, Any] = field(default_factory=dict)
    launched: bool = False
    ended_by: str | None = None
    failure: str | None = None
    safe_active: bool = True
    unsafe: bool = False
    t_end_ns: int = 0
    end_written: bool = False

    def stopped(self) -> bool:
        """Return whether the run must end."""
        return self.ended_by is not None


class ControlLoop:
    """A control loop that runs one agent in one environment. `run` starts and closes `host` and `env`.

    Ticks run on the thread that calls `run` (`LoopRunner`), and calls reach the environment on the actuator's thread.
    Any thread or signal handler may call all methods but `run` and `suspend`.
    """

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
        self.runner = self._assemble()
        self.interpretation: Interpretation | None = None
        if (interpreter := self.options.interpreter) is not None:
            answered = self.options.listener.understood
            self.interpretation = Interpretation(interpreter, self.put, recorder.write, self.tell, self.now_s, answered)

    def _assemble(self) -> LoopRunner:
        """Return the runner of the ticks."""
        config, agent, env, host, options = self.config, self.agent, self.env, self.host, self.options
        clock = options.clock
        if clock is None:
            wall = config.clock == "wall"
            clock = wall_clock(config.period_ns) if wall else lockstep_clock(config.period_ns, env.advance)
        core = LoopCore(settings_of(config, agent, env), rules_of(config, agent, options.goals), clock.grid)
        retry_ns = min(config.period_ns, RETRY_NS) if clock.grid.enforced else None
        actuator = Actuator(agent, env, retry_ns, host.wake)
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
            retake=options.retake,
        )
        return LoopRunner(core, clock, ports)

    # -- state for other threads --------------------------------------------------------------------------------------

    @property
    def ended_by(self) -> str | None:
        """Return why the run ends, or None if it continues."""
        return self.state.ended_by

    @property
    def phase(self) -> str:
        return self.state.phase

    @property
    def live_state(self) -> LiveState:
        """Return the newest ticks and counts."""
        return self.recorder.live_state

    @property
    def account(self) -> Account:
        return self.live_state.account

    @property
    def operator(self) -> OperatorControl:
        """Return the operator's control over the run."""
        return self.runner.ports.operator

    @property
    def instructions(self) -> Instructions:
        return self.runner.core.requests.instructions

    @property
    def instruction(self) -> str:
        return self.instructions.now

    def now_s(self) -> float:
        """Return the run's time: seconds since the first release."""
        return self.runner.core.ledger.t_s(time.monotonic_ns())

    # -- commands of other threads ------------------------------------------------------------------------------------

    def instruct(self, text: str) -> bool:
        """Decide (and judge) by `text` from the next release on, or by its interpretation if there is an interpreter.
        Return False if the run is over. Raises UserError if `text` is too long."""
        if self.interpretation is not None:
            return self.interpretation.hear(text) and self.ended_by is None
        self.put(text)
        return self.ended_by is None

    def put(self, text: str) -> None:
        """Decide by a text without interpreting it."""
        self.runner.inbox.append(Instructed(instruction_text(text)))

    def tell(self, line: str) -> None:
        """Show people a line, and record the line."""
        self.recorder.write({"log": line, "t_s": self.now_s()})
        self.options.notify(line)

    def stop(self, why: str) -> None:
        """End the run soon, with the safe call and the report; the first reason stays."""
        if self.state.ended_by is None:
            self.state.ended_by = why
            self.runner.inbox.append(Stopped(why))

    def suspend(self, halt: Callable[[], None]) -> None:
        """Call `halt`, which stops the process, once the safe call is active. This is for a signal handler of this
        thread. Before the first tick the process stops at once; a run that is ending does not stop."""
        if self.phase == "running":
            self.runner.halt = halt
        elif self.phase != "ending":
            halt()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run from start to end, and execute the safe call on every exit. `state.failure` says how the world broke
        down; other exceptions pass through. A KeyboardInterrupt while the run is ending leaves at once."""
        state, patience_s = self.state, LEAVE_S
        try:
            prepare(self)
            if state.ended_by is None:
                shared = self.options.watch is not None
                watching = nullcontext() if shared else self._watch
                with watching, nullcontext() if shared else SlackCollector() as collector:
                    launch(self)
                    state.phase = "running"
                    self.runner.run(collector)
        except WorldError as error:
            state.ended_by, state.failure = "error", broke_down(self, error)
            self.tell(state.failure)
        except KeyboardInterrupt:
            patience_s = LEAVE_AT_ONCE_S if state.ended_by is not None else LEAVE_S
            self.stop("SIGINT")
            raise
        except BaseException:
            state.ended_by = "error"
            raise
        finally:
            state.phase, state.t_end_ns = "ending", time.monotonic_ns()
            finish(self, patience_s)


# -- before the first tick ---------------------------------------------------------------------------------------------


def prepare(loop: ControlLoop) -> None:
    """Interpret the first instruction, start the decoder, and warm up. Raises UserError if one of these fails."""
    state = loop.state
    if (interpretation := loop.interpretation) is not None:
        state.phase = f"starting the interpreter ({interpretation.interpreter.name})"
        interpretation.interpreter.start()
        state.phase = "understanding the instruction"
        loop.instructions.start(interpretation.first(loop.instruction, state.stopped))
    state.phase = f"starting the decoder (host {loop.host.name})"
    state.host_info = loop.host.start(state.stopped)
    if note := state.host_info.get("prefix_note"):
        loop.tell(f"{str(note).rstrip('.')}; it was computed again")
    if not state.stopped():
        state.phase = "warming up"
        _warm_up(loop, loop.options.sample)


def launch(loop: ControlLoop) -> None:
    """Start the world. Everything else that takes time must happen before, since the world runs from here on."""
    config, state, env = loop.config, loop.state, loop.env
    loop.recorder.file.start_writing()
    env.instruct(loop.instruction)
    env.start(config.clock, config.seed, config.episodes)  # type: ignore[arg-type]
    state.launched = True
    state.safe_active, state.unsafe = False, True  # until the end of the run proves that it is active
    loop.runner.retake()
    loop.runner.ports.actuator.start()
    first = first_observation(config, env, state.stopped, loop.tell)
    if loop.options.sample is None:
        _warm_up(loop, first)
    loop.recorder.write({"start": {"host_info": state.host_info, "warmup": state.warmup.to_dict()}})


def _warm_up(loop: ControlLoop, observation: Observation | None) -> None:
    """Decide for an observation a few times, if there is an observation."""
    config, host, warmup = loop.config, loop.host, Warmup(loop.config.pipeline)
    if observation is not None and config.warmup:
        make = loop.runner.core.requests.make
        ask = lambda tick: make(tick, observation, read(loop.agent, observation.data))  # noqa: E731
        warmup.decide(host, ask, config.warmup, config.warmup_s)
    loop.state.warmup = warmup
    # A plan takes longer than a tick: its steps serve the ticks in time.
    if not executes_plans(host) and (warning := warmup.warning(config)):
        loop.tell(warning)


# -- after the last tick -----------------------------------------------------------------------------------------------


def finish(loop: ControlLoop, patience_s: float) -> None:
    """Make the safe call active, wait for it for at most `patience_s`, and close everything."""
    with ExitStack() as then:  # all of these, even if one raises an error; the last comes first
        then.callback(loop.env.close)
        then.callback(loop.host.close)
        then.callback(write_end, loop)
        then.callback(_close_world, loop)
        if loop.state.launched:
            _leave(loop, patience_s)


def _leave(loop: ControlLoop, patience_s: float) -> None:
    state, runner = loop.state, loop.runner
    actuator = runner.ports.actuator
    with ExitStack() as then:  # the safe call is demanded even if the code above is interrupted
        then.callback(_demand_safe, runner)
        actuator.disarm()
        loop.env.conclude()
        loop.operator.end()
    ended = actuator.wait_safe(patience_s)
    over = actuator.core.safe.over
    state.safe_active = ended and not over
    state.unsafe = not ended or (over and state.failure is not None)
    if not state.safe_active:
        why = "its episode had ended" if ended else f"it did not take it within {patience_s:g} s"
        loop.tell(UNSAFE.format(why) if state.unsafe else OVER)
    sampler = runner.ports.sampler
    runner.dispatch(Overdue(state.t_end_ns, sampler.sample(runner.core.grid.next_release_ns), sampler.runs()))
    # The loop may have been stopped while replies waited, which are evidence for misses. A wake ends the first wait.
    while runner.core.awaits_late and (reply := loop.host.wait(0) or loop.host.wait(0)) is not None:
        runner.dispatch(reply)


def _demand_safe(runner: LoopRunner) -> None:
    try:
        runner.dispatch(Left())
    except KeyboardInterrupt:
        runner.dispatch(Left())
        raise


def _close_world(loop: ControlLoop) -> None:
    runner = loop.runner
    runner.ports.actuator.close()
    if loop.interpretation is not None:
        loop.interpretation.close()
    runner.collect()
    acks = loop.env.heard if isinstance(loop.env, Acknowledging) else None
    runner.dispatch(Closed(loop.env.episodes if loop.state.launched else (), acks))
    runner.ports.sampler.close()


def write_end(loop: ControlLoop) -> None:
    """Write the last line of the record unless it is written already, since an interrupt may have come before."""
    state, core = loop.state, loop.runner.core
    if state.end_written:
        return
    # Open ticks do not count as releases, since the run ended before their deadlines. Releases skipped before do count.
    open_ticks = core.open
    end: dict[str, Any] = {"end": state.ended_by, "t_s": core.ledger.t_s(state.t_end_ns), "open": len(open_ticks)}
    for tick in open_ticks:
        if tick.skip:
            end |= tick.skip | {"skipped": tick.skip["skipped"] + end.get("skipped", 0)}
    loop.recorder.write({**end, "safe_in_force": state.safe_active if state.launched else None})
    state.end_written = True


def broke_down(loop: ControlLoop, error: WorldError) -> str:
    """Record that the world's code raised an error. Return the line for people."""
    line: dict[str, Any] = {"fault": "world", "t_s": loop.now_s()}
    loop.runner.core.ledger.put_error(line, error.__cause__ or error, None)
    loop.recorder.write(line)
    shown = f"{line['error']} ({line['where']})" if "where" in line else line["error"]
    end = "The run ends with the safe call" if loop.state.launched else "It never started"
    return f"The environment {loop.env.name} broke down: {shown.rstrip('.')}. {end}; correct it there."
