"""`rtcontrol drill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import widened
from rtcontrol.drill.faults import ENDINGS, FAULTS, TIMES
from rtcontrol.drill.fleet.faults import FLEET_FAULTS
from rtcontrol.models.errors import UserError

HELP = f"""Fly a run, inject faults by a seeded schedule, and check that each miss is told by its true cause.

Examples:

  rtcontrol drill

  rtcontrol drill --env lander --minutes 10 --seed 7 --json drill.json

  rtcontrol drill --minutes 1 --only stop_decoder,slow_text --standby

  rtcontrol drill --fleet --json fleet.json      (a fleet of its own on this machine; root: in a network of its own)

Faults ({TIMES} times each at least): {", ".join(FAULTS)}. Then, in short runs of their own, the endings
{", ".join(ENDINGS)}. docs/drill.md says what each is, and what it may be called.

Faults of a fleet (--fleet), once each: {", ".join(FLEET_FAULTS)}.

Exit status: 0 if every fault is attributed, no miss is unknown and no invariant violated (--fleet: every law holds at
every fault); 3 if not; 2 mistake in what was given; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the run is ended in order, and
what was injected is judged).
"""
LOG_WIDTH = 140
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


# Of the one drill alone, and of the other.
OF_RUNS, OF_FLEETS = ("env", "minutes", "seed", "host", "standby"), ("clients", "ticks")
FLEET_HZ = 10.0


@app.command(help=HELP)
def _drill(
    ctx: typer.Context,
    env: Annotated[str, typer.Option(help="Environment: a bundled one or a .py file.")] = "lander",
    minutes: Annotated[float, typer.Option(help="How long faults are injected.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the schedule and of the first episode.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the verdict here, too.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Inject these alone: frozen,gc, or one at a time.")] = None,
    hz: Annotated[float, typer.Option(help="Ticks a second. (--fleet: 10 where none is given)")] = 16.0,
    agent: Annotated[str | None, typer.Option(help="Agent: a name or a .py file. (default: the environment's)")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint, expert or random. (default: the agent's)")] = None,
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    standby: Annotated[bool, typer.Option("--standby", help="Drill a run with a warm second decoder.")] = False,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Drill several servers, decoders and machines, started here for that.")
    ] = False,
    clients: Annotated[int, typer.Option(help="--fleet: so many.")] = 6,
    ticks: Annotated[int, typer.Option(help="--fleet: watched while the model is changed.")] = 10_000,
    out: Annotated[Path | None, typer.Option(help="Folder. (default: runs/drill-TIME)")] = None,
) -> None:
    from rtcontrol.drill.drill import Drill, drill
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol.telemetry.table import Terminal
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    _check_given(ctx, fleet)
    if not 0 < minutes <= 10_000:
        raise UserError(f"--minutes {minutes:g} is no length of a drill.", "Give such as --minutes 10.")
    if json is not None and not json.absolute().parent.is_dir():
        raise UserError(f"--json {json}: there is no folder {json.parent}.", "Make it, or name another.")
    if json is not None and json.is_dir():
        raise UserError(f"--json {json} is a folder.", "Name a file.")
    names = tuple(name.strip() for given in only or () for name in given.split(","))
    if fleet:
        rate = FLEET_HZ if _is_default(ctx, "hz") else hz
        raise typer.Exit(_drill_fleet(model, agent, rate, clients, ticks, names, out, json))
    run = {"env": env, "hz": hz, "seed": seed, "agent": agent, "model": model, "host": host, "standby": standby}
    told = Drill(run, minutes, seed, names)
    told.names()
    with Shutdown() as ending, Folder(out or Path(), named_by_time("drill")) as folder:
        ending.of(lambda name: None)
        try:
            status = drill(told, folder.path, ending, json, widened(Terminal(), LOG_WIDTH))
        except Interrupted as interrupted:
            status = interrupted.status
    raise typer.Exit(status)


def _drill_fleet(
    model: str | None,
    agent: str | None,
    hz: float,
    clients: int,
    ticks: int,
    names: tuple[str, ...],
    out: Path | None,
    json: Path | None,
) -> int:
    from rtcontrol.drill.fleet.drill import FleetDrill, drill_fleet, fleet_options
    from rtcontrol.drill.fleet.network import enter
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol.telemetry.table import Terminal
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    told = FleetDrill(fleet_options(model, agent, hz, clients, ticks), names)
    told.names()
    enter()
    with Shutdown() as ending, Folder(out or Path(), named_by_time("drill")) as folder:
        ending.of(lambda name: None)
        try:
            return drill_fleet(told, folder.path.absolute(), ending, json, widened(Terminal(), LOG_WIDTH))
        except Interrupted as interrupted:
            return interrupted.status


def _is_default(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def _check_given(ctx: typer.Context, fleet: bool) -> None:
    """UserError for an option of the other drill."""
    for name in OF_RUNS if fleet else OF_FLEETS:
        if not _is_default(ctx, name):
            if fleet:
                raise UserError(f"--{name} is of the drill of a run, not of a fleet.", "Leave --fleet or it out.")
            raise UserError(f"--{name} is of the drill of a fleet.", "Add --fleet, or leave it out.")
