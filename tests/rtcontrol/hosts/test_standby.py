"""A warm standby decoder that takes over: which decoder is asked, what is reported, and whose replies are used."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from simulated import MS, SimulatedHost, Simulation

from rtcontrol.hosts.layered_core import FURTHER, PAIR, TOOK_OVER, WARM_EVERY_NS, WARM_REQUESTS, StandbyCore
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision

A, B = PAIR


class Standby(Simulation):
    """Two simulated decoders, whose calls contain the decoder's name, its incarnation and the observation."""

    def __init__(self) -> None:
        self.a, self.b = SimulatedHost(A, self._decide(A)), SimulatedHost(B, self._decide(B))
        super().__init__(StandbyCore(), {A: self.a, B: self.b})

    def _decide(self, name: str):  # type: ignore[no-untyped-def]
        def decide(request: DecisionRequest) -> Decision:
            life = self.inner[name].incarnation
            return Decision(Call(name, {"life": life, "to": request.observation}))

        return decide

    def decided(self, tick: int, ms: float = 50.0) -> str | None:
        """Request a decision; return which decoder answered within the time, or None."""
        count = len(self.replies)
        self.ask(tick)
        self.run(ms)
        made = [reply for _, reply in self.replies[count:]]
        assert len(made) <= 1 and all(reply.tick == tick for reply in made)
        return made[0].decision.call.name if made else None  # type: ignore[union-attr]


def test_standby_takes_over_and_keeps_the_session() -> None:
    pair = Standby()
    assert pair.decided(0) == A and pair.core.state.up
    pair.run(10)
    pair.lose(pair.a)
    assert pair.core.state.up and (pair.core.main, pair.core.state.incarnation) == (B, 1)
    assert [event.event for event in pair.core.state.events] == ["lost", "restarted"] and pair.notices == [TOOK_OVER]
    assert pair.core.state.events[1].seconds == 0
    assert pair.decided(1) == B
    pair.run(3_000)
    pair.restore(pair.a)
    assert pair.decided(2) == B and pair.core.state.incarnation == 1, "the lost one is the standby now"
    pair.lose(pair.b)
    assert pair.decided(3) == A and pair.core.state.incarnation == 2 and len(pair.core.state.events) == 4


def test_standby_decides_first_requests_and_occasional_later_ones() -> None:
    pair = Standby()
    for tick in range(300):
        assert pair.decided(tick) == A
    mirrored = [request.tick - FURTHER for request in pair.b.requests]
    assert mirrored[:WARM_REQUESTS] == list(range(WARM_REQUESTS))
    every = WARM_EVERY_NS // (50 * MS)
    assert mirrored[WARM_REQUESTS:] == [7 + every, 7 + 2 * every]


def test_reply_of_standby_is_dropped() -> None:
    pair = Standby()
    pair.b.after_ms = lambda request: 120.0
    pair.ask(0)
    pair.run(20)
    pair.lose(pair.a)
    pair.ask(1)
    pair.run(500)
    assert [(reply.tick, reply.decision.call.name) for _, reply in pair.replies if reply.decision] == [(0, A), (1, B)]  # type: ignore[union-attr]


def test_loss_of_both_decoders_is_reported_once() -> None:
    pair = Standby()
    pair.lose(pair.b)
    assert pair.core.state.up and pair.core.state.events == [], "the standby's loss is not the session's"
    pair.lose(pair.a)
    lost_ns = pair.now_ns
    assert not pair.core.state.up and pair.decided(0) is None
    pair.run(950)
    pair.restore(pair.b)
    assert pair.decided(1) == B
    assert [(e.event, e.t_ns) for e in pair.core.state.events] == [
        ("lost", lost_ns),
        ("restarted", lost_ns + 1_000 * MS),
    ]
    assert pair.core.state.events[1].seconds == 1.0 and pair.core.state.incarnation == 1


def test_loss_between_two_status_checks_is_noticed() -> None:
    pair = Standby()
    pair.a.mark_lost(pair.now_ns)
    pair.restore(pair.a)
    assert pair.core.main == A and pair.core.state.incarnation == 1
    assert [e.event for e in pair.core.state.events] == ["lost", "restarted"]


def test_host_gives_up_when_both_decoders_gave_up() -> None:
    pair = Standby()
    pair.lose(pair.a, "out of memory")
    assert pair.core.state.gave_up is None
    pair.lose(pair.b, "out of luck")
    assert pair.core.state.gave_up == "out of luck" and not pair.core.state.up


@pytest.mark.parametrize("seed", range(25))
def test_random_losses_leave_no_stale_reply(seed: int) -> None:
    chance, pair = random.Random(seed), Standby()
    slow = chance.choice((10.0, 60.0))
    for host in pair.inner.values():
        host.after_ms = lambda request: chance.uniform(1.0, slow)
    given = Counter[int]()

    def judged(reply: DecisionReply) -> None:
        given[reply.tick] += 1
        assert reply.decision is not None and reply.decision.call is not None
        call, main = reply.decision.call, pair.inner[pair.core.main]
        assert call.name == main.name and call.arguments["life"] == main.incarnation and main.up
        assert call.arguments["to"] == f"o{reply.tick}"

    pair.on_reply = judged
    ghosts: list[tuple[str, DecisionReply]] = []
    for tick in range(200):
        host = chance.choice((pair.a, pair.b))
        if chance.random() < (0.06 if host.up else 0.2):
            if host.up:
                # What it had answered already lies in its socket until it is back.
                ghosts += [(host.name, host.answer(request)) for request in host.requests[-2:]]
                pair.lose(host)
            else:
                ghosts = [ghost for ghost in ghosts if ghost[0] != host.name]
                pair.restore(host)
        for name, reply in ghosts:
            if not pair.inner[name].up and name != pair.core.main:
                pair.reply(name, reply)
        main = pair.core.main if pair.core.state.up else None
        pair.ask(tick)
        pair.run(20)
        if main is not None:
            assert any(request.tick == tick for request in pair.inner[main].requests)
        if pair.a.up or pair.b.up:
            assert pair.core.state.up, "one that is up decides"
    pair.run(1_000)
    assert set(given.values()) == {1} and len(given) > 50
    events = [event.event for event in pair.core.state.events]
    assert events == (["lost", "restarted"] * len(events))[: len(events)]
    assert pair.core.state.incarnation == events.count("restarted")
