"""`rtcontrol fit`: a controller of one's own tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rtcontrol.cli.figures import JsonFile, for_people, save

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def fit(
    out: Annotated[Path, typer.Option(help="The model's folder: a new one, or that of a run to go on with.")],
    rows: Annotated[
        list[Path] | None,
        typer.Option(help="Rows to learn from, JSONL (may be given several times).", show_default=False),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Or a world to learn in: FILE.py, with --agent.")] = None,
    agent: Annotated[str | None, typer.Option(help="--env: the agent's FILE.py, with goals and an expert.")] = None,
    goals: Annotated[
        Path | None, typer.Option(help="--env: its goals, a .yaml or .json file. (default: those in the file)")
    ] = None,
    hz: Annotated[float, typer.Option(min=0.1, max=1_000, help="--env: decisions a second.")] = 16.0,
    tools: Annotated[
        str | None, typer.Option(help="Tools: a .json or .py file, mcp:COMMAND or mcp:URL. (default: the rows' own)")
    ] = None,
    goal: Annotated[
        str | None, typer.Option(help="The instruction of rows that have none, and what the model is told by default.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="The most that it may take.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Seed of weights and order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. (default: 1)")] = None,
    json_file: JsonFile = None,
) -> None:
    """Fit a controller: to rows of what it is told, what it sees, what it is to call; or to the expert of a world.

    One row a line: `{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}`. Rows
    that do not fit the tools are refused by file and line. A tenth of the questions is held out and never trained on:
    its score is shown while it trains, and ends the run where all of it is right. A run that was stopped goes on when
    the same command is given again.

    Examples:

      rtcontrol fit --tools tools.json --rows rows.jsonl --out runs/mine

      rtcontrol fit --rows monday.jsonl --rows tuesday.jsonl --out runs/mine --minutes 5 --goal "keep the belt moving"

      rtcontrol fit --env my_game.py --agent my_game_agent.py --out runs/mine      (docs/your-own-game.md)

      rtcontrol run --env my_world.py --tools tools.json --instruct "go on" --model runs/mine      (then fly it)
    """
    from rtcontrol.fitting.fit import fit as work
    from rtcontrol.run.toolsets import tools_from

    console = for_people(json_file)
    with FitProgress(Console(stderr=True)) as shown:
        made = work(
            rows or None,
            None if tools is None else tools_from(tools),
            out=out,
            env=env,
            agent=agent,
            goals=goals,
            hz=hz,
            goal=goal,
            minutes=minutes,
            seed=seed,
            threads=threads,
            tell=shown.line,
            say=lambda told: console.print(told, markup=False, highlight=False, soft_wrap=True),
        )
    console.print(f"Held-out rows: {made.score.told()}.", highlight=False, soft_wrap=True)
    for line in made.truth.told():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if (worst := made.truth.parts.worst()) is not None:
        console.print(f"Least right: {worst[0]}, {worst[1].right} of {worst[1].count}.", highlight=False, markup=False)
    for name, share in made.played.items():
        console.print(f"In its world, {name}: {share.told()}.", highlight=False, soft_wrap=True)
    console.print(f"Model: {made.folder} (card: {made.folder / 'README.md'})", highlight=False, soft_wrap=True)
    flown = {"played": {name: share.to_dict() for name, share in made.played.items()}} if made.played else {}
    save(json_file, {"folder": str(made.folder), **made.truth.to_dict(), "notes": list(made.notes)} | flown)


class FitProgress:
    """A line on stderr: time left, held-out score; one for each evaluation where stderr is no terminal."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), TextColumn("{task.description}"))
        self._console, self._bar = console, Progress(*columns, console=console, transient=True)
        self._task, self._score = self._bar.add_task("begins", total=1.0), "-"

    def line(self, line: Mapping[str, Any]) -> None:
        """What a run tells."""
        if (score := line.get("held_out")) is not None:
            self._score = f"{score['right']}/{score['count']}"
        whole = line["seconds"] + line["left_s"]
        told = (
            f"{_clock(line['left_s'])} left  held out {self._score}  loss {line['loss']}  {line['samples']:,} samples"
        )
        self._bar.update(self._task, completed=line["seconds"] / max(whole, 1e-9), description=told)
        if score is not None and not self._console.is_terminal:
            print(told, file=sys.stderr, flush=True)

    def __enter__(self) -> FitProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
