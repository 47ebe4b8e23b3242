"""Whose turn it is: the earliest deadline, with what can be decided together in time; and random calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Tools
from rtcontrol.gateway.source import source
from rtcontrol.hosts.deciders import RandomSource, build
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.scheduler import OLD_TURNS, UNLIMITED_NS, EdfScheduler
from rtcontrol.models.errors import UserError
from tests.rtcontrol.hosts.pooled import request

MS = 1_000_000


def due(tick: int, ms: float) -> DecisionRequest:
    return DecisionRequest(tick, 1, "x", "go", within_ns=int(ms * MS))


def rota_at(*times_ms: float, depth: int = 1) -> tuple[EdfScheduler, list[float]]:
    """A rota, and its clock in milliseconds, which may be set."""
    clock = list(times_ms) or [0.0]
    return EdfScheduler(depth, lambda: int(clock[0] * MS)), clock


def keys(turn: Any) -> list[Any]:
    return [key for key, _ in turn]


def one_kind(key: Any) -> str:
    return "model"


def test_rota_takes_patient_sessions_last_and_only_where_they_may() -> None:
    rota = EdfScheduler()
    rota.put("late", request(1))
    rota.put("other", request(1))
    late = "late".__eq__
    taken = [rota.take(patient=late), rota.take(patient=late, late=False), rota.take(patient=late)]
    assert [keys(t) for t in taken] == [["other"], [], ["late"]]
    assert rota.take(patient=late) == []


def test_rota_keeps_the_place_of_a_session_that_gives_requests_up() -> None:
    rota = EdfScheduler()
    rota.put("hasty", request(1))
    rota.put("patient", request(1))
    rota.cancel("hasty", 1)
    rota.put("hasty", request(2))
    taken = [*rota.take(), *rota.take(), *rota.take()]
    assert [(key, asked.tick) for key, asked in taken] == [("hasty", 2), ("patient", 1)]
    rota.put("hasty", request(3))
    rota.put("patient", request(2))
    rota.cancel("hasty", 2)  # another's tick, or one long gone
    rota.remove("patient")
    taken = [*rota.take(), *rota.take()]
    assert [(key, asked.tick) for key, asked in taken] == [("hasty", 3)]


def test_rota_gives_the_newest_of_the_waiting_requests() -> None:
    rota = EdfScheduler(depth=2)
    for tick in range(3):
        rota.put("one", request(tick))
    rota.put("other", request(9))
    taken = [turn for _ in range(4) for turn in rota.take()]
    assert [(key, asked.tick) for key, asked in taken] == [("one", 2), ("other", 9), ("one", 1)]


def test_the_earliest_deadline_goes_first() -> None:
    rota, _ = rota_at()
    for key, ms in (("slow", 100), ("fast", 10), ("middle", 50)):
        rota.put(key, due(1, ms))
    assert [keys(rota.take()) for _ in range(3)] == [["fast"], ["middle"], ["slow"]]


def test_what_cannot_be_in_time_together_is_decided_apart() -> None:
    rota, _ = rota_at()
    rota.took("model", 1, 4 * MS)
    rota.took("model", 2, 6 * MS)
    for key, ms in (("a", 5), ("b", 50), ("c", 60), ("d", 70)):
        rota.put(key, due(1, ms))
    assert keys(rota.take(one_kind)) == ["a"]  # two take 6 ms
    assert keys(rota.take(one_kind)) == ["b", "c", "d"]  # three perhaps 9
    assert rota.take(one_kind) == []


def test_only_sessions_of_one_kind_are_decided_together() -> None:
    rota, _ = rota_at()
    for key in ("a1", "b1", "a2", "none1", "none2"):
        rota.put(key, due(1, 50))
    kind = {"a1": "a", "a2": "a", "b1": "b"}.get
    assert [keys(rota.take(kind)) for _ in range(4)] == [["a1", "a2"], ["b1"], ["none1"], ["none2"]]


def test_a_request_without_a_limit_waits_for_a_second_at_most_behind_others() -> None:
    rota, clock = rota_at()
    rota.put("unlimited", request(1))
    served = 0
    rota.put("fast", due(served, 5))
    while "unlimited" not in keys(rota.take()) and served < 1000:
        clock[0] += 5
        served += 1
        rota.put("fast", due(served, 5))
    assert 0 < served * 5 <= UNLIMITED_NS / MS + 5


def test_a_number_of_decisions_that_was_slow_once_is_tried_again() -> None:
    rota, _ = rota_at()
    rota.took("model", 1, 4 * MS)
    rota.took("model", 2, 500 * MS)
    for key in ("a", "b", "c"):
        rota.put(key, due(1, 12))
    assert [rota.expected("model", n) for n in (1, 2, 3)] == [4 * MS, 8 * MS, 12 * MS]
    assert keys(rota.take(one_kind)) == ["a", "b", "c"]


def test_a_number_of_decisions_that_was_fast_once_is_not_trusted_for_ever() -> None:
    rota, _ = rota_at()
    rota.took("model", 1, 1 * MS)  # when the machine did nothing else
    for _ in range(OLD_TURNS + 1):
        rota.took("model", 4, 20 * MS)
    assert rota.expected("model", 4) == pytest.approx(20 * MS)
    assert rota.expected("model", 2) == 2 * MS, "there is nothing newer"
    for key in ("a", "b", "c", "d"):
        rota.put(key, due(1, 12))
    assert keys(rota.take(one_kind)) == ["a", "b", "c"], "four would be late"
    rota.took("model", 1, 6 * MS)
    assert rota.expected("model", 1) == 6 * MS, "it counts anew"


@given(
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), min_size=1, max_size=30),
    took=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_every_waiting_session_gets_its_turn_once_and_no_batch_is_expected_to_be_late(
    asked: list[tuple[int, int]], took: list[int]
) -> None:
    rota, _ = rota_at()
    for n, ms in enumerate(took, start=1):
        rota.took("model", n, ms * MS)
    newest = {}
    for tick, (key, ms) in enumerate(asked):
        rota.put(key, due(tick, ms))
        newest[key] = tick
    found: dict[int, int] = {}
    while turn := rota.take(one_kind):
        assert len(turn) == 1 or rota.expected("model", len(turn)) <= turn[0][1].within_ns
        for key, one in turn:
            assert key not in found
            found[key] = one.tick
    assert found == newest


def tool(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"name": "heat", "parameters": {"type": "object", "properties": properties, "required": required}}


def test_an_open_domain_is_refused_when_it_is_opened_whichever_tool_would_be_drawn() -> None:
    tools = (tool(["t"], t={"type": "number"}), {"name": "stop"})
    with pytest.raises(UserError, match="Tool heat, parameter t: no value of it can be made up"):
        build(source("random", "torch", tools))
    build(RandomSource((tool([], t={"type": "number"}),)))


def test_numbers_too_many_to_list_are_drawn_within_their_bounds() -> None:
    steps = {"type": "number", "minimum": -1, "maximum": 9_000, "multipleOf": 0.5}
    given = (tool(["n", "x"], n={"type": "integer", "minimum": 7, "maximum": 100_000}, x=steps),)
    decider, checked = build(RandomSource(given)), Tools(given)
    calls = [decider.decide(DecisionRequest(i, 0, "", "")).call for i in range(100)]
    assert len({checked.validate(call).arguments["n"] for call in calls if call is not None}) > 90
