"""Decisions on the caller's thread, and the parts of a pool that need neither threads nor Ray."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from pooled import reply_of, request

from rtcontrol.hosts.deciders import (
    ExpertSource,
    NoopSource,
    STSource,
    Worker,
    crowd_request,
    crowd_source,
    member_replies,
)
from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.pool import EdfScheduler
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, DecoderUnavailable, Host, pack_reply, unpack_reply
from rtcontrol.hosts.sockets import WakeFile
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.run import assembly


def left(asked: DecisionRequest) -> Call:
    """Call `left`, or fail or exit if the instruction says so."""
    if asked.instruction == "fail":
        raise ValueError("cannot")
    if asked.instruction == "exit":
        raise SystemExit("enough")
    return Call("left", {"at": asked.observation})


def called(host: Host, tick: int) -> str:
    """Return the name of the function that the host calls at once."""
    host.submit(request(tick))
    reply = host.wait(0)
    assert reply is not None and reply.decision is not None and reply.decision.call is not None
    return reply.decision.call.text()


@pytest.mark.parametrize(("word", "error"), [("exit", "SystemExit: enough"), ("fail", "ValueError: cannot")])
def test_decider_error_costs_only_its_tick(word: str, error: str) -> None:
    host = InProcessPool(workers=0).open("a", ExpertSource(left))
    host.submit(request(1, word))
    reply = host.wait(0)
    assert reply is not None and reply.error == error and called(host, 2) == 'left(at="x 2")'


class Stepped:
    """A decider that takes `steps` steps; a patient one lets other sessions go first."""

    def __init__(self, steps: int, patient: bool) -> None:
        self.steps, self.patient = steps, patient

    def decide_in_steps(self, asked: DecisionRequest) -> Generator[None, None, Decision]:
        for _ in range(self.steps):
            yield
        return Decision(None)


class Session:
    """A fake session host for workers; `replied` records for each request whether there was a reply."""

    def __init__(self, steps: int, patient: bool) -> None:
        self.deciders: list[Any] = [Stepped(steps, patient)]
        self.replied: list[bool] = []
        self.given_up: set[int] = set()

    def decider(self, number: int) -> Any:
        return self.deciders[number] if self.deciders else None

    def is_cancelled(self, request: DecisionRequest) -> bool:
        return request.tick in self.given_up

    def deliver(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        self.replied.append(reply is not None)


def test_patient_decision_lets_other_sessions_go_first() -> None:
    late, other = Session(3, patient=True), Session(1, patient=False)
    scheduler = EdfScheduler()
    worker = Worker(scheduler, 0)

    def run(session: Session | None = None, tick: int = 0) -> None:
        if session is not None:
            scheduler.enqueue(session, request(tick), 0)
        worker.run(worker.next_batch(0))

    run(late, 1)
    run()
    run(other, 2)
    assert other.replied == [True] and not late.replied and not worker.idle
    for _ in range(3):
        run()
    assert late.replied == [True] and worker.idle and worker.next_batch(0) == []
    other.given_up.add(3)
    run(other, 3)
    assert other.replied == [True, False], "it was cancelled"
    run(late, 4)
    late.given_up.add(4)
    run()
    run()
    assert worker.idle and late.replied == [True, False]
    scheduler.enqueue(late, request(5), 0)
    turn = worker.next_batch(0)
    late.deciders.clear()
    worker.run(turn)
    assert len(late.replied) == 2, "a closed session gets no decision"


def test_unpicklable_reply_costs_only_its_tick() -> None:
    reply = unpack_reply(pack_reply(DecisionReply(4, Decision(Call("go", {"to": lambda: 0})), None, 0)))
    assert (reply.tick, reply.decision) == (4, None) and "cannot be sent" in reply.error


def test_missing_socket_is_a_temporary_error() -> None:
    with pytest.raises(DecoderUnavailable, match="socket to the decoder cannot be opened"):
        DecoderLink({"endpoint": "no endpoint", "key": b""}, b"session", WakeFile())


# -- a crowd's batch -------------------------------------------------------------------------------------------------

SEEN = "x 3 y 50 vx 0 vy -2 angle 0 spin 0 legs 0 0"
GOAL = "Land softly on the pad."
tools = assembly.load_agent("lander").tools


def decided(host: Host, requests: list[DecisionRequest]) -> list[DecisionReply]:
    host.submit(crowd_request(7, requests, 0))
    # As the Ray actor sends it, and as its client reads it.
    return member_replies(unpack_reply(pack_reply(reply_of(host, 60))), requests)


def test_model_decides_for_all_members_except_too_long_prompts() -> None:
    pool = InProcessPool()
    pool.start()
    host = pool.open("crowd", crowd_source(STSource(DeciderSpec("lander", tuple(tools.openai())))))
    lone = pool.open("one", STSource(DeciderSpec("lander", tuple(tools.openai()))))
    requests = [DecisionRequest(i, i, SEEN.replace("3", str(i)), GOAL) for i in range(5)]
    requests[2] = DecisionRequest(2, 2, "x 1 " * 9000, GOAL)
    replies = decided(host, requests)
    assert replies[2].decision is None and replies[2].user_error is not None
    for member, each in zip(requests, replies, strict=True):
        if member.epoch != 2:
            lone.submit(DecisionRequest(member.tick, 0, member.observation, member.instruction))
            decision = reply_of(lone, 60).decision
            assert decision is not None and each.decision is not None and each.decision.call == decision.call
    pool.close()


def test_script_error_costs_only_its_member() -> None:
    def script(request: DecisionRequest) -> Call | None:
        assert request.data is not None
        if request.data["x"] > 2:
            raise RuntimeError("out of the world")
        return Call("push", {"x": request.data["x"], "tick": request.tick})

    pool = InProcessPool(workers=0)
    host = pool.open("crowd", crowd_source(ExpertSource(script)))
    requests = [DecisionRequest(10 + i, i, "", "", data={"x": i}) for i in range(4)]
    replies = decided(host, requests)
    assert [each.decision and each.decision.call for each in replies[:3]] == [
        Call("push", {"x": i, "tick": 10 + i}) for i in range(3)
    ]
    assert replies[3].error == "RuntimeError: out of the world" and replies[3].user_error is None


def test_reply_with_missing_members_is_error_of_each_member() -> None:
    member = DecisionRequest(1, 0, "", "")
    assert [(r.tick, r.error) for r in member_replies(DecisionReply(1, None, "lost", 0), [member] * 3)] == [
        (1, "lost")
    ] * 3
    pool = InProcessPool(workers=0)
    host = pool.open("crowd", crowd_source(NoopSource()))
    host.submit(crowd_request(1, [member], 0))
    reply = host.wait(0)
    assert reply is not None
    assert (
        all(r.error is not None for r in member_replies(reply, [member] * 2))
        and member_replies(reply, [member])[0].error is None
    )
