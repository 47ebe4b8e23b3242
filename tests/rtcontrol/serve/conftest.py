"""Servers for the tests of the wire: in this process, or one of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.server import Server

sys.path.insert(0, str(Path(__file__).parent))

from wire_peer import WirePeer

from tests.helpers.processes import environment


class Bench:
    """A running server and the peers of one test."""

    def __init__(self, server: Server, stack: ExitStack, said: list[str]) -> None:
        self.server, self.said, self._stack = server, said, stack

    @property
    def admission(self) -> Any:
        return self.server.admission

    @property
    def out(self) -> Path:
        return self.server.options.out

    def peer(self) -> WirePeer:
        return self._stack.enter_context(WirePeer(self.server.endpoints[0]))

    def enter(self, **fields: Any) -> WirePeer:
        """A peer that was welcomed."""
        peer = self.peer()
        peer.enter(**fields)
        return peer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a server in this process; scripted deciders, unless the options say else."""
    with ExitStack() as stack:

        def make(**options: Any) -> Bench:
            said: list[str] = []
            given = {"out": tmp_path / "out", "model": "random", "host": "inprocess", **options}
            server = stack.enter_context(Server(ServeOptions(**given), ["tcp://127.0.0.1:*"], say=said.append))
            return Bench(server, stack, said)

        yield make


class Process:
    """`rtcontrol serve` as a process; `lines` are what it said up to `listening`. `limit`: a `ulimit` for it."""

    def __init__(self, arguments: list[str], limit: str = "-c 0") -> None:
        self.popen = subprocess.Popen(
            ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, "-m", "rtcontrol", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        self.lines: list[str] = []
        for line in self.popen.stdout:
            self.lines.append(line.strip())
            if line.startswith("listening on http"):
                self.url = line.split()[-1]
                return
            if line.startswith("listening on "):
                self.endpoint = line.split()[-1]
                if "--http" not in arguments:
                    return
        raise AssertionError(f"the server ended: {self.lines}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[str]]:
        """Send a signal; gives the exit status and the last lines."""
        self.popen.send_signal(number)
        rest, _ = self.popen.communicate(timeout=30)
        return self.popen.returncode, rest.splitlines()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(*arguments: str, **options: str) -> Process:
        given = ["--bind", "tcp://127.0.0.1:*", "--out", str(tmp_path / "out"), "--model", "random", *arguments]
        made.append(Process(given, **options))
        return made[-1]

    yield make
    for one in made:
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.wait()
