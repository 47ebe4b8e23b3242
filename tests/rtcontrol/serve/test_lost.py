"""Lost clients, connections and servers, readers that are away, and the last messages before the end."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import zmq
from commands import report_in

from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.zmq_server import Router, RouterConnection
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Bye, CallMessage
from tests.helpers.processes import Program, free_port, full_pipe, until
from tests.rtcontrol.serve.wire_peer import WirePeer


def test_lost_client_is_made_safe_parked_and_resumed(running: Any) -> None:
    first = running.peer()
    token = first.enter(pacing="client", instruction="hover at 0.7").session
    for _ in range(3):
        first.ask()
    first.close()
    # A client-paced session sends nothing by itself: the heartbeat finds out.
    until(lambda: running.sessions.health()["sessions"]["parked"] == 1)
    assert running.sessions.threads()[0].session.refused == {}
    record = [*read_record(running.out / "session-0001" / "record.mcap")]
    assert record[-2]["why"] == "exit" and record[-1]["end"] == "client lost"

    second = running.peer()
    welcome = second.enter(resume=token)
    assert welcome.resumed and welcome.session == token and welcome.instruction == "hover at 0.7"
    assert welcome.agent == "lander" and welcome.pacing == "client"
    second.seq = first.seq
    # Ticks 0 to 2, then the safe call on the way out.
    assert second.ask().tick == 4
    second.send(Bye(session=token))
    until(lambda: (running.out / "session-0001" / "report-2.json").exists())
    assert report_in(running.out / "session-0001")["ticks"] == 3
    third = running.peer()
    error = third.denied(resume=token)
    assert error.code == "session" and error.retryable


def test_client_that_never_reads_does_not_affect_others(running: Any) -> None:
    slow, other = running.peer(), running.peer()
    slow.socket.rcvhwm = 1
    slow.enter(pacing="client")
    other.enter(pacing="client")
    for _ in range(3000):
        slow.observe("x" * 3000)
        if slow.seq % 10 == 0:
            assert other.ask().status == "fresh"
    assert running.sessions.health()["sessions"]["live"] == 2


def test_killed_server_forgets_and_ended_server_says_bye(process: Any) -> None:
    server = process()
    with WirePeer(server.endpoint) as peer:
        token = peer.enter(pacing="client").session
        peer.ask()
        server.kill()
        server.start()
        # The DEALER reconnects by itself; the new server knows nothing of it.
        peer.observe()
        assert peer.refused().code == "state"
        error = peer.denied(resume=token)
        assert error.code == "session" and error.retryable
        peer.enter(hz=20)
        peer.observe()
        peer.expect(CallMessage)
        assert server.end(signal.SIGTERM) == 143
        assert peer.expect(CallMessage, status="safe").call is not None
        assert peer.expect(Bye).reason == "server stopped"
    matches = re.search(r"SIGTERM: ending 1 sessions\n(?:.*\n)*.*(session-\d+): over \(server stopped\)", server.logs())
    assert matches is not None, server.logs()
    result = report_in(server.out / "records" / matches[1])
    assert result["ended_by"] == "server stopped" and result["wire"]["client"]["name"] == "test"


def test_routing_id_of_another_client_gives_no_session(running: Any) -> None:
    peer = running.enter(pacing="client")
    thief = zmq.Context.instance().socket(zmq.DEALER)
    identity = next(c.identity for c in running.sessions.core.peers)
    thief.linger = 0
    # libzmq keeps names that begin with a zero byte for itself; a thief can at best choose another one.
    thief.setsockopt(zmq.IDENTITY, b"i" + identity[1:])
    thief.connect(running.server.router.endpoints[0])
    other = WirePeer.__new__(WirePeer)
    other.socket, other.inbox, other.welcome, other.seq, other.epoch = thief, [], peer.welcome, 10, 0
    other.observe()
    assert other.refused().code == "state"
    thief.close(0)
    assert peer.ask().status == "fresh"


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
    receive = lambda connection, decode, size: connections.put(connection)  # noqa: E731
    sessions: Any = SimpleNamespace(options=ServeOptions(), receive=receive)
    router = Router(sessions, ["tcp://127.0.0.1:*"], None)
    router.start()
    with WirePeer(router.endpoints[0]) as peer:
        peer.hello(agent="lander")
        connection = connections.get(timeout=60)
        router._stopping = True
        os.eventfd_write(router._wake, 1)
        router._thread.join()
        with router._socket_lock:  # so it waits
            connection.send(Bye(reason="the end"))
        router.close()
        assert peer.expect(Bye).reason == "the end"
