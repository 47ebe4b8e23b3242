"""What people see while a run is on: a live view or log lines, and a page; and what they type goes to the loop."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import wait
from typing import IO, Any

from rich.live import Live
from rich.text import Text

from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.remote import RemoteEnvironment, RemotePicture
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.loop.operator_control import take_word
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import MAX_LINE, printable

# A program of a room above this one: nothing of it is imported here, and its threads share nothing with the loop's.
PROGRAM = "rtcontrol.gateway.viewer"
EVERY_S = 0.25
START_S = 30.0
END_S = 3.0
PIPE_BYTES = 1 << 20  # as much as Linux lets anybody have
MOST_DATA = 64  # fields of an observation that are told


class Viewer:
    """Starts the process and tells its address by `say`; `watch` feeds it from then on, as long as it lives. What it
    reads is the account's and the recorder's side; of the loop it asks nothing that the loop waits for. A page that
    does not keep up loses what is told meanwhile. UserError where the address cannot be bound."""

    def __init__(self, options: RunOptions, say: Callable[[str], None]) -> None:
        self._say = say
        self._waiting = b""  # of the last line, that the pipe has not taken yet
        self._number = 0
        self._pictured: RemotePicture | None = None  # the last one in a line
        self._answer: str | None = None  # to what the page said last
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(options.view_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the run's
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._in, self._out = self._process.stdin, self._process.stdout
        first = (wait([self._out.fileno()], START_S) and _line(self._out)) or {}
        if "url" not in first:
            self.close()
            what = first.get("failed", "The page's process did not start.")
            raise UserError(str(what), "Give another --view-port, or leave --view out.")
        self.url: str = first["url"]
        os.set_blocking(self._in.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # a picture goes in one go
            fcntl.fcntl(self._in.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        say(f"watch it at {self.url}")

    def watch(self, loop: ControlLoop) -> None:
        for work in (self._feed, self._hear):
            thread = threading.Thread(target=work, args=(loop,), name=f"viewer-{work.__name__[1:]}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """The last of what there is to see is told; then the page ends."""
        self._stop.set()
        for thread in self._threads[:1]:
            thread.join(END_S)
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()

    def _feed(self, loop: ControlLoop) -> None:
        while not self._stop.wait(EVERY_S):
            if not self._tell(loop, False):
                return
        self._tell(loop, True)

    def _tell(self, loop: ControlLoop, over: bool) -> bool:
        """False where nobody reads any more."""
        if not self._waiting:
            told = snapshot(loop, self._number) | {"over": over, "said": self._answer}
            self._number = told["number"]
            self._waiting = json.dumps(told, default=str).encode()[:-1] + self._picture(loop) + b"}\n"
        try:
            self._waiting = self._waiting[os.write(self._in.fileno(), self._waiting) :]
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            return False
        return True

    def _picture(self, loop: ControlLoop) -> bytes:
        """Return a remote client's newest picture, once, as a field of the line that no JSON writer copies."""
        if not isinstance(loop.env, RemoteEnvironment) or (newest := loop.env.pictures.newest) is self._pictured:
            return b""
        self._pictured = newest
        return b',"picture":"' + (b"" if newest is None else base64.b64encode(newest.data)) + b'"'

    def _hear(self, loop: ControlLoop) -> None:
        while (said := _line(self._out)) is not None:
            try:
                if "instruct" in said:
                    answer = take_word(said["instruct"], "page", loop.operator, loop.instructions)
                    if answer is None:
                        loop.instruct(said["instruct"])
                    else:
                        self._answer = answer
                elif "say" in said:
                    self._answer = loop.operator.say(said["say"], "page", said.get("k"))
                    self._say(self._answer)
            except Exception as error:  # the next one may be a stop
                self._say(f"the page said what nobody can do ({type(error).__name__}: {error})")


def snapshot(loop: ControlLoop, since: int) -> dict[str, Any]:
    """What is to be seen of a run, as `Recent` tells it, with the run's own settings and state."""
    config = loop.config
    told = loop.recent.snapshot(since)
    asking = loop.operator.asking
    told |= {name: getattr(config, name) for name in ("env", "agent", "model", "hz")}
    told |= {"deadline_ms": config.deadline_ns / 1e6, "phase": loop.phase, "state": loop.operator.state}
    told |= {"proven": loop.instructions.proven, "refusal": loop.instructions.refusal}
    told |= {"instruction": loop.instruction, "safe_calls": [c.text() for c in loop.agent.fallback.safe_calls]}
    told["asking"] = None if asking is None or asking.denied else told["asking"]
    if isinstance(loop.env, RemoteEnvironment):
        told["picture_age_s"] = loop.env.pictures.age_s()
    with contextlib.suppress(Exception):  # a world that broke down is the loop's to tell
        # Of a world elsewhere nothing is taken that its loop waits for.
        if loop.state.launched and isinstance(loop.env, PacedEnvironment) and (seen := loop.env.latest()) is not None:
            plain = {k: v for k, v in list(seen.data.items())[:MOST_DATA] if isinstance(v, int | float)}
            told |= {"data": plain, "seed": config.seed + seen.epoch - 1}
    return told


def _line(out: IO[bytes]) -> dict[str, Any] | None:
    """The next line that is an object; None at the end."""
    with contextlib.suppress(OSError, ValueError):  # closed
        for line in out:
            with contextlib.suppress(ValueError):
                if isinstance(said := json.loads(line), dict):
                    return said
    return None


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
        self._phase = "", 0.0  # what goes on, and since when
        self._viewer = Viewer(options, self.say) if options.view else None

    def say(self, line: str) -> None:
        self._lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def watch(self, loop: ControlLoop) -> None:
        """Begin to look on; stdin is read where somebody can type, or where it was asked for."""
        self._loop = loop
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
        loop, last_s = self._loop, -LOG_EVERY_S
        assert loop is not None, "watch() sets the loop before the thread starts"
        with Live(console=self._console, auto_refresh=False, transient=True) if self._live else nullcontext() as view:
            while not self._stop.wait(REFRESH_S):
                self._flush()
                now_s = time.monotonic()
                started = loop.phase != self._phase[0]
                if started:
                    self._phase = loop.phase, now_s
                if view is not None:
                    view.update(self._view(loop), refresh=True)
                elif started or now_s - last_s >= LOG_EVERY_S:
                    last_s = now_s
                    self._print(self._status(loop))
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

    def _status(self, loop: ControlLoop) -> str:
        """What goes on, and how long it has, while there are no ticks; else the newest counts."""
        phase, since_s = self._phase
        if phase != "running":
            seconds = time.monotonic() - since_s
            return f"{phase}, {seconds:.0f} s ..." if seconds >= 1 else f"{phase} ..."
        now, lost = loop.recent.snapshot(), loop.recorder.lost
        counts, p50 = now["counts"], now["latency_ms"]["p50"] or 0.0
        return (
            f"tick {counts['ticks']}, on time {counts['on_time']}, missed or skipped {now['causes'] or 'none'}, "
            f"latency p50 {p50:.2f} ms, episodes {now['episodes']}, last call {now['call'] or '-'}"
        ) + (f", {lost} lines of the record lost" if lost else "")

    def _view(self, loop: ControlLoop) -> Text:
        asking, state = loop.operator.asking, loop.operator.state
        stopped = "" if state == "running" else f" [{state.upper()}: the safe call acts]"
        may = "" if asking is None or asking.denied else f"may it {asking.call.text()}? /yes /no   "
        lines = (
            (f"{loop.config.env}: {loop.instruction}{stopped}", "bold"),
            (self._status(loop), ""),
            (f"{may}type an instruction, /help /pause /resume /stop", "dim"),
        )
        return Text("\n").join(Text(printable(line, MAX_LINE), style) for line, style in lines)


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
            text = line.removeprefix("\ufeff").strip()
            if (answer := take_word(text, "keyboard", loop.operator, loop.instructions)) is not None:
                say(answer)
            elif text:
                try:
                    loop.instruct(text)
                except UserError as error:
                    say(str(error))
    except (OSError, ValueError):
        return
