"""Servers for the tests of the wire protocol, in this process or in a separate one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.server import Server
from rtcontrol_client.wire.messages import Bye
from tests.bridges.client.worlds import Process, free_port
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import WirePeer


class Bench:
    """A running server and the peers of one test."""

    def __init__(self, server: Server, stack: ExitStack, lines: list[str]) -> None:
        self.server, self.lines, self._stack = server, lines, stack

    @property
    def sessions(self) -> Any:
        return self.server.sessions

    @property
    def out(self) -> Path:
        return self.server.options.out

    def peer(self) -> WirePeer:
        return self._stack.enter_context(WirePeer(self.server.router.endpoints[0]))

    def enter(self, **fields: Any) -> WirePeer:
        """Return a client that was welcomed."""
        peer = self.peer()
        peer.enter(**fields)
        return peer

    def report(self, peer: WirePeer) -> dict[str, Any]:
        """Say bye for the client of the first session, and return its report."""
        peer.send(Bye(session=peer.token))
        path = self.out / "session-0001" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), f"no {path}; {self.lines}")
        report: dict[str, Any] = json.loads(path.read_text())
        return report


@contextmanager
def serving(out: Path, http: Any = None, **options: Any) -> Iterator[Bench]:
    """Run a server in this process, by default with scripted deciders; `http` creates the gateway."""
    lines: list[str] = []
    # A lost client is soon found, a slow one is not taken for lost.
    base = {"out": out, "model": "random", "host": "inprocess", "heartbeat_s": 0.2, "silent_heartbeats": 20}
    with ExitStack() as stack:
        server = Server(ServeOptions(**{**base, **options}), ["tcp://127.0.0.1:*"], http=http, log_line=lines.append)
        stack.enter_context(server)
        yield Bench(server, stack, lines)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(tmp_path / "out", **options))


@pytest.fixture
def running(bench: Callable[..., Bench]) -> Bench:
    return bench()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a server in a separate process."""
    processes: list[Process] = []

    def make(*options: str, **arguments: str) -> Process:
        processes.append(Process(tmp_path, free_port(), *options, **arguments))
        processes[-1].start()
        return processes[-1]

    yield make
    for process in processes:
        process.kill()
