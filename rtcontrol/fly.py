"""One run from its settings to its exit status."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rtcontrol import assemble, report, table
from rtcontrol.agents import Agent
from rtcontrol.clock import LoopClock
from rtcontrol.config import RunConfig
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.fit import fit
from rtcontrol.hosts.base import Host
from rtcontrol.live import Onlooker
from rtcontrol.loop import ControlLoop
from rtcontrol.models.errors import UserError
from rtcontrol.record import Recorder, run_header

OK, INTERNAL, MISSED = 0, 1, 3
BY_SIGNAL = {"SIGINT": 130, "SIGTERM": 143}


class Interrupted(KeyboardInterrupt):
    """A second signal: whatever hangs is left. `status` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = BY_SIGNAL[signal.Signals(number).name]


def fly(
    config: RunConfig, goal: str | None = None, live: bool = True, stdin: bool = False, overwrite: bool = False
) -> int:
    """Run, write record and report, print the table. Gives the exit status: 0, 3 (too many misses, or one under
    --on-miss stop), 130 or 143 (ended by a signal). Errors pass through, after the safe call and the report.

    `stdin`: read instructions from it though it is no terminal. UserError where `config.out` holds a run already,
    but with `overwrite`.
    """
    check_out(config.out, overwrite)
    chosen = assemble.agent(config.agent or assemble.default_agent(config.env))
    instruction = config.instruction
    if instruction is None:
        instruction = assemble.goal_text(goal, config.env) if goal is not None else chosen.instruction
    model = config.model or chosen.model
    config = replace(config, agent=chosen.name, model=model, instruction=instruction)
    source = assemble.decider(config, chosen, model)
    env = assemble.environment(config.env, goal)
    sample = assemble.sample(config, env)
    fit(chosen, env, sample)
    return fly_in(config, chosen, env, assemble.host(config, source, model), sample, live, stdin)


def check_out(out: Path, overwrite: bool) -> None:
    """UserError where a run lies there already."""
    if (out / "record.jsonl").exists() and not overwrite:
        raise UserError(f"{out} holds the record of a run already.", "Give another --out, or --overwrite.")


def fly_in(
    config: RunConfig,
    chosen: Agent,
    env: Environment,
    host: Host,
    sample: Observation | None,
    live: bool,
    stdin: bool,
    clock: LoopClock | None = None,
    made: Callable[[ControlLoop], None] = lambda loop: None,
) -> int:
    """`fly` with everything chosen. `made` is told the loop before it runs."""
    recorder = Recorder(config.out / "record.jsonl", run_header(config, chosen.fallback.hold_ms), provisional=True)
    console = Console(stderr=True)
    onlooker = Onlooker(console, live and console.is_terminal, stdin)
    for warning in chosen.tools.warnings():
        onlooker.say(warning)
    loop = ControlLoop(config, chosen, env, host, recorder, sample=sample, notify=onlooker.say, clock=clock)
    made(loop)
    began, sound = True, True
    try:
        with _signals(loop):
            onlooker.watch(loop)
            loop.run()
    except UserError:
        began = loop.launched
        raise
    finally:
        onlooker.close()
        if not began:
            recorder.discard()
        recorder.keep()
        recorder.close()
        if began:
            sound = _report(config, loop, recorder) and loop.failure is None
    ended = loop.ended_by or ""
    if ended in BY_SIGNAL:
        return BY_SIGNAL[ended]
    if ended == "miss":
        print("Ended by a miss, as --on-miss stop asks.", file=sys.stderr)
        return MISSED
    if config.max_miss_rate is not None and loop.ledger.miss_rate > config.max_miss_rate:
        print(f"Miss rate {loop.ledger.miss_rate:.4f} is above {config.max_miss_rate:g}.", file=sys.stderr)
        return MISSED
    return OK if sound else INTERNAL


def _report(config: RunConfig, loop: ControlLoop, recorder: Recorder) -> bool:
    """Write and show the report. Never raises, so as not to hide why the run ended; False when it failed."""
    path = config.out / "report.json"
    sound = True
    try:
        loop.ledger.check()
    except AssertionError as error:
        print(f"Internal error: the counts contradict each other ({error}).", file=sys.stderr)
        sound = False
    try:
        result = report.build(config.out / "record.jsonl", loop.ledger, recorder.lost)
        refused = report.write(result, path)
        table.show(result, Console())
    except Exception as error:
        print(f"The report could not be made ({type(error).__name__}: {error}).", file=sys.stderr)
        return False
    if refused is None:
        print(f"report: {path}")
    else:
        print(f"The report could not be written to {config.out} ({refused}).", file=sys.stderr)
    return sound


@contextlib.contextmanager
def _signals(loop: ControlLoop) -> Iterator[None]:
    """SIGINT and SIGTERM end the run in order; a second one interrupts whatever hangs."""

    def stop(number: int, frame: object) -> None:
        if loop.ended_by is not None:
            raise Interrupted(number)
        loop.stop(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
