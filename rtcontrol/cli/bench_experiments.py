"""`rtcontrol bench experiments`: what the paper claims, tried at the scale of a processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rtcontrol.cli.figures import JsonFile, for_people, save
from rtcontrol.models.errors import UserError


def experiments(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="rates, forms, independence, weights, balance, constraint, draft, delay, schemas, places, latency, "
            "drafts (default: all; the last three and half of schemas take models that others trained).",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the runs are kept: what is done is not done again.")] = Path(
        "runs/experiments"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="From so many seeds each arm is trained.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    page: Annotated[
        Path | None, typer.Option(help="A page whose tables are put in place of those that it has.", exists=True)
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Train nothing: show what a --json file of before has.", exists=True)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Small models trained from nothing on a made-up corpus, to try what the paper claims (docs/experiments.md): heads
    against JSON at equal training tokens, heads that do not see each other, weights, balance, the constraint, schemas
    and delays drawn in training, drafts. About an hour and a half on two cores; stopped, it goes on where it was.

    Examples:

      rtcontrol bench experiments forms --seeds 1

      rtcontrol bench experiments --page docs/experiments.md --json docs/benchmarks/experiments.json

      rtcontrol bench experiments --results docs/benchmarks/experiments.json --page docs/experiments.md
    """
    from rtcontrol.evaluation.experiments import runs
    from rtcontrol.evaluation.experiments.tables import check_marks, filled, gathered, tables
    from rtcontrol.models.data.row import written_whole

    console = for_people(json_file)
    if page is not None:
        check_marks(page.read_text("utf-8"), names or runs.NAMES)
    if results is not None:
        try:
            found: dict[str, Any] = json.loads(results.read_text("utf-8"))["experiments"]
            wanted = {name: found[name] for name in names or found.keys()}
            shown = dict(tables(wanted))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            asked = f" of {', '.join(names)}" if names else ""
            raise UserError(f"{results} holds no such results{asked}.", "Give what --json wrote.") from None
    else:
        chosen = names or list(runs.NAMES)
        planned = list(runs.planned(chosen, seeds, out))
        _do([r for r in planned if r.work not in runs.AFTERWARDS], jobs, console)
        _do([r for r in planned if r.work in runs.AFTERWARDS], 1, console)  # beside nothing else
        wanted = gathered(chosen, seeds, out)
        shown = dict(tables(wanted))
    for name, table in shown.items():
        console.print(f"\n{name}: {table.title}", style="bold")
        for row in table.rows:
            told = "; ".join(f"{c} {v}" for c, v in zip(table.columns[1:], row[1:], strict=True) if v).replace("**", "")
            console.print(f"  {row[0]}: {told}", highlight=False, markup=False, soft_wrap=True)
        if table.note:
            console.print(f"  {table.note}", highlight=False, markup=False, soft_wrap=True)
    save(json_file, {"experiments": wanted})
    if page is not None:
        text = filled(page.read_text("utf-8"), wanted)
        with written_whole(page) as lines:
            lines.write(text)


def _do(planned: list[Any], jobs: int, console: Any) -> None:
    from rtcontrol.evaluation.experiments import kept

    left = len({run.folder for run in planned if run.result() is None})
    if not left:
        return
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("runs", total=left)

        def told(says: str, _: Any) -> None:
            console.print(f"done: {says}", highlight=False, markup=False)
            bar.advance(task)

        kept.do_all(planned, jobs, told)
