"""Helpers that commands share: groups of commands, output of figures, and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer
from rich import progress
from rich.console import Console
from rich.table import Table

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.telemetry.table import FigureTable, Terminal
from rtcontrol_client.console import printable

if TYPE_CHECKING:
    from rtcontrol.models.data.row import Row

STDOUT = Path("-")
LOG_WIDTH = 160  # width of tables in a log file


def group(**more: Any) -> typer.Typer:
    """Return a Typer app for a group of commands, or for a single command."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **more,
    )


def check_writable(path: Path) -> None:
    """Raise UserError if a file cannot be written; called before a measurement starts."""
    if path == STDOUT:
        return
    try:
        existed = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
        if not existed:  # so that a command that is refused later leaves no empty file
            path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write figures and machine as JSON to `path`, if it is given; `-` is standard output. Raises UserError."""
    if path is None:
        return
    from rtcontrol.telemetry.run_folder import describe_machine

    text = json.dumps({"machine": describe_machine()} | document, indent=1) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        replace_file(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Make room, or give another path.") from None
    print(f"All figures: {path}")


def for_people(json_file: Path | None = None) -> Console:
    """Return the console for tables: standard output, or standard error if the figures go to standard output."""
    console = Terminal(stderr=json_file == STDOUT)
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    return console


def say(console: Console, text: str) -> None:
    """Print a line without markup or wrapping, with unprintable characters escaped."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, table: FigureTable) -> None:
    """Print a table of figures."""
    shown = Table(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
    for i, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


class Progress:
    """A progress display on standard error: a bar on a terminal, otherwise a line after each tenth.

    `text` may have the placeholders `done`, `total` and `percent`.
    """

    def __init__(self, text: str) -> None:
        console = Terminal(stderr=True)
        columns = progress.BarColumn(), progress.TextColumn("{task.description}")
        self._terminal, self._text, self._tenth = console.is_terminal, text, 0
        self._bar = progress.Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("starts", total=None)

    def __call__(self, done: float, total: float | None) -> None:
        percent = 10 * int(10 * done / total) if total else 0
        self.show(self._text.format(done=done, total=total, percent=percent), done, total)

    def show(self, text: str, done: float, total: float | None) -> None:
        self._bar.update(self._task, completed=done, total=total, description=printable(text))
        tenth = int(10 * done / total) if total else 0
        if tenth > self._tenth and not self._terminal:
            print(printable(text), file=sys.stderr, flush=True)
        self._tenth = tenth

    def __enter__(self) -> Self:
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


def count_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows, and show their number so far."""
    with Progress("{done} rows") as shown:
        for n, row in enumerate(rows, 1):
            shown(n, None)
            yield row


@contextmanager
def interrupted(out: Path, training: str) -> Iterator[None]:
    """Report on Ctrl-C that a training can be resumed from `out`, if the folder `training` has a state."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / training / "state.pt").is_file():
            print(f"\nStopped; the training is saved in {out}: the same command resumes it.", file=sys.stderr)
        raise
