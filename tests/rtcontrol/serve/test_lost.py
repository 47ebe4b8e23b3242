"""Clients, connections and servers that go away, trouble that passes, and people who pause, resume and stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import zmq

from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Bye, CallMessage, ControlMessage, ErrorMessage
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
    assert made.admission.all()[0].facts.refused == {}
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


def test_killed_server_forgets_its_sessions_and_one_that_ends_makes_everybody_safe_and_says_bye(process: Any) -> None:
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
    found = re.search(r"SIGTERM: ending 1 sessions\n(?:.*\n)*.*(session-\d+): over \(server stopped\)", server.logs())
    assert found is not None, server.logs()
    told = json.loads((server.out / "records" / found[1] / "report.json").read_text())
    assert told["ended_by"] == "server stopped" and told["wire"]["client"]["name"] == "test"
    assert json.loads((server.out / "records" / "server.json").read_text())["sessions_total"] == 1


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


CAPABLE = ["executed", "control"]


def enter(made: Any, **fields: Any) -> Any:
    peer = made.enter(hz=50.0, **fields)
    observing(peer, "fresh")
    return peer


def observing(peer: Any, status: str, calls: int = 1) -> list[CallMessage]:
    """Observe until so many calls of this status came."""
    came: list[CallMessage] = []

    def there() -> bool:
        peer.observe()
        message = peer.receive(0.1)
        if isinstance(message, CallMessage):
            came.append(message)
        elif message is not None:
            peer.inbox.append(message)
        return sum(m.status == status for m in came) >= calls

    until(there, f"no {status} call", every=0.005)
    return came


def say(peer: Any, word: str, **more: Any) -> None:
    peer.send(ControlMessage(session=peer.token, say=word, **more))


def test_a_client_pauses_and_resumes_its_session_and_is_told(made: Any) -> None:
    peer = enter(made, capabilities=CAPABLE)
    assert "control" in peer.welcome.capabilities
    say(peer, "pause")
    assert peer.expect(ControlMessage).state == "paused"
    peer.inbox.clear()
    assert all(call.status == "safe" for call in observing(peer, "safe", 10))
    say(peer, "resume")
    observing(peer, "fresh")
    assert [m.state for m in peer.inbox if isinstance(m, ControlMessage)] == ["running"]


def test_a_stop_ends_the_session_for_good_with_a_safe_call(made: Any) -> None:
    peer = enter(made, capabilities=CAPABLE)
    say(peer, "stop", instruction="land")  # whatever else the message has
    came: list[Any] = []
    until(lambda: isinstance(message := peer.receive(1.0), Bye) or bool(came.append(message)), "no bye")
    calls = [m for m in came if isinstance(m, CallMessage)]
    assert calls and calls[-1].status == "safe"
    stopped = next(i for i, m in enumerate(calls) if m.status == "safe")
    assert all(m.status == "safe" for m in calls[stopped:])
    # Who would greet anew by itself does not, and nobody can come back to it.
    (told,) = [m for m in came if isinstance(m, ErrorMessage)]
    assert (told.code, told.fatal, told.retryable) == ("state", True, False)
    until(lambda: made.admission.all() == [])
    again = peer.denied(resume=peer.token)
    assert (again.code, again.fatal, again.retryable) == ("state", True, False)


def test_a_yes_over_the_wire_lets_the_call_act_with_time_to_live_for_the_wait(made: Any) -> None:
    peer = made.enter(hz=50.0, capabilities=CAPABLE)
    session = made.admission.all()[0]
    people = session.loop.shell.core.people
    people._named, people.careful = frozenset({"engines"}), True
    peer.inbox.clear()
    observing(peer, "held", 3)
    asked = next(m for m in peer.inbox if isinstance(m, ControlMessage) and m.call is not None)
    assert asked.call.name == "engines" and 0 < asked.ttl_ms <= 10_000
    over = time.monotonic() + 0.7  # longer than a call may be old
    while time.monotonic() < over:
        observing(peer, "held", 0)
    say(peer, "confirm", id=asked.id)
    came = observing(peer, "fresh")
    acted = next(m for m in came if m.status == "fresh")
    assert acted.call == asked.call
    assert acted.ttl_ms >= peer.welcome.ttl_ms + 600
