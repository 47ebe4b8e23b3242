"""`rtcontrol drill`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rtcontrol.cli.command import command
from rtcontrol.cli.figures import Progress, for_people, group, say
from rtcontrol.drill.faults import FAULTS
from rtcontrol.models.errors import UserError
from rtcontrol.settings import setting

HELP = f"""Inject faults into a run in a seeded order, and check that each miss is reported with its true cause.

Examples:

    rtcontrol drill
    rtcontrol drill --seed 7 --set drill.rounds=10 --set drill.only=stop_decoder --set drill.standby=true
    rtcontrol drill --simulate --set "drill.seeds=[0, 200]"
    rtcontrol drill --simulate --seed 7 --set drill.trace=true

Faults: {", ".join(FAULTS)}. docs/drill.md explains each fault, and the causes that its misses may have.

`--simulate` uses no environment and no model: loop, actuator, session and client run in simulated time, at thousands
of ticks a second, also with faults of network and software. A seed determines a run with its rate and settings. If an
invariant is violated, the command that repeats that run is printed.

Exit status: 0 if every fault is attributed, no miss is unknown and no invariant is violated; 3 if not; 2 wrong
arguments; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the run ends in order, and the faults so far are judged).
"""
SEEDS = 0, 100
app = group()


@command(app, ("seed", "simulate"), help=HELP)
def drill(
    env: str = setting("drill", "lander", "Environment: a bundled one or a .py file."),
    model: str | None = setting("drill", None, "Checkpoint, expert or random. (default: the agent's)"),
    standby: bool = setting("drill", False, "Drill a run with a warm second decoder."),
    rounds: int = setting("drill", 3, "How often each fault is injected.", ge=1, le=10_000),
    out: Path = setting("drill", Path(), "Folder of record, report and drill.json. (default: runs/drill-TIME)"),
    only: tuple[str, ...] = setting("drill", (), "Inject only these; may be repeated."),
    seed: int | None = setting("drill", None, "Seed of order, episode; simulated: this run. (default: 0)", ge=0),
    simulate: bool = setting("drill", False, "Run by simulated time, without processes."),
    seeds: tuple[int, int] | None = setting(
        "drill", None, "Simulated: seeds from the first to before the second. (default: [0, 100])"
    ),
    ticks: int = setting("drill", 500, "Simulated: ticks of each seed.", ge=1),
    trace: bool = setting("drill", False, "Simulated: print each line that a seed records."),
) -> int:
    if simulate:
        if (env, model, standby, rounds, out) != ("lander", None, False, 3, Path()):
            message = "drill.env, model, standby, rounds and out are for a drill in real time."
            raise UserError(message, "Leave them out, or --simulate.")
        chosen = range(*(seeds or SEEDS)) if seed is None else range(seed, seed + 1)
        if not chosen:
            raise UserError("drill.seeds is not a range of seeds.", 'Give "drill.seeds=[0, 100]", or one by --seed 7.')
        return _simulate(chosen, ticks, only, trace)
    if seeds is not None or trace:
        raise UserError("drill.seeds and drill.trace are for a simulated drill.", "Give --simulate with them.")
    _check_names(only, FAULTS)
    run = {"env": env, "seed": seed or 0, "model": model, "standby": standby}
    return _run(run, only or tuple(FAULTS), rounds, out)


def _check_names(names: tuple[str, ...], faults: Any) -> None:
    for name in names:
        if name not in faults:
            raise UserError(f"drill.only={name}: there is no such fault.", f"Known faults: {', '.join(faults)}.")


def _run(run: dict[str, Any], names: tuple[str, ...], rounds: int, out: Path) -> int:
    from rtcontrol.drill.drill import drill as work
    from rtcontrol.run.options import timestamped_folder
    from rtcontrol.telemetry.run_folder import RunFolder
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    chance = random.Random(run["seed"])
    order = [FAULTS[name] for _ in range(rounds) for name in chance.sample(names, len(names))]
    with Shutdown() as ending, RunFolder(out, timestamped_folder("drill")) as folder:
        ending.of(lambda name: None)
        try:
            return work(run, order, folder.path, ending, for_people())
        except Interrupted as interrupted:
            return interrupted.status


def _simulate(seeds: range, ticks: int, only: tuple[str, ...], trace: bool) -> int:
    """Simulate the seeds until the last one or a signal, print the table, and return the exit status."""
    from rtcontrol.drill.simulation.campaign import SimTally, campaign, traced
    from rtcontrol.drill.simulation.faults import SIMULATED
    from rtcontrol.drill.simulation.run import scenario
    from rtcontrol.run.run import MISSED, OK
    from rtcontrol_client.shutdown import Shutdown

    _check_names(only, SIMULATED)
    console, total = for_people(), SimTally()
    with Shutdown() as ending, Progress("") as bar:
        ending.of(lambda name: None)
        for done, seed in enumerate(seeds, 1):
            if ending.called():
                break
            if trace:
                say(console, f"seed {seed}: {scenario(seed).name}")
            show = (lambda run, line: say(console, traced(run, line))) if trace else None
            total.add(campaign([seed], ticks, only, show))
            bar.show(f"{done} of {len(seeds)} seeds, {total.ticks:,} ticks", done, len(seeds))
    for line in total.table().splitlines():
        say(console, line)
    return ending.status or (MISSED if total.failures else OK)
