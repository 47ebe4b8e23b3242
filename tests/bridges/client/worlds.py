"""Real servers in processes of their own, and a TCP proxy whose connections can be cut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
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
    """`rtcontrol serve` with a model that draws calls at random."""

    def __init__(self, out: Path, port: int, *options: str) -> None:
        self.endpoint, self.out = f"tcp://127.0.0.1:{port}", out
        self._command = [sys.executable, "-m", "rtcontrol", "serve", "--model", "random", "--host", "inprocess"]
        self._command += ["--bind", self.endpoint, "--out", str(out / "records"), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start (again), and wait until it listens."""
        log = self.out / f"log-{time.monotonic_ns()}.txt"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self._command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        end_s = time.monotonic() + 120
        while "listening on" not in log.read_text():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, "the server does not start"
            time.sleep(0.05)

    def logs(self) -> str:
        return "".join(p.read_text() for p in self.out.glob("log-*.txt"))

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def free_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Passes bytes on to a port, until it is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = sockets.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self._open: list[sockets.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = sockets.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: sockets.socket, sink: sockets.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(sockets.SHUT_RDWR)

    def cut(self) -> None:
        """Every connection ends now; new ones are passed on."""
        cut, self._open = self._open, []
        for end in cut:
            with contextlib.suppress(OSError):
                end.shutdown(sockets.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def until(ready: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition; how long it takes is not judged."""
    end_s = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)
