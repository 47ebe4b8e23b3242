"""What people see while a run is on: a live view or log lines, and a page; and what they type goes to the loop."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from rtcontrol.loop.loop import TYPED, ControlLoop, slash_answer
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.run.viewer import Viewer
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import MAX_LINE, printable

REFRESH_S = 0.25
LOG_EVERY_S = 5.0
QUIET_S = 5.0


class LiveView(logging.Handler):
    """Looks on from a thread of its own: the loop's thread only ever appends a line to a queue.

    `say` may be called from any thread. The same message is shown once in a while, not once a tick.
    """

    def __init__(self, options: RunOptions) -> None:
        super().__init__(logging.WARNING)
        self._log = logging.getLogger("rtcontrol")
        self._console = Terminal(stderr=True)
        self._live, self._stdin = options.live and self._console.is_terminal, options.stdin
        self._lines: deque[str] = deque(maxlen=200)
        self._shown: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: ControlLoop | None = None
        self._recorder: Recorder | None = None
        self._phase = "", 0.0  # what goes on, and since when
        self._viewer = Viewer(options, self.say) if options.view else None

    def say(self, line: str) -> None:
        self._lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def watch(self, loop: ControlLoop, recorder: Recorder) -> None:
        """Begin to look on; stdin is read where somebody can type, or where it was asked for."""
        self._loop, self._recorder = loop, recorder
        self._log.addHandler(self)
        self._log.propagate = False
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()
        if self._viewer is not None:
            self._viewer.watch(loop)
        if _can_read_stdin(self._stdin):
            threading.Thread(target=_read_stdin, args=(loop, self.say), name="stdin", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        if self._viewer is not None:
            self._viewer.close()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._log.removeHandler(self)
        self._log.propagate = True

    def _run(self) -> None:
        assert self._loop is not None, "watch() sets the loop before the thread starts"
        if self._live:
            with Live(console=self._console, auto_refresh=False, transient=True) as view:
                while not self._stop.wait(REFRESH_S):
                    self._flush()
                    view.update(self._view(self._loop), refresh=True)
        else:
            last = 0.0
            while not self._stop.wait(REFRESH_S):
                self._flush()
                now = time.monotonic()
                if self._loop.phase != self._phase[0] or now - last >= LOG_EVERY_S:
                    last = now
                    self._print((self._before() or _log_line(self._loop)) + self._lost())
        self._flush()

    def _flush(self) -> None:
        now = time.monotonic()
        while self._lines:
            line = self._lines.popleft()
            # Two ticks' lines differ in their number only.
            kind = line.split(": ", 1)[1] if line.startswith("tick ") else line
            if now - self._shown.get(kind, -QUIET_S) >= QUIET_S:
                if len(self._shown) > 100:
                    self._shown.clear()
                self._shown[kind] = now
                self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(printable(line, MAX_LINE), markup=False, highlight=False, soft_wrap=True)

    def _lost(self) -> str:
        lost = 0 if self._recorder is None else self._recorder.lost
        return f", {lost} lines of the record lost" if lost else ""

    def _before(self) -> str:
        """What goes on, and how long it has, while there are no ticks; empty while there are."""
        assert self._loop is not None, "only while it is watched"
        phase, now = self._loop.phase, time.monotonic()
        if phase != self._phase[0]:
            self._phase = phase, now
        seconds = now - self._phase[1]
        return "" if phase == "running" else f"{phase}, {seconds:.0f} s ..." if seconds >= 1 else f"{phase} ..."

    def _view(self, loop: ControlLoop) -> Group:
        if before := self._before():
            return Group(Text(before))
        asking = loop.operator.asking
        state = "" if loop.operator.state == "running" else f" [{loop.operator.state.upper()}: the safe call acts]"
        may = "" if asking is None or asking.denied else f"may it {asking.call.text()}? /yes /no   "
        return Group(
            Text(printable(f"{loop.config.env}: {loop.instruction}{state}", MAX_LINE), style="bold"),
            Text(printable(f"{_log_line(loop)}{self._lost()}", MAX_LINE)),
            Text(printable(f"{may}type an instruction, /help /pause /resume /stop", MAX_LINE), style="dim"),
        )


def _log_line(loop: ControlLoop) -> str:
    account = loop.account
    recent = sorted(account.recent_ms)
    p50 = recent[len(recent) // 2] if recent else 0.0
    causes: Any = dict(account.off_time) or "none"
    last = account.recent_calls[-1] if account.recent_calls else "-"
    return (
        f"tick {account.ticks}, on time {account.on_time}, missed or skipped {causes}, latency p50 {p50:.2f} ms, "
        f"episodes {len(loop.env.episodes)}, last call {last}"
    )


def _can_read_stdin(piped: bool) -> bool:
    try:
        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor):
            # What a script or a service leaves there is not meant for us, unless `piped` says so.
            return piped
        # A background job that reads its terminal would be stopped by it.
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


def _read_stdin(loop: ControlLoop, say: Callable[[str], None]) -> None:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A bad byte is shown as such, and ends neither the reading nor the run.
        sys.stdin.reconfigure(errors="replace")
    try:
        for line in sys.stdin:
            if (text := line.removeprefix("\ufeff").strip()) in TYPED:
                say(loop.operator.say(TYPED[text], "keyboard"))
            elif (answer := slash_answer(text, loop.instruction, loop.instructions.goals)) is not None:
                say(answer)
            elif text:
                try:
                    loop.instruct(text)
                except UserError as error:
                    say(str(error))
    except (OSError, ValueError):
        return
