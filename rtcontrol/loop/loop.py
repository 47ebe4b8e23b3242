"""The control loop, which runs an agent in an environment, from the start of the decoder to the final safe calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import AcknowledgingEnvironment, Environment, Observation, WorldError
from rtcontrol.hosts.layered import executes_plans
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.active import Instructions
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.config import RunConfig, instruction_text
from rtcontrol.loop.core import LoopCore
from rtcontrol.loop.interpreter import InterpretedSentence, Interpreter, InterpreterThread
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.rules import rules_of, settings_of
from rtcontrol.loop.runner import LoopClock, LoopRunner, Ports, lockstep_clock, observation_text, wall_clock
from rtcontrol.loop.sampling import PauseWatch, Sampler
from rtcontrol.loop.warmup import Warmup, first_observation
from rtcontrol.records import ExitStarted, LoopReport, NewInstruction, OverdueRelease, RunClosed, StopRequested
from rtcontrol.telemetry.account import Account, LiveState
from rtcontrol.telemetry.recorder import Recorder

EXIT_WAIT_S = 10.0  # the shutdown waits at most this long until the safe calls are active
FORCED_EXIT_WAIT_S = 0.5  # the same limit, after a second SIGINT during the shutdown
RETRY_NS = 1_000_000_000  # a safe call is retried after a period, but at the latest after this time
UNSAFE = "THE SAFE CALL IS NOT ACTIVE: {}. The last call may still be active. Stop the machine by other means."
OVER = "The last episode has ended, so the environment accepts no safe call."


class Listener:
    """A base class for listeners to events of a run. The methods run on the event's thread, and must not block."""

    def handle_report(self, report: LoopReport) -> None:
        """Handle a report: an instruction was accepted, refused or doubted, or the operator's view changed."""

    def handle_interpretation(self, result: InterpretedSentence) -> None:
        """Handle the interpretation of a sentence."""


@dataclass(frozen=True)
class LoopOptions:
    """Optional parts of a loop. `sample`: an observation for a warm-up before the environment starts. `notify` shows a
    line to the user. `watch`: a running PauseWatch, which several loops of this process share. `restore_handlers`
    restores signal handlers that user code replaced, and returns the names of these signals. `goals`: the agent's
    goals, if any."""

    sample: Observation | None = None
    notify: Callable[[str], None] = lambda line: None
    clock: LoopClock | None = None
    watch: PauseWatch | None = None
    interpreter: Interpreter | None = None
    restore_handlers: Callable[[], list[str]] = list
    goals: GoalTools | None = None
    listener: Listener = field(default_factory=Listener)


@dataclass(slots=True)
class RunState:
    """The progress and the result of a run. `failure`: the error of the environment that ended the run. `safe_active`:
    the safe calls were active at the end. `unsafe`: the safe calls were not active, although the last episode had not
    ended. `t_end_ns`: when the last tick ended."""

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

    Ticks run on the thread that calls `run`. Calls are executed on the actuator's thread. Any thread or signal handler
    may call all methods, except for `run` and `suspend`."""

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
        self.interpretation: InterpreterThread | None = None
        if (interpreter := self.options.interpreter) is not None:
            answered = self.options.listener.handle_interpretation
            self.interpretation = InterpreterThread(
                interpreter, self.set_instruction, recorder.write, self.notify, self.elapsed_s, answered
            )

    def _assemble(self) -> LoopRunner:
        """Return a LoopRunner with a new LoopCore, actuator and sampler."""
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
            notify=self.notify,
            stop=self.stop,
            report=options.listener.handle_report,
            restore_handlers=options.restore_handlers,
        )
        return LoopRunner(core, clock, ports)

    # -- state for other threads --------------------------------------------------------------------------------------

    @property
    def ended_by(self) -> str | None:
        """Return why the run ends or ended, or None if it continues."""
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

    def elapsed_s(self) -> float:
        """Return the seconds since the planned start of the first tick."""
        return self.runner.core.ledger.t_s(time.monotonic_ns())

    # -- commands of other threads ------------------------------------------------------------------------------------

    def instruct(self, text: str) -> bool:
        """Set the instruction for the next release. If there is an interpreter, it interprets `text` first. Return
        False if the run is over. Raises UserError if `text` is too long."""
        if self.interpretation is not None:
            return self.interpretation.submit(text) and self.ended_by is None
        self.set_instruction(text)
        return self.ended_by is None

    def set_instruction(self, text: str) -> None:
        """Set the instruction for the next release, without interpreting it."""
        self.runner.inbox.append(NewInstruction(instruction_text(text)))

    def notify(self, line: str) -> None:
        """Show a line to the user, and record it."""
        self.recorder.write({"log": line, "t_s": self.elapsed_s()})
        self.options.notify(line)

    def stop(self, why: str) -> None:
        """Request the end of the run, with the safe calls and the report. Later calls do not change the reason."""
        if self.state.ended_by is None:
            self.state.ended_by = why
            self.runner.inbox.append(StopRequested(why))

    def suspend(self, halt: Callable[[], None]) -> None:
        """Call `halt`, which suspends the process (Ctrl-Z), as soon as the safe calls are active. For a signal handler.
        Before the first tick, call `halt` at once. A run that is ending is not suspended."""
        if self.phase == "running":
            self.runner.halt = halt
        elif self.phase != "ending":
            halt()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run from start to end. Execute the safe calls at the end, even after an error. An error of the environment is
        stored in `state.failure`; other exceptions are raised. A KeyboardInterrupt while the run is ending shortens the
        wait for the safe calls."""
        state, patience_s = self.state, EXIT_WAIT_S
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
            state.ended_by, state.failure = "error", record_world_failure(self, error)
            self.notify(state.failure)
        except KeyboardInterrupt:
            patience_s = FORCED_EXIT_WAIT_S if state.ended_by is not None else EXIT_WAIT_S
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
    """Interpret the first instruction, start the decoder, and warm up. Raises UserError if a step fails."""
    state = loop.state
    if (interpretation := loop.interpretation) is not None:
        state.phase = f"starting the interpreter ({interpretation.interpreter.name})"
        interpretation.interpreter.start()
        state.phase = "understanding the instruction"
        loop.instructions.start(interpretation.interpret_first(loop.instruction, state.stopped))
    state.phase = f"starting the decoder (host {loop.host.name})"
    state.host_info = loop.host.start(state.stopped)
    if note := state.host_info.get("prefix_note"):
        loop.notify(f"{str(note).rstrip('.')}; the prompt's prefix was computed again")
    if not state.stopped():
        state.phase = "warming up"
        _warm_up(loop, loop.options.sample)


def launch(loop: ControlLoop) -> None:
    """Start the environment, which then runs in real time. Slow preparations must happen before this."""
    config, state, env = loop.config, loop.state, loop.env
    loop.recorder.file.start_writing()
    env.instruct(loop.instruction)
    env.start(config.clock, config.seed, config.episodes)  # type: ignore[arg-type]
    state.launched = True
    state.safe_active, state.unsafe = False, True  # `_exit_safely` changes them at the end
    loop.runner.restore_signal_handlers()
    loop.runner.ports.actuator.start()
    first = first_observation(config, env, state.stopped, loop.notify)
    if loop.options.sample is None:
        _warm_up(loop, first)
    loop.recorder.write({"start": {"host_info": state.host_info, "warmup": state.warmup.to_dict()}})


def _warm_up(loop: ControlLoop, observation: Observation | None) -> None:
    """Warm up the decoder by a few decisions for an observation, and warn if the decoder is too slow for the rate."""
    config, host, warmup = loop.config, loop.host, Warmup(loop.config.pipeline)
    if observation is not None and config.warmup:
        make = loop.runner.core.requests.build_request
        ask = lambda tick: make(tick, observation, observation_text(loop.agent, observation.data))  # noqa: E731
        warmup.decide(host, ask, config.warmup, config.warmup_s)
    loop.state.warmup = warmup
    # Do not warn of slow plans: a plan may take longer than a tick, while ticks use the steps of an older plan.
    if not executes_plans(host) and (warning := warmup.warning(config)):
        loop.notify(warning)


# -- after the last tick -----------------------------------------------------------------------------------------------


def finish(loop: ControlLoop, patience_s: float) -> None:
    """Demand the safe calls, wait at most `patience_s` until they are active, and close everything."""
    with ExitStack() as then:  # calls these functions in reverse order, even if one of them raises an error
        then.callback(loop.env.close)
        then.callback(loop.host.close)
        then.callback(write_end, loop)
        then.callback(_close_world, loop)
        if loop.state.launched:
            _exit_safely(loop, patience_s)


def _exit_safely(loop: ControlLoop, patience_s: float) -> None:
    state, runner = loop.state, loop.runner
    actuator = runner.ports.actuator
    with ExitStack() as then:  # demands the safe calls, even if the next lines are interrupted
        then.callback(_demand_safe, runner)
        actuator.disarm_watchdog()
        loop.env.conclude()
        loop.operator.end_control()
    ended = actuator.wait_safe(patience_s)
    over = actuator.core.safe.world_over
    state.safe_active = ended and not over
    state.unsafe = not ended or (over and state.failure is not None)
    if not state.safe_active:
        why = "the episode had ended" if ended else f"the environment did not execute it within {patience_s:g} s"
        loop.notify(UNSAFE.format(why) if state.unsafe else OVER)
    sampler = runner.ports.sampler
    sample = sampler.sample(runner.core.grid.next_release_ns)
    runner.dispatch(OverdueRelease(state.t_end_ns, sample, sampler.read_schedstats()))
    # Read late replies, which are evidence for misses. Call `wait` twice, because the first may only return a `wake`.
    while runner.core.awaits_late_reply and (reply := loop.host.wait(0) or loop.host.wait(0)) is not None:
        runner.dispatch(reply)


def _demand_safe(runner: LoopRunner) -> None:
    try:
        runner.dispatch(ExitStarted())
    except KeyboardInterrupt:
        runner.dispatch(ExitStarted())
        raise


def _close_world(loop: ControlLoop) -> None:
    runner = loop.runner
    runner.ports.actuator.close()
    if loop.interpretation is not None:
        loop.interpretation.close()
    runner.process_events()
    acks = loop.env.acknowledgements if isinstance(loop.env, AcknowledgingEnvironment) else None
    runner.dispatch(RunClosed(loop.env.episodes if loop.state.launched else (), acks))
    runner.ports.sampler.close()


def write_end(loop: ControlLoop) -> None:
    """Write the last line of the record, unless it was already written."""
    state, core = loop.state, loop.runner.core
    if state.end_written:
        return
    # Unfinished ticks do not count, because the run ended before their deadlines. Releases that were skipped before do.
    open_ticks = core.open_ticks
    end: dict[str, Any] = {"end": state.ended_by, "t_s": core.ledger.t_s(state.t_end_ns), "open": len(open_ticks)}
    for tick in open_ticks:
        if tick.skip:
            end |= tick.skip | {"skipped": tick.skip["skipped"] + end.get("skipped", 0)}
    loop.recorder.write({**end, "safe_in_force": state.safe_active if state.launched else None})
    state.end_written = True


def record_world_failure(loop: ControlLoop, error: WorldError) -> str:
    """Record an error that the environment's code raised, and return a message for the user."""
    line: dict[str, Any] = {"fault": "world", "t_s": loop.elapsed_s()}
    loop.runner.core.ledger.add_error(line, error.__cause__ or error, None)
    loop.recorder.write(line)
    shown = f"{line['error']} ({line['where']})" if "where" in line else line["error"]
    end = "The run ends with the safe call" if loop.state.launched else "The environment did not start"
    return f"The environment {loop.env.name} broke down: {shown.rstrip('.')}. {end}. Correct the error there."
