"""Execute `rtcontrol run --env carla-bridge`: start a process, the bridge, which connects a CARLA server to the run."""

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
from rtcontrol.hosts.processes import Guardian, module_command
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import CARLA, STANDIN, RunOptions
from rtcontrol.run.run import INTERNAL
from rtcontrol_client.shutdown import Interrupted, Shutdown

if TYPE_CHECKING:
    from rtcontrol.loop.loop import ControlLoop

# Time limits in seconds for the bridge's end (it first stops its car for over 3 s), after SIGTERM, and for cleaning.
END_S, TERM_S, CLEAN_S = 8.0, 4.0, 15.0
AGENT = "driver"
MODULE = "rtcontrol_client.carla.standin"
LISTENING = "listening on "
log = logging.getLogger("rtcontrol.run.carla_bridge")


def _child_environment() -> dict[str, str]:
    """Return the environment variables of a child process, which must find the modules of rtcontrol_client."""
    folders = (str(Path(rtcontrol_client.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _start_process(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program that ends when its stdin closes, also because this process died. It does not receive Ctrl-C."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=_child_environment(),
        start_new_session=True,
    )


def _end_process(process: subprocess.Popen[str], request_end: Callable[[], None], seconds: float) -> int:
    """Call `request_end`. If the process does not end in time, terminate, then kill it. Return its exit status."""
    for end, within_s in ((request_end, seconds), (process.terminate, TERM_S), (process.kill, TERM_S)):
        with contextlib.suppress(OSError):
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
            break
    return process.returncode


class BridgeProcess:
    """A context manager that runs the bridge's process and reads events from its stdout.

    Each event is a line of JSON. `failed`: the error if the bridge failed, else None.
    """

    def __init__(self, program: Sequence[str], *settings: str) -> None:
        self.failed: UserError | None = None
        self._program, self._settings = program, settings
        self._process: subprocess.Popen[str] | None = None
        self._journal: Path | None = None  # a file with the objects that the bridge created on the CARLA server
        self._ready = False
        self._event_arrived = threading.Event()
        self._closing = False
        self._loop: ControlLoop | None = None
        self._thread = threading.Thread(target=self._read_events, name="bridged", daemon=True)

    def await_ready(self) -> None:
        """Wait until the bridge has connected to CARLA and loaded the map. Raises UserError if it ends before that."""
        while not self._ready:
            self._event_arrived.wait(0.1)
            self._event_arrived.clear()
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise UserError if the bridge has failed. The server calls this while it waits for the bridge to connect."""
        if self.failed is not None:
            raise self.failed

    def stop_with_bridge(self, loop: ControlLoop) -> None:
        """Stop the control loop when the bridge fails."""
        self._loop = loop
        if self.failed is not None:
            loop.stop("bridge")

    def close(self) -> None:
        """End the bridge, and remove the objects that it left on the CARLA server."""
        process, closed, self._closing = self._process, self._closing, True
        if closed or process is None or process.stdin is None:
            return
        try:
            _end_process(process, process.stdin.close, END_S)
            self._thread.join(CLEAN_S + 5.0)
        except BaseException:  # even on an interrupt; in lockstep the CARLA server would stay frozen
            process.kill()
            process.wait()
            self._clean_server()
            raise

    def __enter__(self) -> Self:
        self._process = _start_process([*self._program, *self._settings])
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_events(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        with process:  # closes the pipes at the end
            for line in process.stdout:
                self._handle_line(line)
        self._clean_server()
        expected = self._closing or (self._loop is not None and self._loop.ended_by is not None)
        if self.failed is None and not expected:
            what = f"The CARLA bridge ended before the run (exit status {process.returncode})."
            self.failed = UserError(what, "Read the bridge's last messages above.")
        self._event_arrived.set()
        if self.failed is not None and self._loop is not None:
            self._loop.stop("bridge")

    def _handle_line(self, line: str) -> None:
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
            return  # not an event: a library printed this line
        self._event_arrived.set()

    def _clean_server(self) -> None:
        """Remove the objects of a bridge that died from the CARLA server."""
        if self._journal is None or not self._journal.exists():
            return
        command = [*self._program, "--clean", str(self._journal)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CLEAN_S, check=False, env=_child_environment()
            )
            result = done.stderr.strip()
        except subprocess.TimeoutExpired:
            result = f"not complete after {CLEAN_S:g} s; {self._journal} lists the remaining objects"
        log.warning("Removed the objects of the CARLA bridge from its server: %s", result)


class StandIn:
    """A process that simulates a CARLA server (the stand-in) at `port`. Raises UserError if it does not start. Every
    second, and at its end, the process writes the state of its world as JSON to the file `state`."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        command = module_command(MODULE, "--port", "0", "--leash", *options)
        self.process = _start_process([*command, *(("--state", str(state)) if state else ())])
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(LISTENING):
            self.end()
            raise UserError("The CARLA stand-in does not start.", "Read its messages above.")
        self.port = int(line.rpartition(":")[2])

    def end(self) -> int:
        """End the process, which first writes its state. Return its exit status."""
        with self.process:
            return _end_process(self.process, self.process.terminate, TERM_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def run_carla(
    options: RunOptions, ending: Shutdown, run: Callable[[RunOptions, Shutdown, str, BridgeProcess], int]
) -> int:
    """Start the CARLA bridge, and call `run` with the endpoint to which the bridge connects as a client. Return the
    run's exit status, or 1 if the bridge failed. Raises UserError if the bridge cannot start."""
    if importlib.util.find_spec("carla") is None:
        hint = "Install it: pip install 'rtcontrol[carla]' (there are wheels for Python 3.11 and 3.12)."
        raise UserError("--env carla-bridge needs CARLA's client.", hint)
    options = replace(options, env=STANDIN if options.carla_standin else CARLA, agent=options.agent or AGENT)
    host, port, status = options.carla_host, options.carla_port, INTERNAL
    with contextlib.ExitStack() as stack:
        guardian = Guardian()  # this process removes the folder even if the run is killed
        stack.callback(guardian.end)
        folder = Path(guardian.folder)
        if options.carla_standin:
            state = folder / "standin.json"
            stack.callback(_copy_state, state, options.out)
            port = stack.enter_context(StandIn(state=state)).port
            print(f"driving in the CARLA stand-in, not CARLA (port {port})", file=sys.stderr)
        endpoint = f"ipc://{folder}/wire"
        program = module_command("rtcontrol_client.carla")
        bridge = stack.enter_context(BridgeProcess(program, *_bridge_settings(options, host, port, endpoint)))
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


def _bridge_settings(options: RunOptions, host: str, port: int, endpoint: str) -> list[str]:
    """Return the command-line arguments of the bridge."""
    values = {"once": True, "endpoint": endpoint, "host": host, "port": port, "connect_timeout_s": 0}
    values |= {"hz": options.hz, "clock": options.clock, "seed": options.seed, "town": options.town}
    values["agent"] = ""  # "" means the server's only agent
    values["trace"] = options.out / "trace.jsonl" if options.trace else None
    values["standin"] = options.carla_standin
    # Reload the stand-in's map to reset its traffic lights, which are already running.
    values["reload"] = options.carla_standin and options.clock == "lockstep"
    return [f"--set={name}={value}" for name, value in values.items() if value is not None]


def _copy_state(state: Path, out: Path) -> None:
    """Copy the stand-in's last state into the run's folder, if both exist."""
    if state.exists() and out.is_dir():
        shutil.copy(state, out / "standin.json")
