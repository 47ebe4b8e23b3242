"""Decoder pools with real threads, a real Ray actor and small checkpoints: sessions, batches."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from pooled import assert_equal, called, naming, reply_of, request, st_request, tools

from rtcontrol.hosts.deciders import STSource, answer_together
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.standby import single_host
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

pytestmark = pytest.mark.serial


def test_each_session_has_its_own_decider(pool: DecoderPool) -> None:
    left, right = pool.open("a", naming("left")), pool.open("b", naming("right"))
    assert (left.start()["model"], right.start()["model"]) == ("left", "right")
    left.submit(request(7))
    right.submit(request(7))
    for host, name in ((right, "right"), (left, "left")):
        decision = reply_of(host).decision
        assert decision == Decision(Call(name, {"at": "x 7"}), {"function": 0.5}, 1, 9, 3)


def test_cancelled_decision_ends_between_its_steps(pool: DecoderPool) -> None:
    host = pool.open("a", naming("long"))
    host.submit(request(1, "steps 800"))  # 40 s
    time.sleep(0.2)
    host.cancel(1)
    assert called(host, 2) == 'long(at="x 2")'


@pytest.mark.parametrize(("fault", "says"), [("user", "No such checkpoint"), ("bug", "oops")])
def test_failed_build_leaves_the_others_alone(pool: DecoderPool, fault: str, says: str) -> None:
    host = pool.open("a", naming("left"))
    with pytest.raises(UserError, match=says):
        pool.open("b", naming("right", fault))
    assert called(host, 1) == 'left(at="x 1")'


@pytest.mark.parametrize("kind", [InProcessHost, single_host])
def test_host_decides_on_all_workers_at_once(kind: Any, ray_pool: RayPool) -> None:
    host = kind(naming("left"), workers=2)
    try:
        assert host.start()["model"] == "left"
        host.submit(request(1, "sleep 0.8"))
        host.submit(request(2, "sleep 0.8"))
        first, second = reply_of(host), reply_of(host)
        assert {first.tick, second.tick} == {1, 2}
        assert second.begun_ns < first.begun_ns + first.decide_ns, "both are made at once"
    finally:
        host.close()
    assert not host.alive()


def test_batch_is_decided_like_each_alone(pool: DecoderPool, sources: list[STSource]) -> None:
    busy, hosts = pool.open("busy", naming("busy")), [pool.open(f"s{i}", sources[i % 2]) for i in range(4)]
    busy.submit(request(1, "sleep 0.4"))
    time.sleep(0.1)
    for host in hosts:
        host.submit(st_request(7))
    replies = [reply_of(host) for host in hosts]
    assert [reply.together for reply in replies] == [4] * 4
    expected = [source.build().decide(st_request(7)) for source in sources]
    assert_equal([reply.decision for reply in replies], expected * 2)  # type: ignore[misc]
    hosts[0].submit(st_request(8))
    assert reply_of(hosts[0]).together == 1


def test_cancelled_decision_leaves_the_others_of_its_batch(
    sources: list[STSource],
) -> None:
    late = tools(
        {"go": {"to": {"enum": [*(f"alpha beta go {w}" for w in ("red", "green", "blue")), "alpha beta stop"]}}}
    )
    source = STSource(replace(sources[0].spec, tools=late, budget_per_head=1))
    deciders: list[Any] = [source.build() for _ in range(3)]
    expected = deciders[0].decide(st_request(3))
    assert expected.forward_passes > 1
    wrong = replace(st_request(3), observation="go " * 3000)
    asks = [(deciders[0], st_request(1)), (deciders[1], st_request(3)), (deciders[2], wrong)]
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
    assert deciders[0].decide(st_request(3)).call == expected.call


def test_wake_ends_a_wait_and_loses_no_reply(pool: DecoderPool) -> None:
    host = pool.open("a", naming("left"))
    threading.Timer(0.05, host.wake).start()
    assert host.wait(60_000_000_000) is None
    host.wake()  # before the wait: it ends that one
    assert host.wait(60_000_000_000) is None
    for tick in range(20):
        host.submit(request(tick))
        host.wake()
        assert reply_of(host).tick == tick


@pytest.mark.parametrize("kind", [InProcessPool, RayPool])
def test_closed_pool_decides_nothing_and_opens_no_session(kind: Any, ray_pool: RayPool) -> None:
    pool: DecoderPool = kind(limit=1)
    pool.start()
    host = pool.open("a", naming("left"))
    with pytest.raises(UserError, match="1 open sessions"):
        pool.open("b", naming("right"))
    # The server may end before its sessions' threads have seen it.
    pool.close()
    assert not pool.alive()
    host.submit(request(1))
    assert host.wait(100_000_000) is None
    host.close()
    with pytest.raises(UserError, match="closed"):
        pool.open("c", naming("third"))
