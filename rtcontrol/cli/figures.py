"""Where a command's figures go: a JSON file with what was measured, and on what."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import part_of
from rtcontrol.telemetry.table import Terminal

STDOUT = Path("-")


def check_writable(path: Path | None) -> Path | None:
    """It; a file that could not be written is refused before anything is measured."""
    try:
        # What is no file, such as a pipe, is opened when there is something for it.
        if path is not None and path != STDOUT and (path.is_file() or path.is_dir() or not path.exists()):
            there = path.exists() or path.is_symlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
            if not there:  # what is refused later leaves no empty file
                path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None
    return path


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write the figures, and what was measured on, where a file is wanted; says so. `-` is standard output, where they
    stand alone."""
    if path is not None:
        from rtcontrol.telemetry.run_folder import describe

        text = json.dumps({**document, "machine": describe()}, indent=1) + "\n"
        if path == STDOUT:
            sys.stdout.write(text)
            return
        plain = not path.is_symlink() and (path.is_file() or not path.exists())
        part = part_of(path) if plain else path
        try:
            part.write_text(text)
            part.replace(path)
        except OSError as error:
            if part != path:
                part.unlink(missing_ok=True)
            raise UserError(
                f"{path} cannot be written ({error.strerror}).", "Make room, or give another path."
            ) from None
        print(f"All figures: {path}")


JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all figures here; - is standard output.", callback=check_writable)
]


def for_people(json_file: Path | None) -> Console:
    """Where tables go: standard output, unless the figures do."""
    return Terminal(stderr=json_file == STDOUT)


class Shown:
    """Tells on stderr how much is done, and of how much; shows tables as soon as they are there."""

    def __init__(self, console: Console) -> None:
        self._console, self._told = console, Terminal(stderr=True)
        self._shown: set[str] = set()
        self._tenths = 0
        self._bar = Progress(console=self._told, transient=True)
        self._task = self._bar.add_task("measuring", total=None)

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if not self._told.is_terminal and (tenths := 10 * done // max(total, 1)) > self._tenths:
            self._tenths = tenths
            print(f"measuring: {10 * tenths} %", file=sys.stderr, flush=True)

    def ready(self, document: dict[str, Any]) -> None:
        """Those of its tables that were not shown yet."""
        from rtcontrol.bench import tables

        for found in tables.tables(document):
            if found.title in self._shown:
                continue
            self._shown.add(found.title)
            shown = Table(title=found.title, caption=found.note)
            for i, column in enumerate(found.columns):
                shown.add_column(column, justify="right" if i else "left")
            for row in found.rows:
                shown.add_row(*row)
            self._console.print(shown)
            self._console.file.flush()

    def __enter__(self) -> Self:
        if self._told.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


def show(run: Callable[[Shown], dict[str, Any]], json_file: Path | None) -> None:
    """Measure (`run` takes what tells how much is done), and show and save the document."""
    with Shown(for_people(json_file)) as shown:
        document = run(shown)
    shown.ready(document)
    save(json_file, document)
