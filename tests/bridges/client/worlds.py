"""Helpers that start real servers in processes, and clients of a scripted server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rtcontrol_client import Client
from rtcontrol_client.wire.messages import Hello
from tests.conformance.check.stand import Stand
from tests.helpers.processes import ROOT as ROOT
from tests.helpers.processes import environment
from tests.helpers.processes import free_port as free_port
from tests.helpers.processes import until as until

STEER: dict[str, Any] = {
    "name": "steer",
    "description": "Turn the wheel.",
    "parameters": {
        "type": "object",
        "properties": {"angle": {"type": "integer", "minimum": -30, "maximum": 30, "multipleOf": 10}},
        "required": ["angle"],
    },
}
STRAIGHT: dict[str, Any] = {"name": "steer", "arguments": {"angle": 0}}
OWN: dict[str, Any] = {"tools": [STEER], "instruction": "Follow the road.", "safe_call": STRAIGHT}


class Process:
    """A process of `rtcontrol serve` with a model that makes random calls; `limit` is a `ulimit` for the process."""

    def __init__(self, out: Path, port: int, *options: str, limit: str = "-c 0") -> None:
        self.endpoint, self.out = f"tcp://127.0.0.1:{port}", out
        self._command = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, "-m", "rtcontrol", "serve"]
        self._command += ["--model", "random", "--host", "inprocess", "--bind", self.endpoint]
        self._command += ["--out", str(out / "records"), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server (again), and wait until it listens."""
        log = self.out / f"log-{time.monotonic_ns()}.txt"
        with log.open("wb") as file:
            self.process = subprocess.Popen(self._command, stdout=file, stderr=subprocess.STDOUT, env=environment())
        until(
            lambda: "listening on" in log.read_text() or self.process.poll() is not None, "no server", 120, every=0.05
        )
        assert self.process.poll() is None, log.read_text()

    def logs(self) -> str:
        return "".join(p.read_text() for p in self.out.glob("log-*.txt"))

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit status."""
        self.signal(number)
        assert self.process is not None
        return self.process.wait(30)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.kill()


def until_fresh_at(client: Client, endpoint: str, text: str = "left 40 right 10") -> None:
    """Observe until the server at `endpoint` has decided: the active call may be from an earlier server."""
    counts: list[int] = []

    def fresh() -> bool:
        client.observe(text=text)
        client.wait(0.05)
        if not client.connected or client.address != endpoint:
            counts.clear()
            return False
        counts.append(client.statistics["fresh"])
        return counts[-1] > counts[0]

    until(fresh, f"no fresh call at {endpoint}: {client.trouble}")


def joined(stand: Stand, **options: Any) -> Client:
    """Return a client that the test's scripted server has welcomed."""
    client = Client(stand.endpoint, {**OWN, **options})
    stand.expect(Hello, 10.0, "hello")
    stand.welcome(pacing=options.get("pacing", "server"))
    until(lambda: client.connected, "no session", 10)
    return client
