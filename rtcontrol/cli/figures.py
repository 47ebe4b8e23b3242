"""Helpers that commands share: command groups, and output of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from rtcontrol.models.docstrings import docstring
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import open_output, write_output
from rtcontrol.telemetry.progress import Progress
from rtcontrol.telemetry.table import FigureTable, Terminal
from rtcontrol_client.console import printable

if TYPE_CHECKING:
    from rtcontrol.models.data.row import Row

STDOUT = Path("-")
LOG_WIDTH = 160  # width of tables (in characters) if the output is not a terminal


def group(**more: Any) -> typer.Typer:
    """Return a Typer app with our options, for a group of commands or a single command."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **more,
    )


def group_options(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for the function with the options of a group, whose docstring is the group's help."""
    return lambda function: app.callback(help=docstring(function))(function)


def check_writable(path: Path) -> None:
    """Raise UserError if a file cannot be written. Call this before a long measurement starts."""
    if path == STDOUT:
        return
    try:
        existed = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        open_output(path).close()
        if not existed:  # if the command fails later, it must not leave an empty file
            path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write results as JSON to `path`, with the machine (None: nothing; `-`: standard output). Raises UserError."""
    if path is None:
        return
    from rtcontrol.telemetry.run_folder import describe_machine

    text = json.dumps({"machine": describe_machine()} | document, indent=1) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        write_output(path, text)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}).", "Free some space, or give another path."
        ) from None
    print(f"All figures: {path}")


def console_for_tables(json_file: Path | None = None) -> Console:
    """Return a console on standard output; if JSON goes to standard output (`-`), on standard error."""
    console = Terminal(stderr=json_file == STDOUT)
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    return console


def say(console: Console, text: str) -> None:
    """Print a line literally, without rich's markup and wrapping, and with unprintable characters escaped."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, table: FigureTable) -> None:
    """Print a table of results, with the numbers aligned right."""
    shown = Table(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
    for i, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


def count_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows, and show a running count as progress."""
    with Progress("{done} rows") as shown:
        for n, row in enumerate(rows, 1):
            shown(n, None)
            yield row


@contextmanager
def resumable_training(out: Path, training: str) -> Iterator[None]:
    """On Ctrl-C, print that the same command resumes the training, if `out`/`training` has a saved state."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / training / "state.pt").is_file():
            print(f"\nStopped. The training is saved in {out}; the same command resumes it.", file=sys.stderr)
        raise
