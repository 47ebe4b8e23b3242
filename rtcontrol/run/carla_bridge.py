"""`rtcontrol run --env carla-bridge`: the world is CARLA, joined by a bridge in its own process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import rtcontrol_client
from rtcontrol.hosts.processes import Guardian
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import CARLA, STANDIN, RunOptions
from rtcontrol.run.run import INTERNAL
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown

if TYPE_CHECKING:
    from rtcontrol.loop.loop import ControlLoop

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

    def __init__(self, command: Sequence[str]) -> None:
        self.gave_up: str | None = None
        self._command = list(command)
        self._clean = [*self._command[: self._command.index("-m") + 2], "--clean"]
        self._process: subprocess.Popen[str] | None = None
        self._left: Path | None = None  # what the process in hand leaves behind if it dies
        self._mistake: tuple[str, str] | None = None
        self._ready = threading.Event()
        self._changed = threading.Event()
        self._closing = False
        self._loop: ControlLoop | None = None
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
        if self._closing:
            return
        self._closing = True
        process = self._process
        try:
            if process is not None and process.stdin is not None:
                _end(process, process.stdin.close, END_S)
            self._thread.join(CLEAN_S + 5.0)
        except BaseException:
            # Whoever cannot wait must not leave a frozen server behind either.
            if process is not None:
                process.kill()
                process.wait()
            self._tidy()
            raise

    def __enter__(self) -> Self:
        self._process = _started(self._command, subprocess.PIPE)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- on a thread of its own ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None
        talking = threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True)
        talking.start()
        for line in process.stdout:
            self._hear(line)
        status = process.wait()
        talking.join(2.0)
        _close(process)
        self._tidy()
        over = self._closing or (self._loop is not None and self._loop.ended_by is not None)
        if self._mistake is not None:  # it said bye to its session first, so the run may be ending already
            self._give_up(" ".join(self._mistake))
        elif not over and status in IN_ORDER:
            self._give_up("The CARLA bridge ended before the run.")
        elif not over:
            self._give_up(f"The CARLA bridge died ({_died(status)}).")

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


def _pass_on(lines: Any) -> None:
    for line in lines:
        if text := line.rstrip():
            log.warning("%s", text)


def _died(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    number = signal.Signals(-status)
    return f"{number.name}, CARLA's client library" if number in ABORTS else number.name


def _end(process: subprocess.Popen[str], order: Callable[[], None], seconds: float) -> None:
    """Give the order to end, and wait; then terminate and kill. Close the pipes."""
    for end, within_s in ((order, seconds), (process.terminate, TERM_S), (process.kill, TERM_S)):
        with contextlib.suppress(OSError):
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
            break


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _started(command: Sequence[str], stderr: int | None = None) -> subprocess.Popen[str]:
    """Start a program that ends with us: it ends when its stdin does. Ctrl-C is for us alone."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=stderr,
        text=True,
        errors="replace",
        env=environment(),
        start_new_session=True,
    )


MODULE = "rtcontrol_client.carla.standin"
LISTENING = "listening on "
STANDIN_END_S = 5.0


class StandIn:
    """The stand-in's process: it listens at `port` once this is made, and ends with the block, or with whoever made it.
    UserError where it does not start."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        """`state`: where it writes what it knows of the world (JSON), every second and at its end."""
        command = [sys.executable, "-m", MODULE, "--port", "0", "--leash", *options]
        self.process = _started([*command, *(("--state", str(state)) if state else ())])
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(LISTENING):
            self.end()
            raise UserError("The CARLA stand-in does not start.", "Its own words stand above.")
        self.port = int(line.rpartition(":")[2])

    def end(self) -> int:
        """Its exit status; it writes its state as it ends."""
        _end(self.process, self.process.terminate, STANDIN_END_S)
        _close(self.process)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


AGENT = "driver"


def run_carla(
    options: RunOptions, ending: Shutdown, run: Callable[[RunOptions, Shutdown, str, BridgeProcess], int]
) -> int:
    """Check CARLA, then `run` with the bridge as the client at an endpoint. Gives the exit status: as a run's, 1 where
    the bridge gave up.

    UserError before anything is run where there is no CARLA server, or not one that the bridge can drive in.
    """
    if importlib.util.find_spec("carla") is None:
        raise UserError(
            "--env carla-bridge needs CARLA's client.",
            "Install it: pip install 'rtcontrol[carla]' (there are wheels for Python 3.11 and 3.12).",
        )
    options = replace(options, env=STANDIN if options.carla_standin else CARLA, agent=options.agent or AGENT)
    with contextlib.ExitStack() as stack:
        guardian = Guardian()  # it removes its folder, however we end
        stack.callback(guardian.end)
        folder = Path(guardian.folder)
        host, port = options.carla_host, options.carla_port
        if options.carla_standin:
            state = folder / "standin.json"
            stack.callback(_keep, state, options.out)
            port = stack.enter_context(StandIn(state=state)).port
            print(f"driving in the CARLA stand-in, not CARLA (port {port})", file=sys.stderr)
        endpoint = f"ipc://{folder}/wire"
        bridged = stack.enter_context(BridgeProcess(_command(options, host, port, endpoint)))
        bridged.await_ready()
        try:
            status = run(options, ending, endpoint, bridged)
        except Interrupted as interrupted:
            status = interrupted.status
        bridged.close()
        if (why := bridged.gave_up) is not None:
            print(why, file=sys.stderr)
            return status or INTERNAL
        return status
    raise AssertionError("an exit stack passes errors on")


def _command(config: RunOptions, host: str, port: int, endpoint: str) -> list[str]:
    """The bridge's command line."""
    command = [sys.executable, "-m", "rtcontrol_client.carla", "--supervised", "--connect", endpoint]
    command += [f"--carla-host={host}", "--carla-port", str(port)]
    # The server has one agent: whichever it is.
    command += ["--agent", "", "--connect-timeout", "0", "--hz", f"{config.hz:g}", "--clock", config.clock]
    command += ["--seed", str(config.seed)]
    if config.town is not None:
        command.append(f"--town={config.town}")
    if config.trace:
        command += ["--trace", str(config.out / "trace.jsonl")]
    if config.carla_standin:
        command.append("--standin")
        if config.clock == "lockstep":
            # Its lights change since it was started: from their beginning again.
            command.append("--reload")
    return command


def _keep(state: Path, out: Path) -> None:
    """The stand-in's last words about itself go to the run's folder."""
    if state.exists() and out.is_dir():
        shutil.copy(state, out / "standin.json")
