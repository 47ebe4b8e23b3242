"""One run from its settings to its exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol.agents import Agent, Fallback
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.thread import WorldThread
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop import errors
from rtcontrol.loop.config import RunConfig, size
from rtcontrol.loop.interpreter import Interpreter
from rtcontrol.loop.loop import ControlLoop, Listener, LoopOptions, write_end
from rtcontrol.loop.rules import check_named
from rtcontrol.loop.runner import LoopClock
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly, interpreting
from rtcontrol.run.check import fit
from rtcontrol.run.live import LiveView
from rtcontrol.run.model_compatibility import NAME_IT, gated, model_for, rate_mismatch, shown, training_notice
from rtcontrol.run.options import RunOptions
from rtcontrol.run.toolsets import tools_from
from rtcontrol.run.user_code import load_module
from rtcontrol.run.user_module import tools_only_agent, try_expert
from rtcontrol.telemetry import report, table
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown

OK, INTERNAL, MISTAKE, MISSED, UNSAFE, HOST, INCOMPLETE = range(7)
ERRED = 8  # 7 is a bridge's, for no server
ERRED_SHARE = 0.1  # of the ticks: so many errors are no accident
HELP = """Exit status: 0; 1 internal error, or a simulator lost for good; 2 mistake in what was given; 3 too many misses
(--max-miss-rate), or one with --on-miss stop; 4 the safe call was not in force at the end; 5 the decoder was lost for
good; 6 record or report incomplete (disk full); 8 a tenth of the ticks or more ended in an error of code; 128 and the
number of the signal that ended it: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. The first signal ends the run in order, a
second one changes nothing, a third one leaves whatever hangs. Ctrl-Z stops the process once the safe call is active;
`fg` resumes.
"""


def mostly_errors(errors: int, ticks: int) -> bool:
    """Whether so many errors dominate so many ticks or decisions."""
    return errors > 0 and errors >= ERRED_SHARE * ticks


def status(ended_by: str, safe: bool, complete: bool, missed: bool, sound: bool, erred: bool) -> int:
    """Of a run that ended so: whether its safe call was in force, record and report are complete, there were too many
    misses, the counts agree, and errors dominated it."""
    if not safe:
        return UNSAFE
    if ended_by == "host":
        return HOST
    if not complete:
        return INCOMPLETE
    return STATUS.get(ended_by) or (MISSED if missed else INTERNAL if not sound else ERRED if erred else OK)


Parts = tuple[Any, ...]  # agent, environment and decider's source


def _unwrapped(*parts: Any) -> Parts:
    return parts


def run(options: RunOptions, ending: Shutdown, wrap: Callable[..., Parts] = _unwrapped) -> int:
    """Run in the folder `options.out`, write record and report, print the table. Gives the exit status (`status.py`).

    Errors pass through, after the safe call and the report; where that call is not in force, they are told. `wrap` is
    given agent, environment and decider's source, and gives those that are run.
    """
    thread = WorldThread(options.env)
    try:
        code = _run(options, ending, wrap, thread)
    finally:
        thread.close()
        if thread.fault:
            print(thread.fault, file=sys.stderr)
    return code or (INTERNAL if thread.fault else OK)


def _run(options: RunOptions, ending: Shutdown, wrap: Callable[..., Parts], thread: WorldThread) -> int:
    """`run`, with the thread of the one instance of its world, which is closed whatever comes of it."""
    if options.env.endswith(".py"):
        load_module(options.env, "--env")  # here: what it sets up once may be for the main thread alone, as signals are
    chosen = _agent(options, thread)
    ending.retake()
    instruction, goal = options.instruction, options.goal
    if instruction is None:
        instruction = chosen.instruction if goal is None else assembly.goal_text(goal, options.env, chosen.goals)
    own = "" if chosen.expert is None else "--model expert is the agent's own. "
    model = model_for(chosen.tools.schemas, options.model or chosen.model, own + NAME_IT)
    options = gated(
        replace(options, agent=chosen.name, model=model, instruction=instruction), model, chosen.tools.schemas
    )
    chosen = shown(chosen, model)
    source = assembly.decider(options, chosen, model)
    if assembly.reads_data(source) and options.backup is None:
        options = replace(options, host="inprocess")
    made = assembly.environment(options.env, goal, chosen, thread)
    with closing(made):  # also where it never starts
        chosen, env, source = wrap(chosen, made, source)
        sample = assembly.sample(options, env)
        fit(chosen, env.name, env.bindings, sample)
        if model == "expert" and sample is not None:
            try_expert(chosen, sample, instruction)
        check_named(options, chosen)
        host = assembly.host(options, source, model, chosen)
        told = interpreting.of_config(options, chosen)
        view = LiveView(options)
        ending.retake()  # the world's construction and first reset ran its code, and a model's
        return run_loop(options, chosen, env, host, sample, view, ending, interpreter=told)


def _agent(options: RunOptions, thread: WorldThread) -> Agent:
    """The agent, with the tools of --tools where there are some; of these alone where a world of the user's is given
    no agent. UserError."""
    if options.tools is None:
        return _named(options, thread)
    tools = tools_from(options.tools, skip_unsupported=options.skip_unsupported)
    if options.agent is None and options.env.endswith(".py"):
        if options.instruction is None:
            raise UserError("--tools without an agent: nobody says what to do.", "Say it: --instruct TEXT.")
        return tools_only_agent(Path(options.tools).stem, tools, options.instruction, Fallback(None))
    found = _named(options, thread)
    try:
        return replace(found, tools=tools)
    except UserError as error:
        what = f"--tools {options.tools} cannot take the place of the tools of {found.name}. {error.what}"
        raise UserError(
            what, "Keep what the agent names as it is, or write an --agent FILE.py of these tools."
        ) from None


def _named(options: RunOptions, thread: WorldThread) -> Agent:
    return assembly.agent(options.agent or assembly.default_agent(options.env), options.env, thread)


def run_loop(
    config: RunConfig,
    chosen: Agent,
    env: Environment,
    host: Host,
    sample: Observation | None,
    view: LiveView,
    ending: Shutdown,
    clock: LoopClock | None = None,
    made: Callable[[ControlLoop], None] = lambda loop: None,
    interpreter: Interpreter | None = None,
    listener: Listener | None = None,
) -> int:
    """`run` with everything chosen. `made` is told the loop before it runs."""
    header = config.header(chosen.fallback.hold_ms, chosen)
    record, patient = config.out / "record.mcap", config.clock == "lockstep"
    pictures, most = env.pictures.recorded if isinstance(env, RemoteEnvironment) else None, size(config.record_max)
    recorder = Recorder(record, header, True, view.say, patient, most, pictures)
    options = LoopOptions(
        sample,
        view.say,
        clock,
        interpreter=interpreter,
        retake=ending.retake,
        goals=interpreting.goal_tools(chosen),
        listener=listener or Listener(),
    )
    loop = ControlLoop(config, chosen, env, host, recorder, options)
    model = config.model or chosen.model
    told = (training_notice(chosen.tools.schemas, model), rate_mismatch(model, config.hz))
    for warning in (*chosen.tools.warnings(), *filter(None, told)):
        loop.tell(warning)
    made(loop)
    began, sound, written = True, True, True
    left: Interrupted | None = None
    try:
        ending.of(loop.stop, loop.suspend)
        view.watch(loop)
        loop.run()
    except Interrupted as interrupted:
        left = interrupted
    except Exception as error:
        began = loop.state.launched or not isinstance(error, UserError)
        if not loop.state.unsafe:
            raise
        # The status says what is graver: that the machine may move on.
        print(printable(f"The run broke down: {errors.text(error)} ({errors.where(error)})."), file=sys.stderr)
    finally:
        ending.shielded = True  # before anything that a signal could cut short
        try:
            view.close()
            write_end(loop)
            if not began:
                recorder.file.discard()
            recorder.file.keep()
            recorder.close()
            if began:
                sound, written = _report(config, loop, recorder)
        finally:
            ending.shielded = False
    return _status(config, loop, recorder, left, sound and loop.state.failure is None, written)


def _status(
    config: RunConfig, loop: ControlLoop, recorder: Recorder, left: Interrupted | None, sound: bool, written: bool
) -> int:
    """The exit status, and what it means in words."""
    complete = written and not recorder.lost
    ended, account = loop.ended_by or "", loop.account
    erred = mostly_errors(account.erred, account.ticks)
    limit = config.max_miss_rate
    above = limit is not None and account.miss_rate > limit
    code = status(ended, not loop.state.unsafe, complete, ended == "miss" or above, sound, erred)
    if code == UNSAFE:
        print(
            "The safe call could not be brought into force: what was called last may still act. Stop the machine by "
            f"other means; each attempt stands in {config.out / 'record.mcap'}.",
            file=sys.stderr,
        )
    if recorder.lost:
        print(
            f"The record lacks {recorder.lost} lines: the disk takes no more ({recorder.file.error}).", file=sys.stderr
        )
    if ended == "host":
        print("The decoder was lost for good: start the run again, or use `--host inprocess`.", file=sys.stderr)
    elif ended == "miss":
        print("Ended by a miss, as --on-miss stop asks.", file=sys.stderr)
    elif above:
        print(f"Miss rate {account.miss_rate:.4f} is above {limit:g}.", file=sys.stderr)
    if erred:
        most = max(account.errors.values(), key=lambda error: error["count"], default=None)
        where = f" ({most['where']})" if most is not None and most["where"] else ""
        what = "" if most is None else f", most often: {printable(most['error'].rstrip('.') + where)}"
        print(
            f"ERRORS: {account.erred} of {account.ticks} ticks ended in one{what}. Correct it there.", file=sys.stderr
        )
    return left.status if left is not None and code not in (UNSAFE, HOST, INCOMPLETE) else code


def _report(config: RunConfig, loop: ControlLoop, recorder: Recorder) -> tuple[bool, bool]:
    """Write and show the report. Never raises, so as not to hide why the run ended; gives whether the counts agree,
    and whether it was written."""
    path = config.out / "report.json"
    sound = True
    try:
        loop.account.check()
        assert recorder.fault is None, recorder.fault
    except AssertionError as error:
        print(f"Internal error: the counts contradict each other ({error}).", file=sys.stderr)
        sound = False
    try:
        result = report.build(loop.account, "record.mcap", recorder.lost, loop.ended_by, recorder.file.first_k)
        refused = report.write(result, path)
        table.show(result, Terminal())
    except Exception as error:
        print(printable(f"The report could not be made ({type(error).__name__}: {error})."), file=sys.stderr)
        return False, False
    if refused is None:
        print(printable(f"report: {path}"))
    else:
        print(f"The report could not be written to {config.out} ({refused}): it stands above only.", file=sys.stderr)
    return sound, refused is None
