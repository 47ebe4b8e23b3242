"""Real servers in processes, a TCP proxy whose connections can be cut, and clients that a thread of theirs connects."""

from __future__ import annotations

import contextlib
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rtcontrol_client import Client, ClientError
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
    """`rtcontrol serve` with a model that draws calls at random; `limit` is a `ulimit` for it."""

    def __init__(self, out: Path, port: int, *options: str, limit: str = "-c 0") -> None:
        self.endpoint, self.out = f"tcp://127.0.0.1:{port}", out
        self._command = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, "-m", "rtcontrol", "serve"]
        self._command += ["--model", "random", "--host", "inprocess", "--bind", self.endpoint]
        self._command += ["--out", str(out / "records"), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start (again), and wait until it listens."""
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
        """Send a signal; gives the exit status."""
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
    """Observe until the server there has decided anew: what is in force may be of the one before."""
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
                try:
                    far = sockets.create_connection(("127.0.0.1", self._to))
                except OSError:  # there is no server for now
                    near.close()
                    continue
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


# A client that a thread of its own connects, since the test is its server.


class Joining:
    """`client` or `error` once it has been answered."""

    def __init__(self, stand: Stand, **options: Any) -> None:
        self.client: Client | None = None
        self.error: ClientError | None = None
        self.thread = threading.Thread(target=self._join, args=(stand.endpoint, options), daemon=True)
        self.thread.start()

    def _join(self, endpoint: str, options: dict[str, Any]) -> None:
        try:
            self.client = Client.connect(endpoint, **{**OWN, **options})
        except ClientError as error:
            self.error = error

    def ready(self) -> Client:
        self.thread.join(10)
        assert self.client is not None, self.error
        return self.client

    def refused(self) -> ClientError:
        self.thread.join(10)
        assert self.error is not None
        return self.error


def joined(stand: Stand, **options: Any) -> Client:
    """Greeted and welcomed."""
    joining = Joining(stand, **options)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    return joining.ready()
