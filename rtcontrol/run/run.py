"""Run an agent in an environment: build the parts, run the control loop, write the report, return the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rtcontrol.agents import Agent, Fallback
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.thread import WorldThread
from rtcontrol.hosts.protocol import DeciderSource, Host
from rtcontrol.loop import errors
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.interpreter import Interpreter
from rtcontrol.loop.loop import ControlLoop, Listener, LoopOptions, write_end
from rtcontrol.loop.rules import check_names
from rtcontrol.loop.runner import LoopClock
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly, interpreting
from rtcontrol.run.live import LiveView
from rtcontrol.run.model_compatibility import NAME_IT, adapt, model_for, rate_mismatch, training_notice, with_gate
from rtcontrol.run.options import RunOptions
from rtcontrol.run.toolsets import load_tools
from rtcontrol.run.user_files import check_expert, check_fit, is_gym, load_module, notices, tools_only_agent
from rtcontrol.settings import record_bytes
from rtcontrol.telemetry import report, table
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown
from rtcontrol_client.watchdog import GUARDED_HANG_S, HANG_S, Watchdog, guard_arguments

OK, INTERNAL, USER_ERROR, MISSED, UNSAFE, HOST, INCOMPLETE = range(7)
ERRORS = 8  # a bridge that cannot connect to its server has the exit status 7
ERRORS_SHARE = 0.1  # a run fails if errors ended at least this share of its ticks
UNGUARDED = (
    "If code in C hangs and holds Python's lock, no safe call can act, and this run is killed after {:g} s. "
    "If the run moves a machine, set loop.guard=COMMAND (docs/safety.md)."
)
Wrap = Callable[[Agent, Environment, DeciderSource], tuple[Agent, Environment, DeciderSource]]


@dataclass(frozen=True)
class RunParts:
    """The objects that a run needs besides its settings. `sample` is an observation for the warm-up."""

    agent: Agent
    env: Environment
    host: Host
    sample: Observation | None = None
    interpreter: Interpreter | None = None
    clock: LoopClock | None = None
    listener: Listener = field(default_factory=Listener)


def run(options: RunOptions, ending: Shutdown, wrap: Wrap | None = None) -> int:
    """Run an agent in an environment. Write record and report to `options.out`. Return the exit status.

    An exception of the run is raised after the safe call has acted and the report is written. If the safe call is not
    active at the end, the exception is only printed. `wrap` may replace agent, environment and decider source.
    """
    thread = WorldThread(options.env)
    thread.must_hurry = ending.forced
    try:
        code = _prepare_and_run(options, ending, wrap, thread)
    finally:
        thread.close()
        if thread.close_error:
            print(thread.close_error, file=sys.stderr)
    return code or (INTERNAL if thread.close_error else OK)


def _prepare_and_run(options: RunOptions, ending: Shutdown, wrap: Wrap | None, thread: WorldThread) -> int:
    """Build the parts of a run, and run the loop. The world is created on `thread`, and is always closed at the end."""
    if options.env.endswith(".py"):
        load_module(options.env, "--env")  # here on the main thread, because the file may install signal handlers
    if options.view and is_gym(options.env):
        assembly.gym_world(options.env, thread, pictures=True)
    options, chosen = _complete_settings(options, _load_agent(options, thread))
    ending.retake()
    source = assembly.decider_source(options, chosen, str(options.model))
    if assembly.reads_raw_data(source) and options.backup is None:
        options = replace(options, host="inprocess")
    world = assembly.make_environment(options.env, chosen, thread)
    with closing(world):  # closes the world even if it was not started
        chosen, env, source = (chosen, world, source) if wrap is None else wrap(chosen, world, source)
        sample = assembly.preview_observation(options, env)
        check_fit(chosen, env.name, env.bindings, sample)
        if options.model == "expert" and sample is not None:
            check_expert(chosen, sample, str(options.instruction))
        check_names(options, chosen)
        host = assembly.make_host(options, source, str(options.model), chosen)
        parts = RunParts(chosen, env, host, sample, interpreting.interpreter_of_config(options, chosen))
        view = LiveView(options)
        ending.retake()  # the world or the model may have replaced the signal handlers
        return run_loop(options, parts, view, ending)


def _complete_settings(options: RunOptions, chosen: Agent) -> tuple[RunOptions, Agent]:
    """Add agent, model, instruction and confidence gate to the settings, and adapt the agent to the model."""
    schemas = chosen.tools.schemas
    instruction = chosen.instruction if options.instruction is None else options.instruction
    note = "" if chosen.expert is None else "--model expert runs the agent's own expert. "
    model = model_for(schemas, options.model or chosen.model, note + NAME_IT)
    options = with_gate(replace(options, agent=chosen.name, model=model, instruction=instruction), model, schemas)
    return options, adapt(chosen, model)


def _load_agent(options: RunOptions, thread: WorldThread) -> Agent:
    """Return the agent. If the option --tools is set, its tools replace the agent's tools. Raises UserError."""
    tools = None if options.tools is None else load_tools(options.tools, skip_unsupported=options.skip_unsupported)
    if tools is not None and options.agent is None and options.env.endswith(".py"):
        if options.instruction is None:
            raise UserError("A run with --tools but without an agent needs an instruction.", "Add --instruct TEXT.")
        return tools_only_agent(Path(str(options.tools)).stem, tools, options.instruction, Fallback(None))
    chosen = assembly.load_agent(options.agent or assembly.default_agent(options.env), options.env, thread)
    return chosen if tools is None else replace(chosen, tools=tools)


def run_loop(
    config: RunConfig,
    parts: RunParts,
    view: LiveView,
    ending: Shutdown,
    loop_built: Callable[[ControlLoop], None] = lambda loop: None,
) -> int:
    """Run the control loop, write the report, and return the exit status. `loop_built` is called before the start."""
    loop = _build_loop(config, parts, view, ending)
    loop_built(loop)
    recorder, started, consistent, written = loop.recorder, True, True, True
    interrupt: Interrupted | None = None
    try:
        ending.of(loop.stop, loop.suspend)
        view.watch(loop)
        with _watchdog(config, loop):
            loop.run()
    except Interrupted as interrupted:
        interrupt = interrupted
    except Exception as error:
        started = loop.state.launched or not isinstance(error, UserError)
        if not loop.state.unsafe:
            raise
        # Only print the error: the exit status must be able to report that the machine may still move.
        print(printable(f"The run failed: {errors.message(error)} ({errors.location(error)})."), file=sys.stderr)
    finally:
        ending.shielded = True  # from now on, signals do not interrupt the shutdown
        try:
            view.close()
            write_end(loop)
            if started:
                recorder.file.start_writing()
            recorder.close()
            if started:
                consistent, written = _write_and_show_report(config, loop, recorder)
        finally:
            ending.shielded = False
    return _end_status(config, loop, interrupt, consistent and loop.state.failure is None, written)


def _build_loop(config: RunConfig, parts: RunParts, view: LiveView, ending: Shutdown) -> ControlLoop:
    agent, env = parts.agent, parts.env
    file = RecordFile(config.out / "record.mcap", record_bytes(config.record_max))
    pictures = env.pictures.recorded if isinstance(env, RemoteEnvironment) else None
    header = config.header(agent.fallback.hold_ms, agent)
    recorder = Recorder(file, header, view.say, patient=config.clock == "lockstep", pictures=pictures)
    options = LoopOptions(
        parts.sample,
        view.say,
        parts.clock,
        interpreter=parts.interpreter,
        restore_handlers=ending.retake,
        goals=interpreting.goal_tools(agent),
        listener=parts.listener,
    )
    loop = ControlLoop(config, agent, env, parts.host, recorder, options)
    model = config.model or agent.model
    about_model = (training_notice(agent.tools.schemas, model), rate_mismatch(model, config.hz))
    for warning in (*notices(agent, parts.sample), *agent.tools.warnings(), *filter(None, about_model)):
        loop.notify(warning)
    return loop


def _watchdog(config: RunConfig, loop: ControlLoop) -> AbstractContextManager[object]:
    """Return a watchdog for the run, or an empty context if the run needs none: it has no guard command, and its world
    is not a user's real-time world with a safe call. Raises UserError if the guard command cannot be run."""
    safe_calls, guarded = loop.agent.fallback.safe_calls, config.guard is not None
    if not guarded and (config.clock != "wall" or not config.env.endswith(".py") or not safe_calls):
        return nullcontext()
    try:
        guard = guard_arguments(config.guard)
    except ValueError as error:
        raise UserError(f"loop.guard={config.guard!r} cannot be run: {error}.", "Specify a command.") from None
    hang_s = config.hang_s or (GUARDED_HANG_S if guarded else HANG_S)
    if not guarded:
        loop.notify(UNGUARDED.format(hang_s))
    safe = loop.runner.ports.actuator.core.safe
    try:
        return Watchdog(
            hang_s,
            guard,
            [call.to_dict() for call in safe_calls],
            is_running=lambda: loop.state.launched,
            is_safe=lambda: not safe.wanted,
        )
    except OSError as error:
        loop.notify(f"No process watches this run ({error.strerror}): if it hangs in C, its last call stays active.")
        return nullcontext()


def _write_and_show_report(config: RunConfig, loop: ControlLoop, recorder: Recorder) -> tuple[bool, bool]:
    """Write and print the report. Return whether its counts are consistent, and whether it was written. Only print
    exceptions, because raising them would hide the reason why the run ended."""
    path = config.out / "report.json"
    consistent = True
    try:
        loop.account.assert_consistent()
        if recorder.live_state.fault is not None:
            raise AssertionError(recorder.live_state.fault)
    except AssertionError as error:
        print(f"Internal error: the counts of the report are inconsistent ({error}).", file=sys.stderr)
        consistent = False
    try:
        result = report.build_report(
            loop.account, "record.mcap", recorder.lost_events, loop.ended_by, recorder.file.first_k
        )
        refused = report.write_report(result, path)
        table.print_report(result, Terminal())
    except Exception as error:
        print(printable(f"The report could not be created ({type(error).__name__}: {error})."), file=sys.stderr)
        return False, False
    if refused is None:
        print(printable(f"report: {path}"))
    else:
        print(f"The report could not be written to {config.out} ({refused}); it is only shown above.", file=sys.stderr)
    return consistent, refused is None


def _end_status(config: RunConfig, loop: ControlLoop, interrupt: Interrupted | None, sound: bool, written: bool) -> int:
    """Return the exit status of a run, and print the reasons on stderr."""
    account, recorder, ended, limit = loop.account, loop.recorder, loop.ended_by or "", config.max_miss_rate
    above = limit is not None and account.miss_rate > limit
    complete, has_errors = written and not recorder.lost_events, mostly_errors(account.error_misses, account.ticks)
    code = exit_status(ended, not loop.state.unsafe, complete, ended == "miss" or above, sound, has_errors)
    messages = []
    if code == UNSAFE:
        messages.append(
            "The safe call could not be made active, so the last call may still act. Stop the machine by other means. "
            f"{recorder.file.path} has the error of each attempt."
        )
    if recorder.lost_events:
        messages.append(f"The record lacks {recorder.lost_events} events: {recorder.file.error}. Free some disk space.")
    if ended == "host":
        messages.append("The decoder failed and could not restart. Start the run again, or use `--host inprocess`.")
    if ended == "miss":
        messages.append("The run stopped at a missed tick, because of loop.on_miss=stop.")
    if above:
        messages.append(f"The miss rate {account.miss_rate:.4f} is above loop.max_miss_rate={limit:g}.")
    if has_errors:
        most = max(account.errors.values(), key=lambda error: error["count"], default={"error": "", "where": ""})
        messages.append(
            f"ERRORS: {account.error_misses} of {account.ticks} ticks ended in an error, most often: "
            f"{most['error'].rstrip('.')} ({most['where']}). Correct the code there."
        )
    for message in messages:
        print(printable(message), file=sys.stderr)
    return interrupt.status if interrupt is not None and code not in (UNSAFE, HOST, INCOMPLETE) else code


def exit_status(ended_by: str, safe: bool, complete: bool, missed: bool, consistent: bool, has_errors: bool) -> int:
    """Return the exit status of a run. `ended_by`: why the run ended (`miss`, `host`, a signal, or another reason).

    `safe`: the safe call was active at the end. `complete`: record and report are complete. `missed`: there were too
    many misses. `consistent`: the counts agree. `has_errors`: too many ticks ended in an error.
    """
    if not safe:
        return UNSAFE
    if ended_by == "host":
        return HOST
    if not complete:
        return INCOMPLETE
    return STATUS.get(ended_by) or (MISSED if missed else INTERNAL if not consistent else ERRORS if has_errors else OK)


def mostly_errors(errors: int, ticks: int) -> bool:
    """Return whether so many of the ticks (or replayed decisions) ended in an error that the command has failed."""
    return errors > 0 and errors >= ERRORS_SHARE * ticks
