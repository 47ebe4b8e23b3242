"""A bridge in a process of its own: listened to, started again when it dies, cleaned up after."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import rtcontrol_client
from rtcontrol.models.errors import UserError
from rtcontrol_client.shutdown import STATUS

if TYPE_CHECKING:
    from rtcontrol.loop.loop import ControlLoop

RESTARTS = 5
# Its car is braked to a halt first: 3 s of driving, and then some.
END_S, TERM_S, CLEAN_S = 8.0, 4.0, 15.0
IN_ORDER = {0, *STATUS.values()}
ABORTS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL}
log = logging.getLogger("rtcontrol.run.carla_bridge")


def environment() -> dict[str, str]:
    """This process's, for a child that runs the client's modules, also those of a tree that is not installed."""
    folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


class BridgeProcess:
    """The process while it is entered. Its stdout is a line of JSON an event (`begun`, `ready`, `mistake`), its stderr
    is passed on, its stdin is held open: it ends when that ends, so it never outlives us.

    `gave_up` says why there is no bridge any more, where that ended the run.
    """

    def __init__(self, command: Sequence[str], out: Path) -> None:
        self.restarts = 0
        self.gave_up: str | None = None
        self.deaths: list[dict[str, Any]] = []
        self._command, self._out = list(command), out
        self._clean = [*self._command[: self._command.index("-m") + 2], "--clean"]
        self._process: subprocess.Popen[str] | None = None
        self._left: Path | None = None  # what the process in hand leaves behind if it dies
        self._mistake: tuple[str, str] | None = None
        self._ready = threading.Event()
        self._changed = threading.Event()
        self._closing = self._closed = False
        self._loop: ControlLoop | None = None
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="bridged", daemon=True)

    # -- for the run --------------------------------------------------------------------------------------------------

    def await_ready(self) -> None:
        """Until the bridge has its world. UserError for its mistakes, and where it cannot live."""
        while not self._ready.is_set():
            self._changed.wait(0.1)
            self._changed.clear()
            self.check()

    def check(self) -> None:
        """UserError where there is no bridge any more; called while its hello is waited for."""
        if self._mistake is not None:
            raise UserError(*self._mistake)
        if self.gave_up is not None:
            raise UserError(self.gave_up, "Its last words stand above.")

    def joined(self, loop: ControlLoop) -> None:
        """Its session began: this loop ends when the bridge does for good."""
        self._loop = loop
        if self.gave_up is not None:
            loop.stop("bridge")

    def close(self) -> None:
        """Let the bridge end in order, and undo what it could not."""
        if self._closed:
            return
        self._closing = self._closed = True
        process = self._process
        try:
            if process is not None:
                _end(process)
            self._thread.join(CLEAN_S + 5.0)
        except BaseException:
            # Whoever cannot wait must not leave a frozen server behind either.
            if process is not None:
                process.kill()
                process.wait()
            self._tidy()
            raise
        self._tell()

    def __enter__(self) -> Self:
        self._start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- on a thread of its own ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._left = None
        # Ctrl-C is for us: the bridge ends when the run has.
        self._process = subprocess.Popen(
            [*self._command, *(["--wait-carla"] if self.restarts else [])],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=environment(),
            start_new_session=True,
        )

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process is not None and process.stdout is not None and process.stderr is not None
            talking = threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True)
            talking.start()
            for line in process.stdout:
                self._hear(line)
            status, ended_s = process.wait(), time.monotonic()
            talking.join(2.0)
            _close(process)
            self._tidy()
            if not self._again(status, ended_s):
                return

    def _hear(self, line: str) -> None:
        try:
            event = json.loads(line)
            name = event["event"]
        except (ValueError, TypeError, KeyError):
            return  # a library's own words
        if name == "begun":
            self._left = Path(event["journal"])
        elif name == "ready":
            self._ready.set()
        elif name == "mistake":
            self._mistake = (event["what"], event["remedy"])
        self._changed.set()

    def _again(self, status: int, ended_s: float) -> bool:
        """What the end of a process means; whether another one was started."""
        if self._mistake is not None:
            # It said bye to its session first, so the run may be ending already.
            self._give_up(" ".join(self._mistake))
            return False
        if self._closing or (self._loop is not None and self._loop.ended_by is not None):
            return False
        if status in IN_ORDER:
            self._give_up("The CARLA bridge ended before the run.")
            return False
        died = _died(status)
        if status >= 0 and not self._ready.is_set():
            # Its own fault, and it would be again.
            self._give_up(f"The CARLA bridge failed before it drove ({died}).")
            return False
        self.deaths.append({"t_s": round(ended_s - self._began_s, 3), "how": died, "clock_s": round(ended_s, 3)})
        if self.restarts >= RESTARTS:
            self._give_up(f"The CARLA bridge died {RESTARTS + 1} times, at last {died}.")
            return False
        log.warning("the CARLA bridge died (%s): started again", died)
        self.restarts += 1
        self._keep_report()
        self._start()
        if self._closing and self._process is not None:
            _end(self._process)  # `close` ended the one before
        return True

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._changed.set()
        if self._loop is not None:
            self._loop.stop("bridge")

    def _tidy(self) -> None:
        """Undo what a bridge left on the server."""
        left = self._left
        if left is None or not left.exists():
            return
        try:
            command = [*self._clean, str(left)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CLEAN_S, check=False, env=environment()
            )
            said = done.stderr.strip()
        except subprocess.TimeoutExpired:
            said = f"not undone within {CLEAN_S:g} s; the list is kept: {left}"
        log.warning("cleaned up after the CARLA bridge: %s", said)

    # -- what it told of itself ---------------------------------------------------------------------------------------

    @property
    def _report(self) -> Path:
        return self._out / "bridge.json"

    def _keep_report(self) -> None:
        with contextlib.suppress(OSError):
            self._report.rename(self._out / f"bridge-{self.restarts}.json")

    def _tell(self) -> None:
        """Add to its figures what only we know."""
        try:
            told = json.loads(self._report.read_text("utf-8"))
        except (OSError, ValueError):
            if not self.deaths:
                return
            told = {}
        told |= {"restarts": self.restarts, "deaths": self.deaths, "gave_up": self.gave_up}
        with contextlib.suppress(OSError):
            self._report.write_text(json.dumps(told, indent=2) + "\n", "utf-8")


def _pass_on(lines: Any) -> None:
    for line in lines:
        if text := line.rstrip():
            log.warning("%s", text)


def _died(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    number = signal.Signals(-status)
    return f"{number.name}, CARLA's client library" if number in ABORTS else number.name


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its input is the order to end."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for end, seconds in ((None, END_S), (process.terminate, TERM_S), (process.kill, TERM_S)):
        if end is not None:
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


MODULE = "rtcontrol_client.carla.standin"
LISTENING = "listening on "
STANDIN_END_S = 5.0


class StandIn:
    """The stand-in's process: it listens at `port` once this is made, and ends with the block, or with whoever made it.
    UserError where it does not start."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        """`state`: where it writes what it knows of the world (JSON), every second and at its end."""
        # It ends with us, however we end.
        command = [sys.executable, "-m", MODULE, "--port", "0", "--leash", *options]
        self.process = subprocess.Popen(
            [*command, *(("--state", str(state)) if state else ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(LISTENING):
            self.end()
            raise UserError("The CARLA stand-in does not start.", "Its own words stand above.")
        self.port = int(line.rpartition(":")[2])

    def end(self) -> int:
        """Its exit status; it writes its state as it ends."""
        for end in (self.process.terminate, self.process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STANDIN_END_S)
                break
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
