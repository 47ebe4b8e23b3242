"""The server's process: output that nobody reads, and the last messages before the end."""

from __future__ import annotations

import os
import queue
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.zmq_server import Router, RouterConnection
from rtcontrol_client.wire.messages import Bye
from tests.helpers.processes import Program, free_port, full_pipe
from tests.rtcontrol.serve.wire_peer import WirePeer

NO_REQUEST = b"\x16\x03\x01 no request\r\n\r\n"


def test_server_with_full_pipes_serves_and_ends(tmp_path: Path) -> None:
    port, endpoint = free_port(), f"ipc://{tmp_path}/s"
    arguments = ["-m", "rtcontrol", "serve", "--model", "random", "--host", "inprocess", "--bind", endpoint]
    arguments += ["--http", f"127.0.0.1:{port}", "--out", str(tmp_path / "out")]
    with full_pipe() as (_, writing):
        server = Program(arguments, tmp_path / "log", stdout=writing, stderr=writing)
        try:
            with WirePeer(endpoint) as refused, WirePeer(endpoint) as peer:
                for _ in range(10):
                    refused.hello(agent="nobody")
                    assert refused.refused(60).code in ("agent", "rate")
                for _ in range(3):
                    peer.enter(pacing="client")
                    assert peer.ask().status == "fresh"
                    peer.send(Bye(session=peer.token))
                peer.enter(pacing="client")
                for _ in range(50):  # each is told
                    with socket.create_connection(("127.0.0.1", port), 5) as line:
                        line.settimeout(5)
                        line.sendall(NO_REQUEST)
                        assert line.recv(4096).startswith(b"HTTP/1.1 400")
                assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
                assert peer.ask().status == "fresh"
            assert server.end(signal.SIGTERM) == 143
        finally:
            server.kill()
    assert len(list((tmp_path / "out").glob("session-*/report.json"))) == 4


def test_last_messages_leave_after_the_routers_thread() -> None:
    connections: queue.Queue[RouterConnection] = queue.Queue()
    take = lambda connection, decode: connections.put(connection)  # noqa: E731
    sessions: Any = SimpleNamespace(options=ServeOptions(), take=take)
    router = Router(sessions, ["tcp://127.0.0.1:*"], None)
    router.start()
    with WirePeer(router.endpoints[0]) as peer:
        peer.hello(agent="lander")
        connection = connections.get(timeout=60)
        router._stopping = True
        os.eventfd_write(router._wake, 1)
        router._thread.join()
        with router._using:  # so it waits
            connection.send(Bye(reason="the end"))
        router.close()
        assert peer.expect(Bye).reason == "the end"
