"""Decisions on the caller's thread, and what of a pool needs neither threads nor Ray."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

import pytest
from pooled import request

from rtcontrol.hosts.deciders import DeciderLane, NoopSource
from rtcontrol.hosts.decoder_link import DecoderLink, WakeFile
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, DecoderUnavailable, Host
from rtcontrol.hosts.ray_actor import pack_reply
from rtcontrol.hosts.scheduler import EdfScheduler
from rtcontrol.models.call import Call, Decision


class Named:
    """Calls the function `name`; fails, or exits, where the instruction says so."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self) -> Named:
        return self

    def decide(self, asked: DecisionRequest) -> Decision:
        if asked.instruction == "fail":
            raise ValueError("cannot")
        if asked.instruction == "exit":
            raise SystemExit("enough")
        return Decision(Call(self.name, {"at": asked.observation}))


def called(host: Host, tick: int) -> str:
    """Return what is called at once."""
    host.submit(request(tick))
    reply = host.wait(0)
    assert reply is not None and reply.decision is not None and reply.decision.call is not None
    return reply.decision.call.text()


def test_without_lanes_it_decides_on_the_callers_thread() -> None:
    host = InProcessPool(lanes=0).open("a", NoopSource())
    assert (host.name, host.start()["model"]) == ("inline", "noop")
    host.submit(request(3))
    reply = host.wait(0)
    assert reply is not None and (reply.tick, reply.decision) == (3, Decision(None))


@pytest.mark.parametrize(("word", "error"), [("exit", "SystemExit: enough"), ("fail", "ValueError: cannot")])
def test_error_costs_its_tick_alone(word: str, error: str) -> None:
    host = InProcessPool(lanes=0).open("a", Named("left"))
    host.submit(request(1, word))
    reply = host.wait(0)
    assert reply is not None and reply.error == error and called(host, 2) == 'left(at="x 2")'


class Stepped:
    """Decides in so many steps; a patient one gives way."""

    def __init__(self, steps: int, patient: bool) -> None:
        self.steps, self.patient = steps, patient

    def decide_in_steps(self, asked: DecisionRequest) -> Generator[None, None, Decision]:
        for _ in range(self.steps):
            yield
        return Decision(None)


def test_patient_decision_gives_way_between_its_steps_and_ends_with_its_session() -> None:
    deciders: dict[str, Any] = {"late": Stepped(3, True), "other": Stepped(1, False)}
    answered: list[tuple[str, bool]] = []
    given_up: set[int] = set()
    rota = EdfScheduler()
    lane = DeciderLane(
        rota,
        deciders.get,
        lambda key, asked: asked.tick in given_up,
        lambda key, asked, reply: answered.append((key, reply is not None)),
    )
    rota.put("late", request(1), 0)
    for _ in range(2):
        lane.run(lane.take(0))
    rota.put("other", request(2), 0)
    lane.run(lane.take(0))
    assert answered == [("other", True)] and not lane.idle
    for _ in range(3):
        lane.run(lane.take(0))
    assert answered[1:] == [("late", True)] and lane.idle and lane.take(0) == []
    rota.put("other", request(3), 0)
    given_up.add(3)
    lane.run(lane.take(0))
    assert answered[2:] == [("other", False)], "nobody waits for it"
    rota.put("late", request(4), 0)
    lane.run(lane.take(0))
    given_up.add(4)
    lane.run([])
    lane.run([])
    assert lane.idle and answered[3:] == [("late", False)]
    rota.put("late", request(5), 0)
    turn = lane.take(0)
    del deciders["late"]
    lane.run(turn)
    assert len(answered) == 4, "of a session that is over nothing is decided"


def test_reply_that_cannot_be_packed_costs_its_tick_alone() -> None:
    reply = pickle.loads(pack_reply(DecisionReply(4, Decision(Call("go", {"to": lambda: 0})), None, 0)))
    assert (reply.tick, reply.decision) == (4, None) and "cannot be sent" in reply.error


def test_no_socket_to_the_decoder_is_trouble_that_may_pass() -> None:
    with pytest.raises(DecoderUnavailable, match="No socket to the decoder"):
        DecoderLink({"endpoint": "no endpoint", "key": b""}, b"session", WakeFile())
