"""Where a command's figures go: a JSON file with what was measured, and on what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rtcontrol.models.errors import UserError


def check_writable(path: Path | None) -> Path | None:
    """It; a file that could not be written is refused before anything is measured."""
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None
    return path


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write the figures, and what was measured on, where a file is wanted; says so."""
    if path is not None:
        from rtcontrol.record.machine import describe

        path.write_text(json.dumps({**document, "machine": describe()}, indent=1) + "\n")
        print(f"All figures: {path}")


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all figures here.", callback=check_writable)]


def show(run: Callable[[Callable[[int, int], None]], dict[str, Any]], json_file: Path | None) -> None:
    """Measure behind a progress bar (`run` takes what tells how much is done, and of how much), and show and save the
    document."""
    from rtcontrol.bench import tables

    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        document = run(lambda done, total: bar.update(task, completed=done, total=total))
    for found in tables.tables(document):
        shown = Table(title=found.title, caption=found.note)
        for i, column in enumerate(found.columns):
            shown.add_column(column, justify="right" if i else "left")
        for row in found.rows:
            shown.add_row(*row)
        console.print(shown)
    save(json_file, document)
