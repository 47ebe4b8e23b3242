"""Decoder pools with real threads, a real Ray actor and small checkpoints: sessions, requests of /v1, questions."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cart import Flight
from pooled import TOOLS, alone, asked, assert_equal, called, flown, kept_pid, naming, reply_of, request, tools
from standin_endpoint import standin

from rtcontrol.gateway.decide import Tools, ToolSets, Unavailable
from rtcontrol.hosts.deciders import ANSWERS, NoopSource, QuestionSource, STSource, answer_together, encode_questions
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.protocol import DecisionRequest, DecoderPool, Host
from rtcontrol.hosts.ray_pool import RayPool, single_host
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.questions import StateQuestion
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.pools import Pools

pytestmark = pytest.mark.serial


def test_each_session_has_its_own_decider(pool: DecoderPool) -> None:
    left, right = pool.open("a", naming("left")), pool.open("b", naming("right"))
    assert (left.start()["model"], right.start()["model"]) == ("left", "right")
    left.submit(request(7))
    right.submit(request(7))
    for host, name in ((right, "right"), (left, "left")):
        decision = reply_of(host).decision
        assert decision == Decision(Call(name, {"at": "x 7"}), {"function": 0.5}, 1, 9, 3)


def test_an_error_costs_its_own_tick_only(pool: DecoderPool) -> None:
    host, other = pool.open("a", naming("left")), pool.open("b", naming("right"))
    for word, error in (("exit", "SystemExit: enough"), ("fail", "ValueError: cannot")):
        host.submit(request(1, word))
        assert reply_of(host).error == error
    assert called(host, 2) == 'left(at="x 2")'
    assert called(other, 2) == 'right(at="x 2")'


ONE = {"name": "go", "parameters": {"properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}}


def test_a_loss_of_an_endpoint_crosses_to_the_loop_with_its_cause(pool: DecoderPool) -> None:
    with standin(lambda n: (0.0, 503 if n else None)) as made:
        source = EndpointSource.parse(f"systemone:{made.url}#jev", (ONE,))
        host = pool.open("remote", source)
        for tick in (1, 2):
            host.submit(DecisionRequest(tick, 1, "x", "go"))
            reply = reply_of(host)
            assert (reply.loss, reply.error) == ((None, None) if tick == 1 else ("http", "HTTP 503: status 503"))
            assert (reply.decision is None) == (tick == 2)


def test_cancelled_before_its_turn_is_not_decided(pool: DecoderPool) -> None:
    busy, other = pool.open("a", naming("busy")), pool.open("b", naming("other"))
    busy.submit(request(1, "sleep 0.3"))
    time.sleep(0.1)
    other.submit(request(1, "sleep 5"))
    other.cancel(1)
    assert reply_of(busy).tick == 1
    assert called(other, 2) == 'other(at="x 2")'


def test_a_patient_sessions_decision_gives_way_to_others_between_its_steps(pool: DecoderPool) -> None:
    late, other = pool.open("a", naming("late", "patient")), pool.open("b", naming("other"))
    late.submit(request(1, "steps 20"))  # 1 s
    time.sleep(0.1)
    for tick in range(5):
        assert called(other, tick) == f'other(at="x {tick}")'
    assert late.wait(0) is None  # it is under way still
    assert reply_of(late).tick == 1
    assert called(late, 2) == 'late(at="x 2")'


def test_a_decision_that_nobody_waits_for_is_given_up_between_its_steps(pool: DecoderPool) -> None:
    host = pool.open("a", naming("long"))
    host.submit(request(1, "steps 800"))  # 40 s
    time.sleep(0.2)
    host.cancel(1)
    assert called(host, 2) == 'long(at="x 2")'


def test_a_patient_session_that_is_closed_holds_up_nobody(pool: DecoderPool) -> None:
    late, other = pool.open("a", naming("late", "patient")), pool.open("b", naming("other"))
    late.submit(request(1, "steps 800"))
    time.sleep(0.1)
    late.close()
    assert called(other, 1) == 'other(at="x 1")'


def test_opening_a_session_holds_up_nobody(pool: DecoderPool) -> None:
    host = pool.open("a", naming("left"))
    slow: list[Host] = []
    opener = threading.Thread(target=lambda: slow.append(pool.open("b", naming("slow", "1.5"))))
    opener.start()
    decided = 0
    while opener.is_alive():
        called(host, decided)
        decided += 1
    assert decided > 20
    assert called(slow[0], 1) == 'slow(at="x 1")'


@pytest.mark.parametrize(("fault", "says"), [("user", "No such checkpoint"), ("bug", "oops")])
def test_a_decider_that_cannot_be_made_leaves_the_others_alone(pool: DecoderPool, fault: str, says: str) -> None:
    host = pool.open("a", naming("left"))
    with pytest.raises(UserError, match=says):
        pool.open("b", naming("right", fault))
    assert called(host, 1) == 'left(at="x 1")'


def test_a_closed_session_gets_no_reply_and_another_of_its_name_does(pool: DecoderPool) -> None:
    host, other = pool.open("a", naming("left")), pool.open("a", naming("right"))
    host.submit(request(1, "sleep 0.2"))
    host.close()
    host.close()
    assert not host.alive()
    assert called(other, 1) == 'right(at="x 1")'


def woken(host: Host) -> float:
    """Seconds of a wait of 5 s that another thread ends."""
    threading.Timer(0.05, host.wake).start()
    began = time.monotonic()
    assert host.wait(5_000_000_000) is None
    return time.monotonic() - began


def test_any_thread_ends_a_wait_and_no_reply_is_lost_by_it(pool: DecoderPool) -> None:
    inline = InProcessPool(lanes=0).open("inline", NoopSource())
    for host in (pool.open("a", naming("left")), inline):
        assert woken(host) < 4.0
        host.wake()  # before the wait: it ends that one
        began = time.monotonic()
        assert host.wait(5_000_000_000) is None
        assert time.monotonic() - began < 4.0
        for tick in range(50):
            host.submit(request(tick))
            host.wake()
            assert reply_of(host).tick == tick
        host.close()


@pytest.mark.parametrize("kind", [InProcessHost, single_host])
def test_a_host_of_its_own_decides_on_its_lanes_at_once(kind: Any, ray_pool: RayPool) -> None:
    host = kind(naming("left"), lanes=2)
    try:
        assert host.start()["model"] == "left"
        began = time.monotonic()
        host.submit(request(1, "sleep 0.8"))
        host.submit(request(2, "sleep 0.8"))
        assert {reply_of(host).tick, reply_of(host).tick} == {1, 2}
        assert time.monotonic() - began < 1.5
    finally:
        host.close()
    assert not host.alive()


@pytest.mark.parametrize("kind", [partial(InProcessPool, lanes=0), InProcessPool, RayPool])
def test_no_more_sessions_than_the_limit(kind: Any, ray_pool: RayPool) -> None:
    pool: DecoderPool = kind(limit=2)
    pool.start()
    hosts = [pool.open("a", naming("left")), pool.open("b", naming("right"))]
    with pytest.raises(UserError, match="2 open sessions"):
        pool.open("c", naming("third"))
    hosts[0].close()
    hosts[0].close()
    with pytest.raises(UserError, match="No such checkpoint"):
        pool.open("c", naming("third", "user"))
    hosts.append(pool.open("c", naming("third")))
    with pytest.raises(UserError, match="2 open sessions"):
        pool.open("d", naming("fourth"))
    # The server may end before its sessions' threads have seen it.
    pool.close()
    assert not pool.alive()
    for host in hosts[1:]:
        host.submit(request(1))
        assert host.wait(100_000_000) is None
        host.close()
    with pytest.raises(UserError, match="closed"):
        pool.open("e", naming("fifth"))


def test_what_waits_at_once_is_decided_together_and_like_each_alone(pool: DecoderPool, sources: list[STSource]) -> None:
    busy, hosts = pool.open("busy", naming("busy")), [pool.open(f"s{i}", sources[i % 2]) for i in range(4)]
    busy.submit(request(1, "sleep 0.4"))
    time.sleep(0.1)
    for host in hosts:
        host.submit(asked(7))
    replies = [reply_of(host) for host in hosts]
    assert [reply.together for reply in replies] == [4] * 4
    expected = [source.build().decide(asked(7)) for source in sources]
    assert_equal([reply.decision for reply in replies], expected * 2)  # type: ignore[misc]
    hosts[0].submit(asked(8))
    assert reply_of(hosts[0]).together == 1


def test_one_of_those_decided_together_may_be_given_up_or_fail_and_the_others_are_answered(
    sources: list[STSource],
) -> None:
    late = tools(
        {"go": {"to": {"enum": [*(f"alpha beta go {w}" for w in ("red", "green", "blue")), "alpha beta stop"]}}}
    )
    source = STSource(replace(sources[0].spec, tools=late, budget_per_head=1))
    deciders: list[Any] = [source.build() for _ in range(3)]
    expected = deciders[0].decide(asked(3))
    assert expected.forward_passes > 1
    wrong = replace(asked(3), observation="go " * 3000)
    asks = [(deciders[0], asked(1)), (deciders[1], asked(3)), (deciders[2], wrong)]
    steps, count = answer_together(asks, lambda i: i == 0), 0
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
            count += 1
    assert count == expected.forward_passes
    given_up, sound, failed = done.value.value
    assert given_up is None
    assert sound.decision.call == expected.call and sound.together == 3
    assert failed.decision is None and "context" in failed.mistake[0]
    assert deciders[0].decide(asked(3)).call == expected.call


def test_a_servers_pool_that_gave_up_is_made_anew_for_the_next_session(sources: list[STSource], tmp_path: Path) -> None:
    pools = Pools(ServeOptions(out=tmp_path, host="inprocess"))
    pools.start()
    try:
        first = pools.open("a", sources[0])
        pools._models.gave_up = "Ray was lost."
        second = pools.open("b", sources[0])
        assert not first.alive() and second.alive() and pools.alive()
        assert_equal(flown(second, 3), alone(sources[0], 3))
    finally:
        pools.close()


@pytest.mark.parametrize("clock", ["wall", "lockstep"])
def test_a_host_that_gave_up_ends_the_run_with_the_safe_call(tmp_path: Path, clock: str) -> None:
    flight = Flight(tmp_path, duration_s=5.0 if clock == "wall" else 5000.0, clock=clock)

    def give_up() -> None:
        flight.host._pool.close()
        flight.host.gave_up = "Ray was lost."

    flight.after(5, give_up)
    flight.run()
    assert flight.loop.ended_by == "host"
    assert "no more decisions: Ray was lost." in flight.said
    assert flight.world.executed[-1][1] == flight.agent.fallback.safe_call


GO, TURN = (tools(named) for named in TOOLS[:2])


def tool_sets(pool: DecoderPool, decide_timeout_s: float = 20.0) -> ToolSets:
    return ToolSets(pool, lambda tools, allow_null: naming("go"), 2, decide_timeout_s, 60.0)


async def answered(sets: ToolSets, what: str, instruction: str = "go", offered: Tools = GO) -> Any:
    call = (await sets.decide(offered, instruction, what)).decision.call
    assert call is not None
    return call.arguments["at"]


async def told_in_the_end(sets: ToolSets, what: str, offered: Tools = GO) -> Any:
    give_up = time.monotonic() + 40
    while True:
        try:
            return await answered(sets, what, offered=offered)
        except Unavailable:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)


def test_requests_to_a_lost_process_are_told_at_once_and_answered_again(ray_pool: RayPool) -> None:
    async def ask() -> None:
        sets = tool_sets(ray_pool, 60.0)
        for offered in (TURN, GO):
            await told_in_the_end(sets, "before", offered)
        # Of two at once the second is waited for on a thread of its own, and one alone on the event loop's.
        soon, *waiting = (asyncio.create_task(answered(sets, "x", f"sleep {s}", TURN)) for s in (0.1, 30))
        await soon
        await asyncio.sleep(0.1)
        waiting.append(asyncio.create_task(answered(sets, "x", offered=GO)))
        await asyncio.sleep(0.1)
        os.kill(kept_pid(ray_pool), signal.SIGKILL)
        lost = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert [str(one) for one in lost] == ["the decoder was lost"] * 2
        assert await told_in_the_end(sets, "after") == "after"
        sets.close()

    asyncio.run(ask())


QUESTIONS = [StateQuestion("go left?", ("true", "false")), StateQuestion("which?", ("red", "green blue", "green red"))]


def test_questions_are_answered_wherever_it_decides(pool: DecoderPool, sources: list[STSource]) -> None:
    host = pool.open("questions", QuestionSource(sources[0].spec))
    here = QuestionSource(sources[0].spec).build()
    for tick, state in enumerate(("x 1", "x 1", "zürich \ud7ff")):
        request = DecisionRequest(tick, 0, state, encode_questions(QUESTIONS))
        host.submit(request)
        reply, own = reply_of(host), here.decide(request).call
        assert (
            reply.error is None and reply.decision is not None and reply.decision.call is not None and own is not None
        )
        assert reply.decision.call.name == ANSWERS and reply.decision.forward_passes == 1
        found: Any = reply.decision.call.arguments["probabilities"]
        assert [math.fsum(p) for p in found] == [1.0, 1.0]
        for p, q in zip(found, own.arguments["probabilities"], strict=True):
            assert p == pytest.approx(q, abs=1e-4)


def test_a_session_is_decided_between_the_passes_of_many_questions(pool: DecoderPool, sources: list[STSource]) -> None:
    many = [StateQuestion(f"{i} " + "go left or right or stop " * 12, ("true", "false")) for i in range(150)]
    questions = pool.open("questions", QuestionSource(sources[0].spec))
    session = pool.open("session", sources[0])
    session.submit(asked(0))
    reply_of(session)
    questions.submit(DecisionRequest(1, 0, "x 1", encode_questions(many)))
    began, ticks = time.monotonic(), 0
    while (reply := questions.wait(0)) is None:
        ticks += 1
        session.submit(asked(ticks))
        assert reply_of(session).tick == ticks
        assert time.monotonic() - began < 60
    assert reply.decision is not None and reply.decision.forward_passes > 5
    assert ticks >= 3, "it was decided meanwhile"
