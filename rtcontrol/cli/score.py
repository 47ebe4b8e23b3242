"""`rtcontrol score`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, TextColumn

from rtcontrol.cli.figures import STDOUT, Bar, check_writable, widened
from rtcontrol.loop.config import MAX_HZ, MIN_HZ
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

if TYPE_CHECKING:
    pass

LOG_WIDTH = 160
LONGER = 1.5  # so much longer than was told, it is told again
TOLD_S = 10.0  # in a log, how much is done is told so often at most
HELP = """Fly a model in lockstep on seeds that it was not trained on: goal by goal beside expert, no-op and random, and
told another goal than the one judged by; with --phrasings, by what people say.

Examples:

  rtcontrol score --env lander --seeds 20 --json scores.json

  rtcontrol score --env road --model runs/mine --model driver

  rtcontrol score --env my_world.py --agent my_agent.py --model runs/mine      (docs/scores.md)

  rtcontrol score --env lander --full --seeds 4      (what being late costs: delays, and 10, 16, 30 Hz in real time)

  rtcontrol score --env paddle --phrasings list.jsonl --gate 0.6      (or a list of the world's own: seen, unseen)

  rtcontrol score --env lander --steadiness --hysteresis margin=0.2,ticks=3      (docs/steadiness.md)

  rtcontrol score --env lander --model decisions:https://HOST/v1#NAME      (or systemone:URL, or a chat model)

A line of a list is `{"say": "...", "means": "<canonical instruction>"}`, with null for what means nothing. With --json
all is kept raw, seed by seed; a score that was interrupted goes on where it stopped, at the same command. The page
docs/scores.md says what is measured, and how.

Exit status: 0; 2 mistake in what was given; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (what was measured is shown and kept).
"""
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


class ScoreProgress(Bar):
    """Says on stderr what is flown, how much is done, and how long the rest takes."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}")
        super().__init__("loading", *columns, left="")
        self._begun_s = self._told_s = time.monotonic()
        self._announced_s = 0.0  # how long it takes in all, as it was told last

    def __call__(self, what: str, done: int, total: int, left_s: float, more_s: float) -> None:
        if done and (whole_s := time.monotonic() - self._begun_s + left_s) > LONGER * self._announced_s:
            beside = f"; delays and rates (--full) would take {_long(more_s)} more" if more_s else ""
            what_s = f"about {_long(left_s)} left, as the first {done} of {total} episodes went{beside}"
            self.console.print(f"longer than told: {what_s}" if self._announced_s else what_s, highlight=False)
            self._announced_s = whole_s
        left = f"{done}/{total} episodes, about {_long(left_s)} left"
        self.update(description=what, completed=done, total=total, left=left)
        if not self.terminal and (now := time.monotonic()) - self._told_s >= TOLD_S:
            self._told_s = now
            self.line(f"score: {left} ({what})")


def _numbers(option: str, text: str, least: float, most: float) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    whole = option != "--delays" or all(value.is_integer() for value in found)
    if not found or not whole or not all(least <= value <= most for value in found):
        raise UserError(f"{option} {text} is no list of numbers from {least:g} to {most:g}.", "Write such as 1,2,4.")
    return tuple(dict.fromkeys(found))


def _long(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


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
    delays: Annotated[
        str | None, typer.Option(help="Calls act so many ticks late: 0,1,2,4. (default: none, or these with --full)")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="In real time beside lockstep, at so many Hz: 10,16,30. (default: none, or --full)"),
    ] = None,
    hysteresis: Annotated[
        str | None,
        typer.Option(help="Of the models: margin=0.2, ticks=3, or both, as in `rtcontrol run` (docs/steadiness.md)."),
    ] = None,
    steadiness: Annotated[
        bool, typer.Option("--steadiness", help="Show how steady the calls are, too; --json has it anyway.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Everything: goals, delays and rates.")] = False,
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="All figures, raw; a score that was interrupted goes on there.")
    ] = None,
) -> None:
    from rtcontrol.evaluation.score import Scoring
    from rtcontrol.evaluation.score_plan import DELAYS, RATES, Settings
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
        delays=tuple(map(int, _numbers("--delays", delays, 0, 100))) if delays is not None else DELAYS if full else (),
        rates=_numbers("--rates", rates, MIN_HZ, MAX_HZ) if rates is not None else RATES if full else (),
        engine=engine,
        goal_file=None if goals is None else str(goals),
        hysteresis=hysteresis,
    )
    scoring = Scoring(settings, json_file)
    console = widened(Terminal(), LOG_WIDTH)
    for warning in scoring.warnings:
        print(printable(warning), file=sys.stderr)
    if scoring.document.begun:
        print(f"going on with what {json_file} holds", file=sys.stderr)
    status = 0
    try:
        with Shutdown(), ScoreProgress() as told:
            scoring.run(told)
    except KeyboardInterrupt as interrupted:
        status = getattr(interrupted, "status", 130)
    for table in tables(scoring.document.data, steadiness):
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
