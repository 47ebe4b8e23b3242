"""Display a run in the terminal and on a web page, and pass typed instructions and commands to the control loop."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import stat
import subprocess
import termios
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
from rtcontrol.envs.pictures import encode_picture
from rtcontrol.envs.registry import WORLDS
from rtcontrol.envs.remote import RemoteEnvironment, RemotePicture
from rtcontrol.hosts.processes import module_command
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.loop.operator_control import run_typed_command
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import MAX_LINE, printable
from rtcontrol_client.shutdown import read_lines

# This module serves the page. It runs as a separate process, so that its threads cannot delay the control loop.
PROGRAM = "rtcontrol.gateway.view"
LOGGER = logging.getLogger("rtcontrol")  # the live view shows the warnings of this logger
EVERY_S = 0.25
START_S, END_S = 30.0, 3.0  # time limits in seconds for the start and the end of the page's process
PICTURE_PAUSE = 20  # pause between two pictures of a world, as a multiple of the time that a picture takes
MAX_DATA_FIELDS = 64  # the page gets at most this number of an observation's fields
LOG_EVERY_S = 5.0
QUIET_S = 5.0  # seconds for which a repeated message is not shown again


class Viewer:
    """The process that serves a run's web page, and the threads that send states to this process and read its messages.

    The threads never block the control loop. Raises UserError if the process does not start, for example because its
    port is in use.
    """

    def __init__(self, options: RunOptions, say: Callable[[str], None]) -> None:
        self._show_line = say
        self._number = 0  # number of the last tick that was sent to the page
        self._picture: RemotePicture | None = None  # the last picture that was sent to the page
        self._world_pictures = WorldPictures(say)
        self._answer: str | None = None  # the answer to the page's last message
        self._stop = threading.Event()
        self._feeder: threading.Thread | None = None
        self._process = subprocess.Popen(
            module_command(PROGRAM, str(options.view_port)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C does not end the page before the run
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._in, self._out = self._process.stdin, self._process.stdout
        first = (wait([self._out.fileno()], START_S) and _next_message(self._out)) or {}
        if "url" not in first:
            self.close()
            problem = first.get("failed", "The page's process did not start.")
            raise UserError(str(problem), "Use another view.port, or omit --view.")
        say(f"watch it at {first['url']}")

    def watch(self, loop: ControlLoop) -> None:
        """Start the threads that send the run's state to the page, and execute commands from the page."""
        self._feeder = threading.Thread(target=self._send_states, args=(loop,), name="viewer-feed", daemon=True)
        self._feeder.start()
        threading.Thread(target=self._read_messages, args=(loop,), name="viewer-listen", daemon=True).start()

    def close(self) -> None:
        """Send the final state to the page, and end the page's process."""
        self._stop.set()
        if self._feeder is not None:
            self._feeder.join(END_S)
        try:
            if self._feeder is None or not self._feeder.is_alive():  # if it is alive, it is blocked in a write
                with contextlib.suppress(OSError):
                    self._in.close()
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()

    def _send_states(self, loop: ControlLoop) -> None:
        with contextlib.suppress(OSError, ValueError):  # raised when the page's process has ended
            while not self._stop.wait(EVERY_S):
                self._send_state(loop, over=False)
            self._send_state(loop, over=True)

    def _send_state(self, loop: ControlLoop, over: bool) -> None:
        """Send the current state to the page. Blocks while the page is slow, which then receives fewer states."""
        shown = state_for_page(loop, self._number) | {"over": over, "said": self._answer}
        self._number = shown["number"]
        if isinstance(loop.env, RemoteEnvironment) and (newest := loop.env.pictures.newest) is not self._picture:
            self._picture = newest
            shown["picture"] = "" if newest is None else base64.b64encode(newest.data).decode()
        elif (data := self._world_pictures.newest(loop)) is not None:
            shown["picture"] = base64.b64encode(data).decode()
        self._in.write(json.dumps(shown, default=str).encode() + b"\n")
        self._in.flush()

    def _read_messages(self, loop: ControlLoop) -> None:
        while (message := _next_message(self._out)) is not None:
            try:
                if "instruct" in message:
                    self._answer = _handle_input(loop, message["instruct"], "page")
                elif "say" in message:
                    self._answer = loop.operator.execute_command(message["say"], "page", message.get("k"))
                    self._show_line(self._answer)
            except Exception as error:  # continue, because the next message may be /stop
                self._show_line(f"A command from the page failed ({type(error).__name__}: {error}).")


class WorldPictures:
    """The pictures that a Gymnasium world, or the world of a Python file, draws of itself by `picture()`. They use at
    most a twentieth of the time of the world's thread. After an error, there are no more pictures."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._over, self._slow = say, False, False
        self._due_s = 0.0

    def newest(self, loop: ControlLoop) -> bytes | None:
        """Return the bytes of a new picture file, or None if no picture is due, or the world draws no pictures."""
        env, started_s = loop.env, time.monotonic()
        due = loop.state.launched and not self._over and started_s >= self._due_s
        if not due or not isinstance(env, PacedEnvironment) or loop.config.env in WORLDS:
            return None
        try:
            picture = env.picture()
            file = None if picture is None else encode_picture(picture)
        except BaseException as error:  # even SystemExit of a user's code must not end this thread
            self._over = True
            self._say(f"The page shows no pictures, because picture() failed ({type(error).__name__}: {error}).")
            return None
        took_s = time.monotonic() - started_s
        self._due_s = started_s + PICTURE_PAUSE * took_s
        if took_s > loop.config.period_ns / 1e9 and not self._slow:
            self._slow = True
            self._say(f"picture() took {took_s * 1e3:.0f} ms, in which no call acts. Omit --view, or draw less.")
        return file


def state_for_page(loop: ControlLoop, since: int) -> dict[str, Any]:
    """Return the state of a run as JSON data for the page, with the ticks whose number is above `since`."""
    config = loop.config
    shown = loop.live_state.snapshot(since)
    pending = loop.operator.pending_approval
    shown |= {name: getattr(config, name) for name in ("env", "agent", "model", "hz")}
    shown |= {"deadline_ms": config.deadline_ns / 1e6, "phase": loop.phase, "state": loop.operator.state}
    shown |= {"proven": loop.instructions.proven, "refusal": loop.instructions.refusal}
    shown |= {"instruction": loop.instruction, "safe_calls": [c.text() for c in loop.agent.fallback.safe_calls]}
    shown["asking"] = None if pending is None or pending.denied else shown["asking"]
    if isinstance(loop.env, RemoteEnvironment):
        shown["picture_age_s"] = loop.env.pictures.age_s()
    with contextlib.suppress(Exception):  # ignore errors of the world, which the control loop reports
        # Read only local worlds, because reading a remote world would delay its control loop.
        if loop.state.launched and isinstance(loop.env, PacedEnvironment) and (last := loop.env.latest()) is not None:
            numbers = {k: v for k, v in list(last.data.items())[:MAX_DATA_FIELDS] if isinstance(v, int | float)}
            shown |= {"data": numbers, "seed": config.seed + last.epoch - 1}
    return shown


def _next_message(out: IO[bytes]) -> dict[str, Any] | None:
    """Return the next JSON object of a stream, skipping other lines, or None at the end of the stream."""
    with contextlib.suppress(OSError, ValueError):  # the stream was closed
        for line in out:
            with contextlib.suppress(ValueError):
                if isinstance(message := json.loads(line), dict):
                    return message
    return None


class LiveView(logging.Handler):
    """A display of a run in the terminal, on a separate thread. Any thread may call `say`, which never blocks. If a
    message repeats, for example in each tick, it is displayed again only after QUIET_S."""

    def __init__(self, options: RunOptions) -> None:
        super().__init__(logging.WARNING)
        self._console = Terminal(stderr=True)
        self._live, self._stdin = options.live and self._console.is_terminal, options.stdin
        self._lines: deque[str] = deque(maxlen=200)
        self._shown: dict[str, float] = {}
        self._phase = "", 0.0  # (current phase, time at which it started)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._viewer = Viewer(options, self.say) if options.view else None

    def say(self, line: str) -> None:
        self._lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def watch(self, loop: ControlLoop) -> None:
        """Start to display a control loop. Read stdin if it is a terminal, or if the option view.stdin is set."""
        LOGGER.addHandler(self)
        LOGGER.propagate = False
        self._thread = threading.Thread(target=self._refresh, args=(loop,), name="view", daemon=True)
        self._thread.start()
        if self._viewer is not None:
            self._viewer.watch(loop)
        # Without the option, do not read stdin, which may be meant for other programs of a script or a service.
        if not self._stdin and has_unread_lines(0):
            self.say("Lines on standard input are NOT read. To use them as instructions, add --set view.stdin=true.")
        if self._stdin or os.isatty(0):
            threading.Thread(target=_read_stdin, args=(loop, self.say), name="stdin", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        if self._viewer is not None:
            self._viewer.close()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        LOGGER.removeHandler(self)
        LOGGER.propagate = True

    def _refresh(self, loop: ControlLoop) -> None:
        last_s = -LOG_EVERY_S
        with Live(console=self._console, auto_refresh=False, transient=True) if self._live else nullcontext() as view:
            while not self._stop.wait(EVERY_S):
                self._print_queued()
                now_s = time.monotonic()
                if changed := loop.phase != self._phase[0]:
                    self._phase = loop.phase, now_s
                if view is not None:
                    view.update(self._status_panel(loop), refresh=True)
                elif changed or now_s - last_s >= LOG_EVERY_S:
                    last_s = now_s
                    self._print(self._status_line(loop))
        self._print_queued()

    def _print_queued(self) -> None:
        now = time.monotonic()
        while self._lines:
            line = self._lines.popleft()
            # A line `tick N: TEXT` counts as a repeated message if the last line with this TEXT is recent.
            kind = line.split(": ", 1)[1] if line.startswith("tick ") else line
            if now - self._shown.get(kind, -QUIET_S) >= QUIET_S:
                if len(self._shown) > 100:
                    self._shown.clear()
                self._shown[kind] = now
                self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(printable(line, MAX_LINE), markup=False, highlight=False, soft_wrap=True)

    def _status_line(self, loop: ControlLoop) -> str:
        """Return the status line, with the newest counts of the run or, before the run, the phase of its start."""
        phase, since_s = self._phase
        if phase != "running":
            return f"{phase}, {time.monotonic() - since_s:.0f} s ..."
        now, lost = loop.live_state.snapshot(), loop.recorder.lost_events
        counts, p50 = now["counts"], now["latency_ms"]["p50"] or 0.0
        return (
            f"tick {counts['ticks']}, on time {counts['on_time']}, missed or skipped {dict(now['causes']) or 'none'}, "
            f"latency p50 {p50:.2f} ms, episodes {now['episodes']}, last call {now['call'] or '-'}"
        ) + (f", {lost} lines of the record lost" if lost else "")

    def _status_panel(self, loop: ControlLoop) -> Text:
        pending, state = loop.operator.pending_approval, loop.operator.state
        stopped = "" if state == "running" or loop.phase != "running" else f" [{state.upper()}: the safe call acts]"
        question = ""
        if pending is not None and not pending.denied:
            question = f"allow {pending.call.text()}? /yes {pending.tick.k} /no {pending.tick.k}   "
        lines = (
            (f"{loop.config.env}: {loop.instruction}{stopped}", "bold"),
            (self._status_line(loop), ""),
            (f"{question}type an instruction, /help /pause /resume /stop", "dim"),
        )
        return Text("\n").join(Text(printable(line, MAX_LINE), style) for line, style in lines)


def has_unread_lines(number: int) -> bool:
    """Return whether the file descriptor `number` is an open pipe or file with unread data."""
    with contextlib.suppress(OSError):
        status = os.fstat(number)
        if stat.S_ISFIFO(status.st_mode):
            return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
        return stat.S_ISREG(status.st_mode) and status.st_size > os.lseek(number, 0, os.SEEK_CUR)
    return False


def _read_stdin(loop: ControlLoop, say: Callable[[str], None]) -> None:
    for text in read_lines():
        try:
            answer = _handle_input(loop, text, "keyboard")
        except UserError as error:
            answer = str(error)
        if answer is not None:
            say(answer)


def _handle_input(loop: ControlLoop, text: str, by: str) -> str | None:
    """Execute a command such as /pause, and return its answer. Any other text becomes the loop's instruction."""
    answer = run_typed_command(text, by, loop.operator, loop.instructions)
    if answer is None:
        loop.instruct(text)
    return answer
