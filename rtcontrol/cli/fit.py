"""`rtcontrol fit`: a controller of one's own tools."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn

from rtcontrol.cli.figures import Bar, JsonFile, for_people, interrupted, save, say
from rtcontrol.models.errors import UserError

QUIET_S = 30.0  # between two lines where stderr is no terminal


def fit(
    out: Annotated[Path, typer.Option(help="The model's folder: a new one, or that of a run to go on with.")],
    rows: Annotated[list[Path] | None, typer.Option(help="Rows to learn from, JSONL; may stand several times.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Or a FILE.py with functions `teacher` and `situations`.")] = None,
    base: Annotated[str | None, typer.Option(help="Go on from this checkpoint. (default: a new model)")] = None,
    env: Annotated[str | None, typer.Option(help="Or a world to learn in: FILE.py, with --agent.")] = None,
    agent: Annotated[str | None, typer.Option(help="--env: the agent's FILE.py, with goals and an expert.")] = None,
    hz: Annotated[float | None, typer.Option(min=0.1, max=1e3, help="--env: decisions a second. (default: 16)")] = None,
    tools: Annotated[
        str | None, typer.Option(help="Tools: a .json or .py file, mcp:COMMAND or mcp:URL. (default: the rows' own)")
    ] = None,
    goal: Annotated[
        str | None, typer.Option(help="The instruction of rows that have none, and what the model is told by default.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="The most that the training takes; a last look comes on top.")
    ] = 15.0,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed of weights and order.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Fit a controller: to rows of what it is told, what it sees, what it is to call; to a teacher, or to the
    expert of a world.

    One row a line: `{"instruction": "...", "observation": "...", "call": {"name": "...", "arguments": {...}}}`. Rows
    that do not fit the tools are refused by file and line. A tenth of the questions is held out and never trained on:
    its score is shown while it trains, and ends the run where all of it is right. A run that was stopped goes on when
    the same command is given again; one that ended goes on with more --minutes.

    Examples:

      rtcontrol fit --tools tools.json --rows rows.jsonl --out runs/mine

      rtcontrol fit --rows monday.jsonl --rows tuesday.jsonl --out runs/mine --minutes 5 --goal "keep the belt moving"

      rtcontrol fit --teacher my_rules.py --tools tools.json --out runs/mine      (docs/fit.md)

      rtcontrol fit --env my_game.py --agent my_game_agent.py --base base --out runs/mine   (docs/your-own-game.md)

      rtcontrol run --env my_world.py --tools tools.json --instruct "go on" --model runs/mine      (then fly it)
    """
    from rtcontrol.run.toolsets import tools_from
    from rtcontrol.run.user_files import load_module
    from rtcontrol.training.examples import tools_of
    from rtcontrol.training.fit import TRAINING
    from rtcontrol.training.fit import fit as work

    console = for_people(json_file)
    tell = partial(say, console)
    asked = None if teacher is None else vars(load_module(teacher, "--teacher"))
    if asked is not None and (lacks := [name for name in ("teacher", "situations") if name not in asked]):
        what = f"{teacher} has no {' and no '.join(lacks)}."
        raise UserError(what, "Write `def teacher(instruction, observation)` and `def situations(rng)` (docs/fit.md).")
    chosen = None if tools is None else tools_from(tools)
    if chosen is None and asked is not None and "tools" in asked:
        chosen = tools_of(asked["tools"])
    with FitProgress() as shown, interrupted(out, TRAINING):
        made = work(
            rows or None,
            chosen,
            out=out,
            teacher=None if asked is None else asked["teacher"],
            situations=None if asked is None else asked["situations"],
            base=base,
            env=env,
            agent=agent,
            hz=hz,
            goal=goal,
            minutes=minutes,
            seed=seed,
            tell=shown.tell,
            say=tell,
        )
    console.print(f"Held-out rows: {made.score.message()}.", highlight=False, soft_wrap=True)
    if (worst := made.truth.worst()) is not None:
        tell(worst)
    if made.score.right < made.score.count:
        console.print(
            f"Not all is right yet: the same command with --minutes {2 * minutes:g} goes on.", highlight=False
        )
    console.print(f"Model: {made.folder} (card: {made.folder / 'README.md'})", highlight=False, soft_wrap=True)
    save(json_file, {"folder": str(made.folder), **made.truth.to_dict(), "notes": list(made.notes)})


class FitProgress(Bar):
    """A line on stderr: time left, held-out score; one for each evaluation where stderr is no terminal."""

    def __init__(self) -> None:
        super().__init__("begins", BarColumn(), TextColumn("{task.description}"), total=1.0)
        self._score, self._told_s = "-", time.monotonic()

    def tell(self, line: Mapping[str, Any]) -> None:
        """What a run tells."""
        if (score := line.get("held_out")) is not None:
            self._score = f"{score['right']}/{score['count']}"
        whole = line["seconds"] + line["left_s"]
        told = (
            f"{_clock(line['left_s'])} left  held out {self._score}  loss {line['loss']}  {line['samples']:,} samples"
        )
        self.update(completed=line["seconds"] / max(whole, 1e-9), description=told)
        now = time.monotonic()
        if not self.terminal and (score is not None or now - self._told_s > QUIET_S):
            self.line(told)
            self._told_s = now


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
