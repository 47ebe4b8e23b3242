"""Processes for the CARLA bridge's tests: the bridge, a run, the stand-in, and a server that sends the test's calls."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from rtcontrol.run import carla_bridge
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.ros2 import brain
from tests.helpers import processes
from tests.helpers.processes import until

Line = dict[str, Any]


class Brain(brain.Brain):
    """A server at 16 Hz that always sends the call in `wanted`."""

    def __init__(self, name: str = "set_speed", **arguments: Any) -> None:
        self.wanted = FunctionCall(name=name, arguments=arguments or {"kmh": 50})
        super().__init__(lambda text, instruction: self.wanted)

    def call(self, name: str, **arguments: Any) -> None:
        """Send this call from now on."""
        self.wanted = FunctionCall(name=name, arguments=arguments)


class Program(processes.Program):
    """A child process that drives, with a log of its own; `trace` has its steps."""

    def __init__(self, folder: Path, command: list[str], trace: Path) -> None:
        self.folder, self._trace = folder, trace
        cache = {"RTCONTROL_CACHE": str(folder / "cache")}
        log = folder / f"log-{time.monotonic_ns()}.txt"
        super().__init__(["-m", *command], log, env=cache, stdin=subprocess.PIPE)

    def trace(self) -> list[Line]:
        """Return the trace, one entry per step."""
        if not self._trace.exists():
            return []
        return [json.loads(line) for line in self._trace.read_text().splitlines() if line.endswith("}")]

    def last(self) -> Line:
        return (self.trace() or [{"kmh": 0.0, "frame": 0, "t_s": 0.0}])[-1]

    def reaches(self, kmh: float) -> None:
        """Wait until the car reaches this speed."""
        until(lambda: self.last()["kmh"] >= kmh or self.popen.poll() is not None, f"not at {kmh} km/h", 30)
        assert self.popen.poll() is None, self.log()

    def left(self) -> list[Path]:
        """Return the journals of changes that are not undone."""
        return sorted((self.folder / "cache" / "carla").glob("*.json"))


def bridge(folder: Path, endpoint: str, port: int, *options: str) -> Program:
    """Start the bridge alone."""
    trace = folder / "trace.jsonl"
    command = ["rtcontrol_client.carla", "--connect", endpoint, "--carla-port", str(port)]
    command += ["--set=standin=true", f"--set=trace={trace}", *options]
    return Program(folder, command, trace)


def run(folder: Path, port: int | None, *options: str, trace: bool = True) -> Program:
    """Start `rtcontrol run --env carla-bridge`; without a port it starts its own stand-in."""
    out = folder / "out"
    command = ["rtcontrol", "run", "--env", "carla-bridge", "--no-live", "--out", str(out)]
    command += ["--set", "carla.trace=true"] if trace else []
    command += ["--set", "carla.standin=true" if port is None else f"carla.port={port}"]
    return Program(folder, [*command, *options], out / "trace.jsonl")


class StandIn(carla_bridge.StandIn):
    """A stand-in process that listens once it is created, and ends with the block or with the test process."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        super().__init__(*options, state=state)
        self.state_path = state

    def command(self, line: str) -> None:
        """Cause a fault (see the stand-in's `__main__`), and return when it is active."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said == f"done: {line}\n", f"the CARLA stand-in answered {said!r} to {line!r}"

    def state(self) -> dict[str, Any]:
        """Return the stand-in's current state."""
        assert self.state_path
        self.command("state")
        found: dict[str, Any] = json.loads(self.state_path.read_text())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
