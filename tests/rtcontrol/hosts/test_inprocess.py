"""Decisions on the caller's thread, and what of a pool needs neither threads nor Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pooled import asked, request, tools

from rtcontrol.hosts.deciders import NoopSource, STSource, answer_together
from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import LIMIT, DecisionRequest, DecoderUnavailable, Host
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.wake_file import WakeFile
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


def test_closed_session_frees_its_place_once() -> None:
    pool = InProcessPool(limit=2, lanes=0)
    hosts = [pool.open(name, Named(name)) for name in ("left", "right")]
    with pytest.raises(DecoderUnavailable, match="2 open sessions"):
        pool.open("c", Named("third"))
    hosts[0].close()
    hosts[0].close()
    assert called(pool.open("c", Named("third")), 1) == 'third(at="x 1")'
    with pytest.raises(DecoderUnavailable):
        pool.open("d", Named("fourth"))
    hosts[0].submit(request(1))
    assert hosts[0].wait(0) is None and called(hosts[1], 2) == 'right(at="x 2")'


@pytest.mark.parametrize(("word", "error"), [("exit", "SystemExit: enough"), ("fail", "ValueError: cannot")])
def test_error_costs_its_tick_alone(word: str, error: str) -> None:
    host = InProcessPool(lanes=0).open("a", Named("left"))
    host.submit(request(1, word))
    reply = host.wait(0)
    assert reply is not None and reply.error == error and called(host, 2) == 'left(at="x 2")'


def test_every_session_that_ends_while_the_process_is_away_is_freed_when_that_is_back() -> None:
    pool = RayPool(limit=LIMIT + 8)
    hosts = [RayHost(pool, Named("a"), "a") for _ in range(LIMIT + 8)]
    for host in hosts:
        pool._hosts.add(host)
        pool._places.take()
    for host in hosts:
        pool.release(host)
    assert list(pool._unfreed) == [host.key for host in hosts]


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


def test_no_socket_to_the_decoder_is_trouble_that_may_pass() -> None:
    with pytest.raises(DecoderUnavailable, match="No socket to the decoder"):
        DecoderLink({"lanes": ["no endpoint"], "key": b""}, b"session", WakeFile())
