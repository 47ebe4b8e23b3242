"""`rtcontrol run --env carla-bridge`: run in CARLA by a bridge that has its own process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import rtcontrol_client
from rtcontrol.hosts.processes import Guardian
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import CARLA, STANDIN, RunOptions
from rtcontrol.run.run import INTERNAL
from rtcontrol_client.shutdown import Interrupted, Shutdown

if TYPE_CHECKING:
    from rtcontrol.loop.loop import ControlLoop

# The bridge first brakes its car to a halt, which takes more than 3 s.
END_S, TERM_S, CLEAN_S = 8.0, 4.0, 15.0
AGENT = "driver"
MODULE = "rtcontrol_client.carla.standin"
LISTENING = "listening on "
log = logging.getLogger("rtcontrol.run.carla_bridge")


def _environment() -> dict[str, str]:
    """Return environment variables for a child process that imports the client's modules, installed or not."""
    folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program that ends when its stdin closes, so that it never outlives this process; it ignores Ctrl-C."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=_environment(),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str], order: Callable[[], None], seconds: float) -> int:
    """Ask a process to end and wait for it, then terminate it, then kill it. Return the exit status."""
    for end, within_s in ((order, seconds), (process.terminate, TERM_S), (process.kill, TERM_S)):
        with contextlib.suppress(OSError):
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
            break
    return process.returncode


class BridgeProcess:
    """A context manager that runs the bridge's process and reads events from its stdout.

    Each event is a line of JSON: `begun`, `ready` or `mistake`. If the run ended because the bridge ended, `failed` is
    the reason.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.failed: UserError | None = None
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None
        self._journal: Path | None = None  # lists the objects that a dead bridge leaves on the server
        self._ready = False
        self._changed = threading.Event()
        self._closing = False
        self._loop: ControlLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="bridged", daemon=True)

    def await_ready(self) -> None:
        """Wait until the bridge has its world. Raises UserError if the bridge ends before."""
        while not self._ready:
            self._changed.wait(0.1)
            self._changed.clear()
            self.check()

    def check(self) -> None:
        """Raise UserError if the bridge has ended; called while the server waits for the bridge's hello."""
        if self.failed is not None:
            raise self.failed

    def joined(self, loop: ControlLoop) -> None:
        """Store the control loop of the bridge's session; the loop is stopped when the bridge ends."""
        self._loop = loop
        if self.failed is not None:
            loop.stop("bridge")

    def close(self) -> None:
        """Ask the bridge to end, and clean up what the bridge left on the server."""
        process, closed, self._closing = self._process, self._closing, True
        if closed or process is None or process.stdin is None:
            return
        try:
            _end(process, process.stdin.close, END_S)
            self._thread.join(CLEAN_S + 5.0)
        except BaseException:  # an interrupted wait must not leave a frozen server
            process.kill()
            process.wait()
            self._tidy()
            raise

    def __enter__(self) -> Self:
        self._process = _start(self._command)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _watch(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        with process:  # closes its pipes
            for line in process.stdout:
                self._receive(line)
        self._tidy()
        over = self._closing or (self._loop is not None and self._loop.ended_by is not None)
        if self.failed is None and not over:
            what = f"The CARLA bridge ended before the run (exit status {process.returncode})."
            self.failed = UserError(what, "The last messages of the bridge are above.")
        self._changed.set()
        if self.failed is not None and self._loop is not None:
            self._loop.stop("bridge")

    def _receive(self, line: str) -> None:
        try:
            event = json.loads(line)
            match event["event"]:
                case "begun":
                    self._journal = Path(event["journal"])
                case "ready":
                    self._ready = True
                case "mistake":
                    self.failed = UserError(event["what"], event["remedy"])
        except (ValueError, TypeError, KeyError):
            return  # output of a library
        self._changed.set()

    def _tidy(self) -> None:
        """Remove what a dead bridge left on the server."""
        if self._journal is None or not self._journal.exists():
            return
        command = [*self._command[: self._command.index("-m") + 2], "--clean", str(self._journal)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CLEAN_S, check=False, env=_environment()
            )
            result = done.stderr.strip()
        except subprocess.TimeoutExpired:
            result = f"not undone within {CLEAN_S:g} s; the list is kept: {self._journal}"
        log.warning("cleaned up after the CARLA bridge: %s", result)


class StandIn:
    """The process of the CARLA stand-in, which listens at `port`. Raises UserError if the process does not start.
    The stand-in writes the state of its world as JSON to the file `state`, every second and at its end."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        command = [sys.executable, "-m", MODULE, "--port", "0", "--leash", *options]
        self.process = _start([*command, *(("--state", str(state)) if state else ())])
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(LISTENING):
            self.end()
            raise UserError("The CARLA stand-in does not start.", "The messages of the stand-in are above.")
        self.port = int(line.rpartition(":")[2])

    def end(self) -> int:
        """End the stand-in, which first writes its state, and return the exit status."""
        with self.process:
            return _end(self.process, self.process.terminate, TERM_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def run_carla(
    options: RunOptions, ending: Shutdown, run: Callable[[RunOptions, Shutdown, str, BridgeProcess], int]
) -> int:
    """Check CARLA, then call `run` with the bridge as the client at an endpoint.
    Return the run's exit status, or 1 if the bridge gave up. Raises UserError before the run if no bridge can drive."""
    if importlib.util.find_spec("carla") is None:
        hint = "Install it: pip install 'rtcontrol[carla]' (there are wheels for Python 3.11 and 3.12)."
        raise UserError("--env carla-bridge needs CARLA's client.", hint)
    options = replace(options, env=STANDIN if options.carla_standin else CARLA, agent=options.agent or AGENT)
    host, port, status = options.carla_host, options.carla_port, INTERNAL
    with contextlib.ExitStack() as stack:
        guardian = Guardian()  # the guardian removes the folder however this process ends
        stack.callback(guardian.end)
        folder = Path(guardian.folder)
        if options.carla_standin:
            state = folder / "standin.json"
            stack.callback(_keep, state, options.out)
            port = stack.enter_context(StandIn(state=state)).port
            print(f"driving in the CARLA stand-in, not CARLA (port {port})", file=sys.stderr)
        endpoint = f"ipc://{folder}/wire"
        bridge = stack.enter_context(BridgeProcess(_command(options, host, port, endpoint)))
        bridge.await_ready()
        try:
            status = run(options, ending, endpoint, bridge)
        except Interrupted as interrupted:
            status = interrupted.status
        bridge.close()
        if bridge.failed is not None:
            print(bridge.failed, file=sys.stderr)
            status = status or INTERNAL
    return status


def _command(options: RunOptions, host: str, port: int, endpoint: str) -> list[str]:
    """Return the command line that starts the bridge."""
    values = {"once": True, "endpoint": endpoint, "host": host, "port": port, "connect_timeout_s": 0}
    values |= {"hz": options.hz, "clock": options.clock, "seed": options.seed, "town": options.town}
    values["agent"] = ""  # empty: the only agent of the server
    values["trace"] = options.out / "trace.jsonl" if options.trace else None
    values["standin"] = options.carla_standin
    # A reload sets the traffic lights of the stand-in to their first state; they change from its start on.
    values["reload"] = options.carla_standin and options.clock == "lockstep"
    settings = (f"--set={name}={value}" for name, value in values.items() if value is not None)
    return [sys.executable, "-m", "rtcontrol_client.carla", *settings]


def _keep(state: Path, out: Path) -> None:
    """Copy the last state of the stand-in to the run's folder."""
    if state.exists() and out.is_dir():
        shutil.copy(state, out / "standin.json")
