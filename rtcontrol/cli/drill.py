"""The command `rtcontrol drill`, which injects faults into a run and checks the reported causes of misses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rtcontrol.cli.command import command
from rtcontrol.cli.figures import console_for_tables, group, say
from rtcontrol.drill.faults import FAULTS
from rtcontrol.models.errors import UserError
from rtcontrol.settings import setting
from rtcontrol.telemetry.progress import Progress

HELP = f"""Inject faults into a run in a random order, and check that each miss is reported with its true cause.

Examples:

    rtcontrol drill
    rtcontrol drill --seed 7 --set drill.rounds=10 --set drill.only=stop_decoder --set drill.standby=true
    rtcontrol drill --simulate --set "drill.seeds=[0, 200]"
    rtcontrol drill --simulate --seed 7 --set drill.trace=true

Faults: {", ".join(FAULTS)}. docs/drill.md explains each fault, and the causes that its misses may have.

With `--simulate`, control loop, actuator, session and client run in simulated time, without a real environment or
model, at thousands of ticks per second. The faults include those of network and software. A seed determines the whole
run. If an invariant is violated, the command that repeats the run is printed.

Exit status: 0 if every miss has its true cause and no invariant is violated; 3 if not; 2 wrong arguments; 129 SIGHUP,
130 Ctrl-C, 143 SIGTERM (the run ends with the safe call, and the faults so far are judged).
"""
SEEDS = 0, 100
app = group()


@command(app, ("seed", "simulate"), help=HELP)
def drill(
    env: str = setting("drill", "lander", "Environment: a bundled one or a .py file."),
    model: str | None = setting("drill", None, "Checkpoint, expert or random. (default: the agent's)"),
    standby: bool = setting("drill", False, "Run with a warm standby decoder."),
    rounds: int = setting("drill", 3, "How many times each fault is injected.", ge=1, le=10_000),
    out: Path = setting("drill", Path(), "Folder for record, report and drill.json. (default: runs/drill-TIME)"),
    only: tuple[str, ...] = setting("drill", (), "Inject only these faults; may be repeated."),
    seed: int | None = setting("drill", None, "Seed of the order and the episodes. (default: 0)", ge=0),
    simulate: bool = setting("drill", False, "Run in simulated time, without processes."),
    seeds: tuple[int, int] | None = setting(
        "drill", None, "Simulated: the first seed, and the last seed plus 1. (default: [0, 100])"
    ),
    ticks: int = setting("drill", 500, "Simulated: ticks per seed.", ge=1),
    trace: bool = setting("drill", False, "Simulated: print each event that a seed records."),
) -> int:
    if simulate:
        if (env, model, standby, rounds, out) != ("lander", None, False, 3, Path()):
            message = "--simulate cannot be used with drill.env, model, standby, rounds or out."
            raise UserError(message, "Leave these settings out, or --simulate.")
        chosen = range(*(seeds or SEEDS)) if seed is None else range(seed, seed + 1)
        if not chosen:
            raise UserError("drill.seeds is not a range of seeds.", 'Give "drill.seeds=[0, 100]", or --seed 7.')
        return _simulate(chosen, ticks, only, trace)
    if seeds is not None or trace:
        raise UserError("drill.seeds and drill.trace need --simulate.", "Add --simulate.")
    _check_fault_names(only, FAULTS)
    run = {"env": env, "seed": seed or 0, "model": model, "standby": standby}
    return _run_drill(run, only or tuple(FAULTS), rounds, out)


def _check_fault_names(names: tuple[str, ...], faults: Any) -> None:
    for name in names:
        if name not in faults:
            raise UserError(f"drill.only={name}: there is no such fault.", f"Known faults: {', '.join(faults)}.")


def _run_drill(run: dict[str, Any], names: tuple[str, ...], rounds: int, out: Path) -> int:
    from rtcontrol.drill.drill import drill as work
    from rtcontrol.run.options import timestamped_folder
    from rtcontrol.telemetry.run_folder import RunFolder
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    chance = random.Random(run["seed"])
    order = [FAULTS[name] for _ in range(rounds) for name in chance.sample(names, len(names))]
    with Shutdown() as ending, RunFolder(out, timestamped_folder("drill")) as folder:
        ending.of(lambda name: None)
        try:
            return work(run, order, folder.path, ending, console_for_tables())
        except Interrupted as interrupted:
            return interrupted.status


def _simulate(seeds: range, ticks: int, only: tuple[str, ...], trace: bool) -> int:
    """Simulate a run per seed, print the table of results, and return the exit status. A signal ends it early."""
    from rtcontrol.drill.simulation.campaign import SimTally, run_seeds, trace_line
    from rtcontrol.drill.simulation.faults import FAULT_KINDS
    from rtcontrol.drill.simulation.run import scenario_for
    from rtcontrol.run.run import MISSED, OK
    from rtcontrol_client.shutdown import Shutdown

    _check_fault_names(only, FAULT_KINDS)
    console, total = console_for_tables(), SimTally()
    with Shutdown() as ending, Progress("") as bar:
        ending.of(lambda name: None)
        for done, seed in enumerate(seeds, 1):
            if ending.called():
                break
            if trace:
                say(console, f"seed {seed}: {scenario_for(seed).name}")
            show = (lambda run, line: say(console, trace_line(run, line))) if trace else None
            total.add(run_seeds([seed], ticks, only, show))
            bar.show(f"{done} of {len(seeds)} seeds, {total.ticks:,} ticks", done, len(seeds))
    for line in total.table().splitlines():
        say(console, line)
    return ending.status or (MISSED if total.failures else OK)
