"""People at the wire's other end, and over it: pause, resume, stop, and a yes."""

from __future__ import annotations

import time
from typing import Any

from rtcontrol.bridges.client import Client
from rtcontrol.bridges.wire.messages import Bye, CallMessage, ControlMessage, ErrorMessage
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import TEXT

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


def test_one_who_did_not_announce_it_sees_safe_calls_alone_and_may_not_say_it(made: Any) -> None:
    peer = enter(made)
    say(peer, "pause")
    refused = peer.refused()
    assert (refused.code, refused.fatal) == ("state", False)
    session = made.admission.all()[0]
    session.say("pause", "page")
    observing(peer, "safe")
    assert all(call.status == "safe" for call in observing(peer, "safe", 10))
    assert not any(isinstance(m, ControlMessage) for m in peer.inbox)
    session.say("resume", "page")
    observing(peer, "fresh")


def test_a_stop_ends_the_session_for_good_with_a_safe_call(made: Any) -> None:
    peer = enter(made, capabilities=CAPABLE)
    say(peer, "stop")
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


def test_a_client_that_comes_back_by_itself_does_not_after_a_stop(made: Any) -> None:
    endpoint = made.server.endpoints[0]
    with Client.connect(endpoint, agent="lander", hz=50.0, persist=True) as client:
        client.observe(text=TEXT)
        made.admission.all()[0].say("stop", "page")
        until(lambda: client.error is not None)
        assert "final" in str(client.error) and client.call().status == "safe"
        assert client.statistics["sessions"] == 1


def test_a_session_that_waits_for_its_client_can_be_stopped_and_paused(made: Any) -> None:
    lost = []
    for _ in range(2):
        peer = enter(made, capabilities=CAPABLE)
        lost.append((peer.token, peer.seq))
        peer.close()
        made.admission.drop(made.admission.connections()[-1])
    stopped, paused = made.admission.all()
    until(lambda: stopped.state == paused.state == "parked")
    stopped.say("stop", "page")
    paused.say("pause", "page")
    assert made.peer().denied(resume=lost[0][0]).fatal
    back = made.peer()
    back.enter(resume=lost[1][0])
    back.seq = lost[1][1]
    assert all(call.status == "safe" for call in observing(back, "safe", 5))


def test_one_who_comes_back_to_a_live_session_is_told_that_it_is_paused(made: Any) -> None:
    peer = enter(made, capabilities=CAPABLE)
    say(peer, "pause")
    peer.expect(ControlMessage)
    another = made.peer()
    another.enter(resume=peer.token)
    assert another.expect(ControlMessage).state == "paused"


def test_a_paused_session_stays_paused_when_its_client_comes_back(made: Any) -> None:
    peer = enter(made, capabilities=CAPABLE)
    say(peer, "pause")
    peer.expect(ControlMessage)
    token, seq = peer.token, peer.seq
    peer.close()
    session = made.admission.all()[0]
    for connection in made.admission.connections():  # none, where its end was seen already
        made.admission.drop(connection)
    until(lambda: session.state == "parked")
    back = made.peer()
    back.enter(resume=token)
    back.seq = seq
    assert all(call.status == "safe" for call in observing(back, "safe", 10))
    session.say("resume", "page")
    observing(back, "fresh")


def test_a_yes_over_the_wire_lets_the_call_act_with_time_to_live_for_the_wait(made: Any) -> None:
    peer = made.enter(hz=50.0, capabilities=CAPABLE)
    session = made.admission.all()[0]
    object.__setattr__(session.loop.operator, "_named", frozenset({"engines"}))
    session.loop.operator.careful = True
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
