"""`rtcontrol drill`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn

from rtcontrol.cli.figures import Bar, say, widened
from rtcontrol.drill.faults import FAULTS
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal

HELP = f"""Run, inject faults in a seeded order, and check that each miss is reported with its true cause.

Examples:

  rtcontrol drill

  rtcontrol drill --env paddle --rounds 10 --seed 7

  rtcontrol drill --only stop_decoder,kill_decoder --standby

  rtcontrol drill --simulate --seeds 0 200

  rtcontrol drill --simulate --seed 7 --trace

Faults: {", ".join(FAULTS)}. docs/drill.md explains each, and lists the causes that its misses may have.

`--simulate` runs no environment and no model. Loop, actuator, session and client run by simulated time, some
thousands of ticks a second, with the faults of a network and of software, too. A seed is one run, with its rate and
settings. The same seed gives the same run. For a rule that breaks the command is printed that shows it again.

Exit status: 0 if every fault is attributed, no miss is unknown and no invariant violated; 3 if not; 2 wrong arguments;
129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the run ends in order, and the faults so far are judged).
"""
SEEDS = (0, 100)
REAL = ("env", "model", "standby", "out", "rounds")  # options that a simulated drill does not have
LOG_WIDTH, SEEDS_A_LINE = 140, 50
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(help=HELP)
def _drill(
    context: typer.Context,
    env: Annotated[str, typer.Option(help="Environment: a bundled one or a .py file.")] = "lander",
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="How often each fault is injected.")] = 3,
    seed: Annotated[
        int | None, typer.Option(help="Of the order and of the first episode; simulated: this run. (default: 0)")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Inject only these: hang,stop_loop, or repeat it.")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint, expert or random. (default: the agent's)")] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Drill a run with a warm second decoder.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of record, report and drill.json. (default: runs/drill-TIME)")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Run by simulated time, without processes.")] = False,
    ticks: Annotated[int | None, typer.Option(min=1, help="Simulated: ticks of each seed. (default: 500)")] = None,
    seeds: Annotated[
        tuple[int, int] | None, typer.Option(help="Simulated: from the first to before the second. (default: 0 100)")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Simulated: print each line that a seed records.")] = False,
) -> None:
    names = tuple(name.strip() for given in only or () for name in given.split(","))
    if simulate:
        sources = {name: context.get_parameter_source(name) for name in REAL}
        given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if given:
            raise UserError(f"--{given[0]} is of a drill in real time.", "Give it without --simulate.")
        chosen = range(*(seeds or SEEDS)) if seed is None else range(seed, seed + 1)
        if not chosen or None not in (seed, seeds):
            raise UserError("That is no range of seeds.", "Give such as --seeds 0 100, or one by --seed 7.")
        raise typer.Exit(_simulate(chosen, ticks, names, trace))
    if ticks is not None or seeds is not None or trace:
        raise UserError("--ticks, --seeds and --trace are of a simulated drill.", "Give --simulate with them.")
    for name in names:
        if name not in FAULTS:
            raise UserError(f"--only {name}: there is no such fault.", f"There are {', '.join(FAULTS)}.")
    run = {"env": env, "seed": seed or 0, "model": model, "standby": standby}
    raise typer.Exit(_fly(run, names or tuple(FAULTS), rounds, out))


def _fly(run: dict[str, Any], names: tuple[str, ...], rounds: int, out: Path | None) -> int:
    from rtcontrol.drill.drill import drill
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    chance = random.Random(run["seed"])
    order = [FAULTS[name] for _ in range(rounds) for name in chance.sample(names, len(names))]
    with Shutdown() as ending, Folder(out or Path(), named_by_time("drill")) as folder:
        ending.of(lambda name: None)
        try:
            return drill(run, order, folder.path, ending, widened(Terminal(), LOG_WIDTH))
        except Interrupted as interrupted:
            return interrupted.status


def _simulate(seeds: range, ticks: int | None, only: tuple[str, ...], trace: bool) -> int:
    """Run the seeds until the last, or a signal; print the table. Return the exit status."""
    from rtcontrol.drill.simulation.campaign import TICKS, SimTally, campaign, traced
    from rtcontrol.drill.simulation.faults import SIMULATED
    from rtcontrol.drill.simulation.run import scenario
    from rtcontrol.run.run import MISSED, OK
    from rtcontrol_client.shutdown import Shutdown

    for name in only:
        if name not in SIMULATED:
            raise UserError(f"--only {name}: there is no such simulated fault.", f"There are {', '.join(SIMULATED)}.")
    console, total = widened(Terminal(), LOG_WIDTH), SimTally()
    with Shutdown() as ending, Bar("ticks", BarColumn(), TextColumn("{task.description}"), total=len(seeds)) as bar:
        ending.of(lambda name: None)
        for done, seed in enumerate(seeds, 1):
            if ending.called():
                break
            if trace:
                say(console, f"seed {seed}: {scenario(seed).name}")
            shown = (lambda run, line: say(console, traced(run, line))) if trace else None
            total.add(campaign([seed], ticks or TICKS, only, shown))
            bar.update(completed=done, description=f"{done} of {len(seeds)} seeds, {total.ticks:,} ticks")
            if not bar.terminal and done % SEEDS_A_LINE == 0:
                bar.line(f"{done} of {len(seeds)} seeds, {total.ticks:,} ticks")
    for line in total.table().splitlines():
        say(console, line)
    return ending.status or (MISSED if total.failures else OK)
