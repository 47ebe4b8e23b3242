"""Display the progress of commands and of functions that are called from Python."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich import progress

from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable

SLOW_S = 2.0  # `slow_work` prints its text after this number of seconds


class Progress:
    """A progress display on standard error: a bar on a terminal, one changing line in a notebook, otherwise a line for
    every 10 % of the work.

    `text` may have the placeholders `done`, `total` and `percent`. If `shows` is False, nothing is displayed.
    """

    def __init__(self, text: str = "", shows: bool = True) -> None:
        console = Terminal(stderr=True)
        columns = progress.BarColumn(), progress.TextColumn("{task.description}")
        self._terminal, self._text, self._tenth, self._shows = console.is_terminal and shows, text, 0, shows
        self._bar = progress.Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("starts", total=None)

    def __call__(self, done: float, total: float | None) -> None:
        percent = 10 * int(10 * done / total) if total else 0
        self.show(self._text.format(done=done, total=total, percent=percent), done, total)

    def show(self, text: str, done: float, total: float | None) -> None:
        self._bar.update(self._task, completed=done, total=total, description=printable(text))
        tenth = int(10 * done / total) if total else 0
        if self._bar.console.is_jupyter and self._shows:
            print(f"\r{printable(text):79}", end="", file=sys.stderr, flush=True)
        elif tenth > self._tenth and self._shows and not self._terminal:
            print(printable(text), file=sys.stderr, flush=True)
        self._tenth = tenth

    def say(self, text: str) -> None:
        """Print a line of text above the bar."""
        if self._terminal:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        elif self._shows:
            start = "\r" if self._bar.console.is_jupyter else ""
            print(f"{start}{printable(text):79}".rstrip(" "), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._terminal:
            self._bar.stop()


@contextmanager
def slow_work(text: str, shows: bool = True) -> Iterator[None]:
    """Print `text` on standard error if the work in the context takes more than `SLOW_S` seconds."""
    timer = threading.Timer(SLOW_S, print, (printable(text),), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if shows:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
