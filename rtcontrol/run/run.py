"""Run an agent in an environment: build the parts from the settings, run the loop, report, return the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
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
from rtcontrol.run.model_compatibility import NAME_IT, gated, model_for, rate_mismatch, shown, training_notice
from rtcontrol.run.options import RunOptions
from rtcontrol.run.toolsets import tools_from
from rtcontrol.run.user_files import fit, load_module, notices, tools_only_agent, try_expert
from rtcontrol.settings import size
from rtcontrol.telemetry import report, table
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown

OK, INTERNAL, MISTAKE, MISSED, UNSAFE, HOST, INCOMPLETE = range(7)
ERRED = 8  # 7 is the exit status of a bridge that finds no server
ERRED_SHARE = 0.1  # a run with errors in this share of its ticks has failed
HELP = """Exit status: 0; 1 internal error, or a simulator lost for good; 2 mistake in what was given; 3 too many misses
(loop.max_miss_rate), or one with loop.on_miss=stop; 4 the safe call was not active at the end; 5 the decoder was lost
for good; 6 record or report incomplete (disk full); 8 a tenth of the ticks or more ended in an error of code; 128 and
the number of the signal that ended it: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. The first signal ends the run in order, a
second one changes nothing, a third one leaves whatever hangs. Ctrl-Z stops the process once the safe call is active;
`fg` resumes.
"""
Wrap = Callable[[Agent, Environment, DeciderSource], tuple[Agent, Environment, DeciderSource]]


@dataclass(frozen=True)
class Parts:
    """The parts of a run besides its settings; `sample` is an observation for the warm-up."""

    agent: Agent
    env: Environment
    host: Host
    sample: Observation | None = None
    interpreter: Interpreter | None = None
    clock: LoopClock | None = None
    listener: Listener = field(default_factory=Listener)


def run(options: RunOptions, ending: Shutdown, wrap: Wrap | None = None) -> int:
    """Run in the folder `options.out`, write record and report, print the table. Return the exit status.

    Errors are raised after the safe call and the report; they are printed instead if the safe call is not active.
    `wrap` may replace the agent, the environment and the source of the decider.
    """
    thread = WorldThread(options.env)
    try:
        code = _run(options, ending, wrap, thread)
    finally:
        thread.close()
        if thread.fault:
            print(thread.fault, file=sys.stderr)
    return code or (INTERNAL if thread.fault else OK)


def _run(options: RunOptions, ending: Shutdown, wrap: Wrap | None, thread: WorldThread) -> int:
    """Run as `run` does, with a thread for the only instance of the world; the world is closed in any case."""
    if options.env.endswith(".py"):
        load_module(options.env, "--env")  # on the main thread, as the file may set up signal handlers
    options, chosen = _settings(options, _agent(options, thread))
    ending.retake()
    source = assembly.decider(options, chosen, str(options.model))
    if assembly.reads_data(source) and options.backup is None:
        options = replace(options, host="inprocess")
    world = assembly.environment(options.env, chosen, thread)
    with closing(world):  # also closes a world that never started
        chosen, env, source = (chosen, world, source) if wrap is None else wrap(chosen, world, source)
        sample = assembly.sample(options, env)
        fit(chosen, env.name, env.bindings, sample)
        if options.model == "expert" and sample is not None:
            try_expert(chosen, sample, str(options.instruction))
        check_names(options, chosen)
        host = assembly.host(options, source, str(options.model), chosen)
        parts = Parts(chosen, env, host, sample, interpreting.of_config(options, chosen))
        view = LiveView(options)
        ending.retake()  # the code of the world or the model may have replaced the signal handlers
        return run_loop(options, parts, view, ending)


def _settings(options: RunOptions, chosen: Agent) -> tuple[RunOptions, Agent]:
    """Return the settings with agent, model, instruction and gate filled in, and the agent adapted to that model."""
    schemas = chosen.tools.schemas
    instruction = chosen.instruction if options.instruction is None else options.instruction
    own = "" if chosen.expert is None else "--model expert is the agent's own. "
    model = model_for(schemas, options.model or chosen.model, own + NAME_IT)
    options = gated(replace(options, agent=chosen.name, model=model, instruction=instruction), model, schemas)
    return options, shown(chosen, model)


def _agent(options: RunOptions, thread: WorldThread) -> Agent:
    """Return the agent with the tools of --tools, or a tools-only agent for a user's world. Raises UserError."""
    tools = None if options.tools is None else tools_from(options.tools, skip_unsupported=options.skip_unsupported)
    if tools is not None and options.agent is None and options.env.endswith(".py"):
        if options.instruction is None:
            raise UserError("A run with --tools and no agent has no instruction.", "Give one: --instruct TEXT.")
        return tools_only_agent(Path(str(options.tools)).stem, tools, options.instruction, Fallback(None))
    chosen = assembly.agent(options.agent or assembly.default_agent(options.env), options.env, thread)
    return chosen if tools is None else replace(chosen, tools=tools)


def run_loop(
    config: RunConfig,
    parts: Parts,
    view: LiveView,
    ending: Shutdown,
    joined: Callable[[ControlLoop], None] = lambda loop: None,
) -> int:
    """Run the control loop of these parts, report, and return the exit status. `joined` first receives the loop."""
    loop = _loop(config, parts, view, ending)
    joined(loop)
    recorder, started, sound, written = loop.recorder, True, True, True
    interrupt: Interrupted | None = None
    try:
        ending.of(loop.stop, loop.suspend)
        view.watch(loop)
        loop.run()
    except Interrupted as interrupted:
        interrupt = interrupted
    except Exception as error:
        started = loop.state.launched or not isinstance(error, UserError)
        if not loop.state.unsafe:
            raise
        # The exit status reports the graver fact that the machine may still move, so the error is only printed.
        print(printable(f"The run failed: {errors.text(error)} ({errors.where(error)})."), file=sys.stderr)
    finally:
        ending.shielded = True  # from here on, no signal may interrupt the shutdown
        try:
            view.close()
            write_end(loop)
            if started:
                recorder.file.start_writing()
            recorder.close()
            if started:
                sound, written = _report(config, loop, recorder)
        finally:
            ending.shielded = False
    return _status(config, loop, interrupt, sound and loop.state.failure is None, written)


def _loop(config: RunConfig, parts: Parts, view: LiveView, ending: Shutdown) -> ControlLoop:
    agent, env = parts.agent, parts.env
    file = RecordFile(config.out / "record.mcap", size(config.record_max))
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


def _report(config: RunConfig, loop: ControlLoop, recorder: Recorder) -> tuple[bool, bool]:
    """Write and show the report; return whether the counts agree, and whether the report was written.
    Never raises an exception, because that would hide why the run ended."""
    path = config.out / "report.json"
    sound = True
    try:
        loop.account.assert_consistent()
        assert recorder.live_state.fault is None, recorder.live_state.fault
    except AssertionError as error:
        print(f"Internal error: the counts contradict each other ({error}).", file=sys.stderr)
        sound = False
    try:
        result = report.build(loop.account, "record.mcap", recorder.lost_events, loop.ended_by, recorder.file.first_k)
        refused = report.write(result, path)
        table.show(result, Terminal())
    except Exception as error:
        print(printable(f"The report could not be made ({type(error).__name__}: {error})."), file=sys.stderr)
        return False, False
    if refused is None:
        print(printable(f"report: {path}"))
    else:
        print(f"The report could not be written to {config.out} ({refused}); it is only shown above.", file=sys.stderr)
    return sound, refused is None


def _status(config: RunConfig, loop: ControlLoop, interrupt: Interrupted | None, sound: bool, written: bool) -> int:
    """Return the exit status of a run, and print the reasons for it."""
    account, recorder, ended, limit = loop.account, loop.recorder, loop.ended_by or "", config.max_miss_rate
    above = limit is not None and account.miss_rate > limit
    complete, erred = written and not recorder.lost_events, mostly_errors(account.error_misses, account.ticks)
    code = status(ended, not loop.state.unsafe, complete, ended == "miss" or above, sound, erred)
    messages = []
    if code == UNSAFE:
        messages.append(
            "The safe call could not be made active, so the last call may still act. Stop the machine by other means; "
            f"{recorder.file.path} has each attempt."
        )
    if recorder.lost_events:
        messages.append(f"The record lacks {recorder.lost_events} events: {recorder.file.error}. Free some disk space.")
    if ended == "host":
        messages.append("The decoder was lost for good: start the run again, or use `--host inprocess`.")
    if ended == "miss":
        messages.append("The run ended at a miss, because of loop.on_miss=stop.")
    if above:
        messages.append(f"Miss rate {account.miss_rate:.4f} is above {limit:g}.")
    if erred:
        most = max(account.errors.values(), key=lambda error: error["count"], default={"error": "", "where": ""})
        messages.append(
            f"ERRORS: {account.error_misses} of {account.ticks} ticks ended in an error, most often: "
            f"{most['error'].rstrip('.')} ({most['where']}). Correct the code there."
        )
    for message in messages:
        print(printable(message), file=sys.stderr)
    return interrupt.status if interrupt is not None and code not in (UNSAFE, HOST, INCOMPLETE) else code


def status(ended_by: str, safe: bool, complete: bool, missed: bool, sound: bool, erred: bool) -> int:
    """Return the exit status for the way in which a run ended.

    `safe`: the safe call was active. `complete`: record and report are complete. `missed`: there were too many misses.
    `sound`: the counts agree. `erred`: too many ticks ended in an error.
    """
    if not safe:
        return UNSAFE
    if ended_by == "host":
        return HOST
    if not complete:
        return INCOMPLETE
    return STATUS.get(ended_by) or (MISSED if missed else INTERNAL if not sound else ERRED if erred else OK)


def mostly_errors(errors: int, ticks: int) -> bool:
    """Return whether a run with this many errors in its ticks or decisions has failed."""
    return errors > 0 and errors >= ERRED_SHARE * ticks
