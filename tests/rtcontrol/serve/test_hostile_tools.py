"""Tools of other people are read within limits, and never in the way of others."""

from __future__ import annotations

from typing import Any

from rtcontrol_client.wire.messages import Bye, Welcome
from tests.helpers.processes import until


def wide(number: int) -> dict[str, Any]:
    """80 kB with more alternatives than are read; each number's is another."""
    values = [{"type": "string", "maxLength": number + i} for i in range(2000)]
    return {"name": f"f{number}", "parameters": {"properties": {"a": {"anyOf": values}}, "required": ["a"]}}


def large(number: int) -> dict[str, Any]:
    """60 kB that are read; each number's is another."""
    values = [{"const": f"value {number} {i}"} for i in range(2500)]
    return {"name": f"f{number}", "parameters": {"properties": {"a": {"oneOf": values}}, "required": ["a"]}}


def test_hostile_hellos_keep_nobody_from_opening_or_resuming(made: Any) -> None:
    kept = made.enter(pacing="client")
    token = kept.token
    hostile = [made.peer() for _ in range(3)]
    for number, peer in enumerate(hostile):
        peer.hello(tools=[wide(number)], instruction="go", safe_call=None)
    reading = [made.peer() for _ in range(3)]
    for number, peer in enumerate(reading):
        peer.hello(tools=[large(number)], instruction="go", safe_call=None)
    made.admission.drop(made.admission.connections()[0])
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    honest, again = made.peer(), made.peer()
    honest.enter(pacing="client")
    again.hello(resume=token)
    assert again.expect(Welcome).resumed
    for peer in hostile:
        refusal = peer.refused(30)
        assert refusal.code == "tools" and "1000 alternatives" in refusal.message and refusal.fatal
    honest.send(Bye(session=honest.token))


def test_nobody_waits_behind_strangers_to_come_back(made: Any) -> None:
    peer = made.enter(pacing="client")
    token = peer.token
    (connection,) = made.admission.connections()
    made.admission.drop(connection)
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    for _ in range(2):
        made.admission.opening.acquire()
    try:
        again = made.peer()
        again.enter(resume=token)
        assert again.welcome.resumed
    finally:
        for _ in range(2):
            made.admission.opening.release()
