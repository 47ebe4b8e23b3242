"""Peers that connect and say nothing: more than `select` can watch, and more than the system lets the server have."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.processes import free_port, until
from tests.rtcontrol.serve.wire_peer import WirePeer

IDLE = 1_150
# What makes a peer of a connection: ZMTP 3.0, NULL, a DEALER.
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


@contextmanager
def idle(endpoint: str, count: int) -> Iterator[None]:
    """So many ZeroMQ peers over plain sockets."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    with ExitStack() as stack:
        for _ in range(count):
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            peer.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
        yield


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_a_thousand_idle_peers_keep_nobody_out(process: Any) -> None:
    # The usual limit of a shell: the server takes what the system lets it have.
    port = free_port()
    served = process("--http", f"127.0.0.1:{port}", limit="-Sn 1024")
    with idle(served.endpoint, IDLE):
        until(lambda: open_files(served.process.pid) > IDLE)
        for _ in range(2):
            with WirePeer(served.endpoint) as peer:
                peer.enter(pacing="client", model="random")
                assert [peer.ask().status for _ in range(10)] == ["fresh"] * 10
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                assert answer.status == 200
        assert open_files(served.process.pid) > IDLE
    assert served.end() == 143
    assert "descriptor" not in served.logs() and "Traceback" not in served.logs()


def test_a_server_without_file_descriptors_says_so_and_serves_who_is_there(process: Any) -> None:
    served = process(limit="-n 200")
    with WirePeer(served.endpoint) as peer:
        peer.enter(pacing="client", model="random")
        peer.ask()
        with idle(served.endpoint, 200):
            until(lambda: "of 200 open files and connections are taken" in served.logs())
            assert peer.ask().status == "fresh"
        assert peer.ask().status == "fresh"
    assert served.end() == 143
