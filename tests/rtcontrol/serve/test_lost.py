"""What happens when a client, a connection or the server goes away."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import zmq

from rtcontrol.bridges.wire.messages import Bye, CallMessage
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import Program, until
from tests.rtcontrol.serve.wire_peer import WirePeer


def test_lost_client_is_made_safe_parked_and_resumed(made: Any) -> None:
    first = made.peer()
    token = first.enter(pacing="client", instruction="hover at 0.7").session
    for _ in range(3):
        first.ask()
    first.close()
    # A client-paced session sends nothing by itself: the heartbeat finds out.
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    assert made.admission.sessions()[0]["refused"] == {}
    record = [*read_record(made.out / "session-0001" / "record.mcap")]
    assert record[-2]["why"] == "exit" and record[-1]["end"] == "client lost"

    second = made.peer()
    welcome = second.enter(resume=token)
    assert welcome.resumed and welcome.session == token and welcome.instruction == "hover at 0.7"
    assert welcome.agent == "lander" and welcome.pacing == "client"
    second.seq = first.seq
    # Ticks 0 to 2, then the safe call on the way out.
    assert second.ask().tick == 4
    second.send(Bye(session=token))
    until(lambda: (made.out / "session-0001" / "report-2.json").exists())
    assert json.loads((made.out / "session-0001" / "report.json").read_text())["ticks"] == 3
    third = made.peer()
    error = third.denied(resume=token)
    assert error.code == "session" and error.retryable


def test_resuming_takes_over_a_connection_that_nobody_missed_yet(made: Any) -> None:
    first, second = made.peer(), made.peer()
    first.enter(pacing="client")
    first.ask()
    second.enter(resume=first.token)
    second.seq = first.seq
    assert second.ask().status == "fresh"
    first.observe(seq=100)
    assert first.refused().code == "state"
    assert made.admission.health()["sessions"] == {"opening": 0, "live": 1, "parked": 0}


def test_nobody_comes_back_within_the_grace(bench: Any) -> None:
    made = bench(session_grace_s=0.2)
    peer = made.enter(hz=20)
    peer.observe()
    peer.close()
    until(lambda: any("nobody came back" in line for line in made.said))
    assert made.admission.sessions() == []


def test_heartbeats_keep_a_quiet_client(bench: Any) -> None:
    made = bench(heartbeat_s=0.1, silent_heartbeats=3)
    peer = made.enter(pacing="client")
    assert peer.receive(0.6) is None  # pings are answered on the way
    assert peer.ask().status == "fresh"


def test_a_client_that_never_reads_harms_nobody(made: Any) -> None:
    slow, other = made.peer(), made.peer()
    slow.socket.rcvhwm = 1
    slow.enter(pacing="client")
    other.enter(pacing="client")
    for _ in range(3000):
        slow.observe("x" * 3000)
        if slow.seq % 10 == 0:
            assert other.ask().status == "fresh"
    assert made.admission.health()["sessions"]["live"] == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_server_that_ends_makes_everybody_safe_and_says_bye(process: Any, number: signal.Signals) -> None:
    server = process()
    with WirePeer(server.endpoint) as peer:
        peer.enter(hz=20)
        peer.observe()
        peer.expect(CallMessage)
        assert server.end(number) == 128 + number
        assert peer.expect(CallMessage, status="safe").call is not None
        assert peer.expect(Bye).reason == "server stopped"
    for line in (f"{number.name}: ending 1 sessions", "session-0001: over (server stopped)"):
        assert line in server.logs()
    told = json.loads((server.out / "records" / "session-0001" / "report.json").read_text())
    assert told["ended_by"] == "server stopped" and told["wire"]["client"]["name"] == "test"
    assert json.loads((server.out / "records" / "server.json").read_text())["sessions_total"] == 1


def test_killed_client_leaves_its_record_and_the_others_alone(process: Any, tmp_path: Path) -> None:
    server = process()
    script = (
        "from tests.rtcontrol.serve.wire_peer import WirePeer\n"
        f"peer = WirePeer({server.endpoint!r}); peer.enter(hz=50); heard = 0\n"
        "while True:\n"
        "    peer.observe(); heard += peer.receive(0.01) is not None\n"
        "    if heard == 10: print(peer.token, flush=True); heard += 1"
    )
    with WirePeer(server.endpoint) as peer:
        peer.enter(pacing="client")
        doomed = Program(["-c", script], tmp_path / "doomed", stdout=subprocess.PIPE).popen
        assert doomed.stdout is not None
        token = doomed.stdout.readline().strip()
        doomed.kill()
        doomed.communicate()
        report = server.out / "records" / "session-0002" / "report.json"
        until(lambda: report.exists() and report.read_text().endswith("}\n"))
        told = json.loads(report.read_text())
        assert told["ended_by"] == "client lost" and told["ticks"] >= 5
        assert peer.ask().status == "fresh"
        with WirePeer(server.endpoint) as heir:
            assert heir.enter(resume=token).resumed
    assert server.end(signal.SIGINT) == 130


def test_killed_server_forgets_its_sessions(process: Any) -> None:
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
        peer.enter(pacing="client")
        assert peer.ask().status == "fresh"


def test_identity_of_another_gives_no_session(made: Any) -> None:
    peer = made.enter(pacing="client")
    thief = zmq.Context.instance().socket(zmq.DEALER)
    identity = next(c.identity for c in made.admission.connections())
    thief.linger = 0
    # libzmq keeps names that begin with a zero byte for itself; a thief can at best choose another one.
    thief.setsockopt(zmq.IDENTITY, b"i" + identity[1:])
    thief.connect(made.server.endpoints[0])
    other = WirePeer.__new__(WirePeer)
    other.socket, other.inbox, other.welcome, other.seq, other.epoch = thief, [], peer.welcome, 10, 0
    other.observe()
    assert other.refused().code == "state"
    thief.close(0)
    assert peer.ask().status == "fresh"
