"""`rtcontrol drill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import widened
from rtcontrol.drill.faults import FAULTS, TIMES, schedule
from rtcontrol.models.errors import UserError

HELP = f"""Run, inject faults by a seeded schedule, and check that each miss is reported with its true cause.

Examples:

  rtcontrol drill

  rtcontrol drill --env paddle --minutes 5 --seed 7

  rtcontrol drill --minutes 1 --only stop_decoder,slow_text --standby

Faults ({TIMES} times each at least): {", ".join(FAULTS)}. docs/drill.md explains each, and
lists the causes that its misses may have.

Exit status: 0 if every fault is attributed, no miss is unknown and no invariant violated; 3 if not; 2 wrong arguments;
129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the run ends in order, and the faults so far are judged).
"""
LOG_WIDTH = 140
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(help=HELP)
def _drill(
    env: Annotated[str, typer.Option(help="Environment: a bundled one or a .py file.")] = "lander",
    minutes: Annotated[float, typer.Option(help="How long faults are injected.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the schedule and of the first episode.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Inject only these: frozen,gc, or repeat the option.")] = None,
    hz: Annotated[float, typer.Option(help="Ticks a second.")] = 16.0,
    agent: Annotated[str | None, typer.Option(help="Agent: a name or a .py file. (default: the environment's)")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint, expert or random. (default: the agent's)")] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Drill a run with a warm second decoder.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of record, report and drill.json. (default: runs/drill-TIME)")
    ] = None,
) -> None:
    from rtcontrol.drill.drill import drill
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol.telemetry.table import Terminal
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    if not 0 < minutes <= 10_000:
        raise UserError(f"--minutes {minutes:g} is no length of a drill.", "Give such as --minutes 10.")
    names = [name.strip() for given in only or () for name in given.split(",")]
    planned = schedule(names, 60 * minutes, seed)
    run = {"env": env, "hz": hz, "seed": seed, "agent": agent, "model": model, "standby": standby}
    with Shutdown() as ending, Folder(out or Path(), named_by_time("drill")) as folder:
        ending.of(lambda name: None)
        try:
            status = drill(run, planned, folder.path, ending, widened(Terminal(), LOG_WIDTH))
        except Interrupted as interrupted:
            status = interrupted.status
    raise typer.Exit(status)
