"""`rtcontrol drill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import widened
from rtcontrol.drill.faults import ENDINGS, FAULTS, TIMES
from rtcontrol.drill.policy.faults import POLICY_FAULTS
from rtcontrol.models.errors import UserError

HELP = f"""Fly a run, inject faults by a seeded schedule, and check that each miss is told by its true cause.

Examples:

  rtcontrol drill

  rtcontrol drill --env lander --minutes 10 --seed 7 --json drill.json

  rtcontrol drill --minutes 1 --only stop_decoder,slow_text --standby

  rtcontrol drill --policy --faults 500      (a policy server that does wrong: docs/policies.md)

Faults ({TIMES} times each at least): {", ".join(FAULTS)}. Then, in short runs of their own, the endings
{", ".join(ENDINGS)}. docs/drill.md says what each is, and what it may be called.

Faults of a policy server (--policy), --faults in all: {", ".join(POLICY_FAULTS)}.

Exit status: 0 if every fault is attributed, no miss is unknown and no invariant violated (--policy: every fault
is a miss, and nothing of it acted); 3 if not; 2 mistake in what was given; 129
SIGHUP, 130 Ctrl-C, 143 SIGTERM (the run is ended in order, and what was injected is judged).
"""
LOG_WIDTH = 140
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


# Options of one of the two drills alone.
OF_RUNS = ("env", "minutes", "host", "standby", "agent", "model", "hz")
OF_POLICIES = ("faults", "python")


@app.command(help=HELP)
def _drill(
    ctx: typer.Context,
    env: Annotated[str, typer.Option(help="Environment: a bundled one or a .py file.")] = "lander",
    minutes: Annotated[float, typer.Option(help="How long faults are injected.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the schedule and of the first episode.")] = 0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the verdict here, too.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Inject these alone: frozen,gc, or one at a time.")] = None,
    hz: Annotated[float, typer.Option(help="Ticks a second.")] = 16.0,
    agent: Annotated[str | None, typer.Option(help="Agent: a name or a .py file. (default: the environment's)")] = None,
    model: Annotated[str | None, typer.Option(help="Checkpoint, expert or random. (default: the agent's)")] = None,
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    standby: Annotated[bool, typer.Option("--standby", help="Drill a run with a warm second decoder.")] = False,
    policy: Annotated[
        bool, typer.Option("--policy", help="Drill a run whose policy server does wrong (docs/policies.md).")
    ] = False,
    faults: Annotated[int, typer.Option(help="--policy: so many, of all kinds.")] = 500,
    python: Annotated[
        str | None, typer.Option(help="--policy: interpreter that has openpi-client. (default: $RTCONTROL_OPENPI)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder. (default: runs/drill-TIME)")] = None,
) -> None:
    from rtcontrol.drill.drill import Drill, drill
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol.telemetry.table import Terminal
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    _check_given(ctx, policy)
    if not 0 < minutes <= 10_000:
        raise UserError(f"--minutes {minutes:g} is no length of a drill.", "Give such as --minutes 10.")
    if json is not None and not json.absolute().parent.is_dir():
        raise UserError(f"--json {json}: there is no folder {json.parent}.", "Make it, or name another.")
    if json is not None and json.is_dir():
        raise UserError(f"--json {json} is a folder.", "Name a file.")
    names = tuple(name.strip() for given in only or () for name in given.split(","))
    if policy:
        raise typer.Exit(_drill_policy(faults, seed, names, python, out, json))
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


def _drill_policy(
    faults: int, seed: int, names: tuple[str, ...], python: str | None, out: Path | None, json: Path | None
) -> int:
    from rtcontrol.drill.policy.drill import PolicyDrill, drill_policy
    from rtcontrol.run.options import named_by_time
    from rtcontrol.telemetry.run_folder import Folder
    from rtcontrol.telemetry.table import Terminal
    from rtcontrol_client.shutdown import Interrupted, Shutdown

    told = PolicyDrill(faults, seed, names, python)
    told.plan()
    with Shutdown() as ending, Folder(out or Path(), named_by_time("drill")) as folder:
        ending.of(lambda name: None)
        try:
            return drill_policy(told, folder.path.absolute(), ending, json, widened(Terminal(), LOG_WIDTH))
        except Interrupted as interrupted:
            return interrupted.status


def _is_default(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def _check_given(ctx: typer.Context, policy: bool) -> None:
    """UserError for an option of the other drill."""
    for name in OF_RUNS if policy else OF_POLICIES:
        if _is_default(ctx, name):
            continue
        if policy:
            raise UserError(f"--{name} is of the drill of a run, not of a policy server.", f"Leave --{name} out.")
        raise UserError(f"--{name} is of the drill of a policy server.", "Add --policy, or leave it out.")
