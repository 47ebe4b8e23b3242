"""`rtcontrol score`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import STDOUT, Tenths, check_writable, widened
from rtcontrol.loop.config import MAX_HZ, MIN_HZ
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

LOG_WIDTH = 160
HELP = """Fly a model in lockstep on seeds that it was not trained on: goal by goal beside expert, no-op and random, and
told another goal than the one judged by; with --phrasings, by what people say.

Examples:

  rtcontrol score --env lander --seeds 20 --json scores.json

  rtcontrol score --env road --model runs/mine --model driver

  rtcontrol score --env my_world.py --agent my_agent.py --model runs/mine      (docs/scores.md)

  rtcontrol score --env paddle --phrasings list.jsonl --gate 0.6      (or a list of the world's own: seen, unseen)

  rtcontrol score --env lander --model decisions:https://HOST/v1#NAME      (or systemone:URL, or a chat model)

A line of a list is `{"say": "...", "means": "<canonical instruction>"}`, with null for what means nothing. With --json
all is kept raw, seed by seed; a score that was interrupted goes on where it stopped, at the same command. The page
docs/scores.md says what is measured, and how.

Exit status: 0; 2 mistake in what was given; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (what was measured is shown and kept).
"""
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(help=HELP)
def _score(
    env: Annotated[str, typer.Option(help="World: a bundled one (`rtcontrol envs`), or a .py file.")],
    agent: Annotated[
        str, typer.Option(help="Agent: a name, or a .py file with goals and expert. (default: the world's)")
    ] = "",
    goals: Annotated[Path | None, typer.Option(help="File of goals (.yaml, .json), as for `rtcontrol run`.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model or endpoint; may be repeated. (default: the agent's, if it has one)"),
    ] = None,
    hz: Annotated[
        float | None, typer.Option(min=MIN_HZ, max=MAX_HZ, help="Ticks a second. (default: the model's own, or 16)")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Episodes a goal.")] = 10,
    goal: Annotated[
        list[str] | None,
        typer.Option(help="Score this goal alone (or `all` of your own); may be repeated. (default: the world's list)"),
    ] = None,
    phrasings: Annotated[
        str | None, typer.Option(help="JSONL file of what people say, or a list of the world's own: seen, unseen.")
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            help="Less sure calls are held: 0.6, or function=0.6; one for all models or, repeated, one for each. "
            "(default: what the checkpoint says, else none)"
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="All figures, raw; a score that was interrupted goes on there.")
    ] = None,
) -> None:
    from rtcontrol.evaluation.score import Scoring
    from rtcontrol.evaluation.score_plan import Settings
    from rtcontrol.evaluation.score_tables import tables

    if json_file is not None and (json_file == STDOUT or (json_file.exists() and not json_file.is_file())):
        what = "a folder" if json_file.is_dir() else "no file: nothing could go on from it"
        raise UserError(f"--json {json_file} is {what}.", "Name a file.")
    check_writable(json_file)
    settings = Settings(
        env,
        agent,
        tuple(model or ()),
        hz or 0.0,
        seeds,
        tuple(goal or ()),
        tuple(gate or ()),
        phrasings,
        engine=engine,
        goal_file=None if goals is None else str(goals),
    )
    scoring = Scoring(settings, json_file)
    console = widened(Terminal(), LOG_WIDTH)
    for warning in scoring.warnings:
        print(printable(warning), file=sys.stderr)
    if scoring.document.begun:
        print(f"going on with what {json_file} holds", file=sys.stderr)
    status = 0
    try:
        with Shutdown(), Tenths("flying", "score: {done} of {total} episodes") as progress:
            scoring.run(progress)
    except KeyboardInterrupt as interrupted:
        status = getattr(interrupted, "status", 130)
    for table in tables(scoring.document.data):
        note, table.caption = table.caption, None
        console.print(table)
        console.print(note, highlight=False)
        console.print()
    if status:
        kept = (
            f"{json_file} holds what was measured; the same command goes on there" if json_file else "nothing is kept"
        )
        print(f"interrupted: {kept}", file=sys.stderr)
    elif json_file is not None:
        print(f"All figures: {json_file}")
    raise typer.Exit(status)
