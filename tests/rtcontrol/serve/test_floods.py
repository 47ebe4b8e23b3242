"""Clients that open and leave sessions as fast as they can, and what is left of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rtcontrol.bridges.wire.messages import Bye, ErrorMessage, Observe, Ping, Pong
from rtcontrol.serve.session import Session
from rtcontrol.serve.supervise import resident_mb
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import WirePeer


def test_hello_and_bye_in_turns_start_no_threads_without_bound(made: Any) -> None:
    flood, honest = made.peer(), made.peer()
    before = threading.active_count()
    most = before
    for _ in range(500):
        flood.hello()
        flood.send(Bye())
        most = max(most, threading.active_count())
    flood.send(Ping(id=1, t_ns=1))
    flood.expect(Pong)
    most = max(most, threading.active_count())
    assert most - before < 40
    assert made.admission.health()["refused"]["rate"] >= 400
    assert made.admission.health()["sessions_total"] < 60
    honest.enter()
    refusal = next(m for m in flood.inbox if isinstance(m, ErrorMessage) and m.code == "rate")
    assert refusal.retryable and not refusal.fatal


def test_many_connections_that_leave_at_once_leave_no_threads(bench: Any) -> None:
    made = bench(max_sessions=8)
    # Nobody is opened meanwhile: those that end wait for their turn to do so.
    for _ in range(2):
        made.admission.opening.acquire()
    peers = [made.peer() for _ in range(60)]
    for peer in peers:
        peer.hello()
        peer.send(Bye())
        peer.send(Ping(id=1, t_ns=1))
        peer.expect(Pong)
    sessions = [t for t in threading.enumerate() if t.name.startswith("session-")]
    assert len(sessions) <= 8 + 16
    assert any(isinstance(m, ErrorMessage) and m.code == "busy" and m.retryable for m in peers[-1].inbox)
    for _ in range(2):
        made.admission.opening.release()
    until(lambda: sum(made.admission.health()["sessions"].values()) == 0)
    # Nothing was opened for them.
    assert not list(made.out.glob("session-*"))
    made.peer().enter()


def test_thread_that_cannot_be_started_costs_only_its_hello(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    def no_thread(self: Session) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "start", no_thread)
        peer = made.peer()
        error = peer.denied()
    assert error.code == "busy" and error.retryable and error.fatal
    assert made.admission.health()["sessions"] == {"opening": 0, "live": 0, "parked": 0}
    peer.enter()


def test_message_in_hand_does_not_revive_a_dropped_connection(made: Any) -> None:
    peer = made.enter(pacing="client")
    (connection,) = made.admission.connections()
    message = Observe(session=peer.token, seq=9, epoch=0, t_ns=1, text="x")
    made.admission.drop(connection)
    assert not made.admission.admit(connection)
    made.admission.receive(connection, message)
    assert made.admission.connections() == []


def test_fault_of_one_look_does_not_end_the_housekeeping_which_drops_a_client_that_says_nothing(bench: Any) -> None:
    made = bench(heartbeat_s=0.1, silent_heartbeats=3)
    peer = made.enter(pacing="client")
    keep, failed = made.admission.keep, threading.Event()

    def broken() -> None:
        failed.set()
        raise LookupError("a fault")

    made.admission.keep = broken
    assert failed.wait(5)
    made.admission.keep = keep
    # Nothing is read, so no ping is answered: only the housekeeping finds out.
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    peer.observe()
    assert peer.refused().code == "state"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_over_5000_sessions(process: Any) -> None:
    server = process()
    used: list[float] = []
    for done in range(5000):
        if done % 15 == 0:  # hellos of one connection have a rate
            with WirePeer(server.endpoint) as peer:
                for _ in range(15):
                    peer.enter(pacing="client")
                    assert peer.ask().status == "fresh"
                    peer.send(Bye(session=peer.token))
                    peer.expect(Bye)
        if done % 1000 == 999:
            used.append(resident_mb(server.process.pid) or 0.0)
    # It grew by 110 MB each 1000 before.
    assert max(used) - used[0] < 30, used
