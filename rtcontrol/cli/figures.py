"""What commands share: how groups of them are made, and where their figures go (a JSON file, or a terminal)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.telemetry.table import FigureTable, Terminal
from rtcontrol_client.console import printable

if TYPE_CHECKING:
    from rtcontrol.models.data.row import Row

STDOUT = Path("-")
ROWS = 10_000  # between two lines of progress where there is no terminal
LOG_WIDTH = 160  # of tables in a log file


def group(**more: Any) -> typer.Typer:
    """Return a group of commands, or the place of a single one."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **more,
    )


def count_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows, and show on stderr how many there are so far."""
    console = Terminal(stderr=True)
    with console.status("reading") as status:
        for n, row in enumerate(rows, 1):
            if console.is_terminal and not n % 100:
                status.update(f"{n} rows: {row.source}")
            elif not console.is_terminal and not n % ROWS:
                print(printable(f"{n} rows: {row.source}"), file=sys.stderr, flush=True)
            yield row


def check_writable(path: Path) -> Path:
    """Return the path. Raises UserError for a file that could not be written, before anything is measured."""
    try:
        # What is not a file, such as a pipe, is opened when there is something for it.
        if path != STDOUT and (path.is_file() or path.is_dir() or not path.exists()):
            existed = path.exists() or path.is_symlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
            if not existed:  # what is refused later leaves no empty file
                path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None
    return path


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write the figures with the machine to the file of --json, if there is one; `-` is standard output. UserError."""
    if path is None:
        return
    from rtcontrol.telemetry.run_folder import describe

    text = json.dumps({"machine": describe()} | document, indent=1) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        replace_file(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Make room, or give another path.") from None
    print(f"All figures: {path}")


def for_people(json_file: Path | None) -> Console:
    """Return where tables go: standard output, unless the figures do. A log file has no width of its own."""
    console = Terminal(stderr=json_file == STDOUT)
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    return console


def say(console: Console, text: str) -> None:
    """Print a line as it is, of any length and from any source."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, table: FigureTable) -> None:
    """Print a table of figures."""
    shown = Table(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
    for i, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


class Bar:
    """Progress on standard error: a bar on a terminal; `line` is for logs."""

    def __init__(self, task: str, *columns: ProgressColumn, total: float | None = None) -> None:
        self.console = Terminal(stderr=True)
        self.terminal = self.console.is_terminal
        self._bar = Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task(task, total=total)

    def update(self, **more: Any) -> None:
        self._bar.update(self._task, **more)

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self.terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


class Tenths(Bar):
    """Takes how much is done, and of how much: a log has a line each tenth."""

    def __init__(self, task: str, text: str) -> None:
        super().__init__(task)
        self._text, self._tenths = text, 0

    def __call__(self, done: int, total: int) -> None:
        self.update(completed=done, total=total)
        if not self.terminal and (tenths := 10 * done // max(total, 1)) > self._tenths:
            self._tenths = tenths
            self.line(self._text.format(done=done, total=total, percent=10 * tenths))


@contextmanager
def interrupted(out: Path, training: str) -> Iterator[None]:
    """Say on Ctrl-C of a training what is kept in `out`, if its folder `training` has a state."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / training / "state.pt").is_file():
            print(f"\nStopped; what was learnt is kept in {out}: the same command resumes.", file=sys.stderr)
        raise
