"""What commands share: how groups of them are made, and where their figures go (a JSON file, or a terminal)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

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

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:NUMBER. (default: a GPU where there is one)")]


def group(**more: Any) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **more,
    )


STDOUT = Path("-")


ROWS = 10_000  # between two lines of progress where there is no terminal


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

        text = json.dumps({"machine": describe()} | document, indent=1) + "\n"
        if path == STDOUT:
            sys.stdout.write(text)
            return
        try:
            replace_file(path, text)
        except OSError as error:
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


def say(console: Console, text: str) -> None:
    """A line as it is, of whatever length and from whomever."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def widened(console: Console, width: int) -> Console:
    """It; a log file has no width of its own."""
    if not console.is_terminal:
        console.width = max(console.width, width)
    return console


def show_table(console: Console, table: FigureTable, **more: Any) -> None:
    shown = Table(title=table.title, caption=table.note or None, **more)
    for i, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


class Bar:
    """What goes on, on standard error: a bar on a terminal; what a log has instead says `line`."""

    def __init__(self, task: str, *columns: ProgressColumn, total: float | None = None, **more: Any) -> None:
        self.console = Terminal(stderr=True)
        self.terminal = self.console.is_terminal
        self._bar = Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task(task, total=total, **more)

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
    """Called with how much is done, and of how much: a log has a line each tenth."""

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
    """Meanwhile Ctrl-C of a training says what is kept in `out`, where its folder `training` has a state."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / training / "state.pt").is_file():
            print(f"\nStopped; what was learnt is kept in {out}: the same command goes on.", file=sys.stderr)
        raise
