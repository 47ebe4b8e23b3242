"""The stand-in as a process of its own, for tests and for whoever starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]


class StandIn:
    """Listens when it is made. Ends with the block, or with the process that made it."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        self.state_path = state
        command = [sys.executable, "-m", "tests.bridges.carla.standin", "--port", "0", "--leash", *options]
        if state:
            command += ["--state", str(state)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout
        said = self.process.stdout.readline()
        if not said.startswith("listening on "):
            self.process.kill()
            raise RuntimeError(f"the CARLA stand-in did not start: {said!r}, exit status {self.process.wait()}")
        self.port = int(said.rsplit(":", 1)[1])

    def command(self, line: str) -> None:
        """Makes something go wrong, and returns once it does (see `__main__`); not for `die` and `stop`."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if said != f"done: {line}\n":
            raise RuntimeError(f"the CARLA stand-in answered {said!r} to {line!r}")

    def state(self) -> dict[str, Any]:
        """Its state now."""
        assert self.state_path
        self.command("state")
        found: dict[str, Any] = json.loads(self.state_path.read_text())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self, within_s: float = 5.0) -> int:
        """Its exit status; it writes its state as it ends."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        return self.process.returncode

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
