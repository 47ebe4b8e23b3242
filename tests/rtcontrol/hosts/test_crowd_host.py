"""A crowd's batch through the hosts: in this process, and in one of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rtcontrol.hosts.deciders import ExpertSource, NoopSource, STSource, crowd_request, crowd_source, unpack
from rtcontrol.hosts.decoder_link import pack_reply
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.run import assembly

SEEN = "x 3 y 50 vx 0 vy -2 angle 0 spin 0 legs 0 0"
GOAL = "Land softly on the pad."
tools = assembly.agent("lander").tools


@pytest.fixture
def pool() -> Iterator[InProcessPool]:
    pool = InProcessPool()
    pool.start()
    yield pool
    pool.close()


def decided(host: Host, requests: list[DecisionRequest]) -> list[DecisionReply]:
    host.submit(crowd_request(7, requests, 0))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (reply := host.wait(50_000_000)) is not None:
            # As the Ray actor sends it, and as its client reads it.
            assert isinstance(pack_reply(reply), bytes)
            return unpack(reply, requests)
    raise AssertionError("no reply")


def test_model_decides_for_all_members_but_long_ones(pool: InProcessPool) -> None:
    host = pool.open("crowd", crowd_source(STSource(DeciderSpec("lander", tuple(tools.openai())))))
    lone = pool.open("one", STSource(DeciderSpec("lander", tuple(tools.openai()))))
    requests = [DecisionRequest(i, i, SEEN.replace("3", str(i)), GOAL) for i in range(5)]
    requests[2] = DecisionRequest(2, 2, "x 1 " * 9000, GOAL)
    replies = decided(host, requests)
    assert replies[2].decision is None and replies[2].mistake is not None
    for member, each in zip(requests, replies, strict=True):
        if member.epoch != 2:
            lone.submit(DecisionRequest(member.tick, 0, member.observation, member.instruction))
            while (reply := lone.wait(60_000_000_000)) is None:
                pass
            assert reply.decision is not None and each.decision is not None
            assert each.decision.call == reply.decision.call


def test_scripts_fault_costs_its_member_alone() -> None:
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
    assert replies[3].error == "RuntimeError: out of the world" and replies[3].mistake is None


def test_short_reply_is_an_error_of_each_member() -> None:
    member = DecisionRequest(1, 0, "", "")
    assert [(r.tick, r.error) for r in unpack(DecisionReply(1, None, "lost", 0), [member] * 3)] == [(1, "lost")] * 3
    pool = InProcessPool(workers=0)
    host = pool.open("crowd", crowd_source(NoopSource()))
    host.submit(crowd_request(1, [member], 0))
    reply = host.wait(0)
    assert reply is not None
    assert all(r.error is not None for r in unpack(reply, [member] * 2)) and unpack(reply, [member])[0].error is None
