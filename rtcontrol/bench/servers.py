"""The processes that a benchmark starts, and the sockets by which it reaches them."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import closing
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from typing import Any, Self

import zmq

from rtcontrol.models.errors import UserError

START_S = 120.0
TIMEOUT_MS = 30_000


class Servers:
    """The processes of a benchmark; all end with the `with` block."""

    def __init__(self) -> None:
        self._processes: list[Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def start(self, *arguments: str) -> None:
        """Run `python ARGUMENTS`; its output is shown only if it ends by itself."""
        command = [sys.executable, *arguments]
        self._processes.append(Popen(command, stdout=PIPE, stderr=STDOUT, start_new_session=True))

    def check(self) -> None:
        """Raise UserError when one has ended."""
        for process in self._processes:
            if process.poll() is not None and process.stdout is not None:
                lines = process.stdout.read().decode(errors="replace").strip().splitlines()
                raise UserError(f"A server of the benchmark ended: {' '.join(lines[-3:])}", "Run with --debug.")

    def wait_for(self, port: int) -> None:
        """Wait until a server listens on the port. Raises UserError when one ended, or after `START_S`."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up:
            self.check()
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise UserError(f"The server did not listen within {START_S:g} s.", "Run `rtcontrol serve` by hand.")

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.communicate(timeout=20)
            except TimeoutExpired:
                process.kill()
                process.communicate()


def free_port() -> int:
    """Return a TCP port that is free now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dealer(endpoint: str) -> Any:
    """Return a connected DEALER that gives up after `TIMEOUT_MS`."""
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    made.linger, made.rcvtimeo, made.sndtimeo = 0, TIMEOUT_MS, TIMEOUT_MS
    made.connect(endpoint)
    return made
