"""Whose turn it is: the earliest deadline, with what can be decided together in time; and random calls."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from rtcontrol.gateway.decide import source
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.deciders import RandomSource, build
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.scheduler import OLD_TURNS, UNLIMITED_NS, EdfScheduler, Turn
from rtcontrol.models.errors import UserError
from tests.rtcontrol.hosts.pooled import request

MS = 1_000_000


def due(tick: int, ms: float) -> DecisionRequest:
    return DecisionRequest(tick, 1, "x", "go", within_ns=int(ms * MS))


class Rota(EdfScheduler):
    """A scheduler with a clock, in ms, that the test moves."""

    ms = 0.0

    def ask(self, key: Any, asked: DecisionRequest) -> None:
        self.put(key, asked, int(self.ms * MS))

    def turn(self, *given: Any, **named: Any) -> list[Turn]:
        return self.take(int(self.ms * MS), *given, **named)


def keys(turn: Any) -> list[Any]:
    return [key for key, _ in turn]


def one_kind(key: Any) -> str:
    return "model"


def test_rota_takes_patient_sessions_last_and_only_where_they_may() -> None:
    rota = Rota()
    rota.ask("late", request(1))
    rota.ask("other", request(1))
    late = "late".__eq__
    taken = [rota.turn(patient=late), rota.turn(patient=late, late=False), rota.turn(patient=late)]
    assert [keys(t) for t in taken] == [["other"], [], ["late"]]
    assert rota.turn(patient=late) == []


def test_rota_keeps_the_place_of_a_session_that_gives_requests_up() -> None:
    rota = Rota()
    rota.ask("hasty", request(1))
    rota.ask("patient", request(1))
    rota.cancel("hasty", 1)
    rota.ask("hasty", request(2))
    taken = [*rota.turn(), *rota.turn(), *rota.turn()]
    assert [(key, asked.tick) for key, asked in taken] == [("hasty", 2), ("patient", 1)]
    rota.ask("hasty", request(3))
    rota.ask("patient", request(2))
    rota.cancel("hasty", 2)  # another's tick, or one long gone
    rota.remove("patient")
    taken = [*rota.turn(), *rota.turn()]
    assert [(key, asked.tick) for key, asked in taken] == [("hasty", 3)]


def test_the_earliest_deadline_goes_first() -> None:
    rota = Rota()
    for key, ms in (("slow", 100), ("fast", 10), ("middle", 50)):
        rota.ask(key, due(1, ms))
    assert [keys(rota.turn()) for _ in range(3)] == [["fast"], ["middle"], ["slow"]]


def test_what_cannot_be_in_time_together_is_decided_apart() -> None:
    rota = Rota()
    rota.took("model", 1, 4 * MS)
    rota.took("model", 2, 6 * MS)
    for key, ms in (("a", 5), ("b", 50), ("c", 60), ("d", 70)):
        rota.ask(key, due(1, ms))
    assert keys(rota.turn(one_kind)) == ["a"]  # two take 6 ms
    assert keys(rota.turn(one_kind)) == ["b", "c", "d"]  # three perhaps 9
    assert rota.turn(one_kind) == []


def test_a_number_of_decisions_that_was_slow_once_is_tried_again() -> None:
    rota = Rota()
    rota.took("model", 1, 4 * MS)
    rota.took("model", 2, 500 * MS)
    for key in ("a", "b", "c"):
        rota.ask(key, due(1, 12))
    assert [rota.expected("model", n) for n in (1, 2, 3)] == [4 * MS, 8 * MS, 12 * MS]
    assert keys(rota.turn(one_kind)) == ["a", "b", "c"]


def test_a_number_of_decisions_that_was_fast_once_is_not_trusted_for_ever() -> None:
    rota = Rota()
    rota.took("model", 1, 1 * MS)  # when the machine did nothing else
    for _ in range(OLD_TURNS + 1):
        rota.took("model", 4, 20 * MS)
    assert rota.expected("model", 4) == pytest.approx(20 * MS)
    assert rota.expected("model", 2) == 2 * MS, "there is nothing newer"
    for key in ("a", "b", "c", "d"):
        rota.ask(key, due(1, 12))
    assert keys(rota.turn(one_kind)) == ["a", "b", "c"], "four would be late"
    rota.took("model", 1, 6 * MS)
    assert rota.expected("model", 1) == 6 * MS, "it counts anew"


@pytest.mark.parametrize("seed", range(25))
def test_random_load_is_served_by_deadline_and_none_starves(seed: int) -> None:
    """Each request is decided, replaced by a newer one or cancelled, exactly once."""
    chance, rota = random.Random(seed), Rota(depth=chance_depth(seed))
    within = {key: chance.choice((5.0, 20.0, 100.0, 0.0)) for key in range(chance.randint(2, 12))}
    waiting: dict[int, list[int]] = {key: [] for key in within}
    began: dict[int, float] = {}  # when each session began to wait
    served = Counter[int]()
    for tick in range(400):
        key = chance.choice(list(within))
        rota.ask(key, due(tick, within[key]))
        waiting[key] = [*waiting[key], tick][-chance_depth(seed) :]
        began.setdefault(key, rota.ms)
        if chance.random() < 0.1 and waiting[key]:
            rota.cancel(key, waiting[key].pop(0))
        if chance.random() < 0.5:
            turn = rota.turn(one_kind)
            ends = {k: round(began[k] + (within[k] or UNLIMITED_NS / MS), 5) for k in within if waiting[k]}
            assert len(turn) < 2 or rota.expected("model", len(turn)) <= (turn[0][1].within_ns or UNLIMITED_NS)
            taken = [ends.pop(k) for k, _ in turn]
            assert taken == sorted(taken) and max(taken, default=0.0) <= min(ends.values(), default=1e9) + 1e-5
            for k, asked in turn:
                assert asked.tick == waiting[k].pop(), "the newest"
                served[k] += 1
                del began[k]
                if waiting[k]:
                    began[k] = rota.ms
            took = chance.uniform(1.0, 4.0)
            rota.ms += took
            if turn:
                rota.took("model", len(turn), round(took * MS))
        assert all(rota.ms - since <= UNLIMITED_NS / MS + 100 for k, since in began.items() if waiting[k]), "starved"
    while turn := rota.turn(one_kind):
        for k, asked in turn:
            assert asked.tick == waiting[k].pop()
    assert not any(waiting.values()) and all(served.values())


def chance_depth(seed: int) -> int:
    return 1 + seed % 3


def tool(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"name": "heat", "parameters": {"type": "object", "properties": properties, "required": required}}


def test_an_open_domain_is_refused_when_it_is_opened_whichever_tool_would_be_drawn() -> None:
    tools = (tool(["t"], t={"type": "number"}), {"name": "stop"})
    with pytest.raises(UserError, match="Tool heat, parameter t: no value of it can be made up"):
        build(source(GatewayOptions(model="random"), tools))
    build(RandomSource((tool([], t={"type": "number"}),)))
