"""How much is answered, on standard error: a bar on a terminal, a line each tenth in a log."""

from __future__ import annotations

import sys
from typing import Self

from rich.progress import Progress

from rtcontrol.telemetry.table import Terminal


class EvalProgress:
    """Called with what is done, and of how much."""

    def __init__(self) -> None:
        self._console = Terminal(stderr=True)
        self._bar = Progress(console=self._console, transient=True)
        self._task = self._bar.add_task("answering", total=None)
        self._tenths = 0

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and (tenths := 10 * done // max(total, 1)) > self._tenths:
            self._tenths = tenths
            print(f"answered: {done} of {total}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()
