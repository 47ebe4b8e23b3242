"""The timeline says of each tick what the account counts of all."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from synthetic import header, synthetic, timeline_of

from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.timeline import Timeline

CAUSES = st.sampled_from(["decide", "pause", "wake", "unknown"])
STATUS = st.sampled_from(["executed", "expired", "failed"])


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Ticks with what may be told of them later, in the order in which a loop tells it."""
    events: list[dict[str, Any]] = [{"header": header(16)}]
    k = 0
    for _ in range(draw(st.integers(1, 30))):
        skipped = draw(st.integers(0, 2))
        k += skipped
        tick: dict[str, Any] = {"k": k, "t_s": k / 16, "superseded": 0}
        if skipped:
            tick |= {"skipped": skipped, "skip_cause": "wake"}
        cause = draw(st.none() | CAUSES)
        acted = {"kind": "call", "call": "push()", "latency_ms": 9.0}
        earlier = draw(st.integers(0, k))
        later = [
            {"ack": earlier, "status": draw(STATUS), "t_s": k / 16},
            {"late": earlier, "used": False, "latency_ms": 80.0},
            {"overran": earlier, "effect": "acted", "call": "push()", "t_s": k / 16},
        ]
        events.append(tick | (acted if cause is None else {"kind": "miss", "cause": cause}))
        events += draw(st.lists(st.sampled_from(later), max_size=1))
        k += 1
    return events


@given(runs())
def test_timeline_adds_up_to_the_account(events: list[dict[str, Any]]) -> None:
    timeline, account = timeline_of(events), Account()
    for event in events:
        account.add(event)
    causes = [timeline.words["cause"][row] for row in range(len(timeline.k))]
    assert Counter(filter(None, causes)) == +account.misses_by_cause
    both = [(c, timeline.words["subcause"][row]) for row, c in enumerate(causes)]
    assert Counter(f"{c}.{s}" for c, s in both if s) == +account.by["misses_by_subcause"]
    assert causes.count("") == account.on_time
    assert sum(s for s in timeline.numbers["skipped"] if s == s) == account.counts["skipped_releases"]
    assert [*timeline.k] == sorted(timeline.k)


CALL = {"superseded": 0, "kind": "call", "call": "push(force=2)", "latency_ms": 20.0}
MISS = {"superseded": 0, "kind": "miss", "cause": "decide", "subcause": "decoder_slow", "action": "hold"}


def told(timeline: Timeline, row: int) -> list[tuple[str, str, float]]:
    return [(call, why, round(ms, 6)) for call, why, ms in timeline.instead(row)]


def test_calls_of_a_record_are_what_acted() -> None:
    """Each safe call, and a late one by its name; a fresh call that its client did not carry out acted nowhere."""
    push = {"called": "push", "arguments": {"force": 1}}
    timeline = timeline_of(
        [
            {"header": header(10)},
            {**push, "k": 0, "why": "fresh", "t_s": 0.02},
            {"k": 0, "t_s": 0.0, **CALL, "call": "push(force=1)"},
            {"called": "push", "arguments": {"force": 2}, "k": 1, "why": "fresh", "t_s": 0.12},
            {"k": 1, "t_s": 0.1, **CALL},
            {"ack": 1, "status": "expired", "why": "fresh", "error": "too old", "t_s": 0.18},
            {"called": "brake", "arguments": {}, "k": 1, "why": "safe", "t_s": 0.23},
            {"safe": "brake()", "why": "miss", "t_s": 0.23, "attempt": 1, "in_force": False},
            {"called": "push", "arguments": {"force": 0}, "k": 1, "why": "safe", "t_s": 0.24},
            {"safe": "push(force=0)", "why": "miss", "t_s": 0.24, "attempt": 1, "in_force": True},
            {"k": 2, "t_s": 0.2, **MISS},
            {"called": "push", "arguments": {"force": -1}, "k": 2, "why": "late", "t_s": 0.35},
            {"late": 2, "used": True, "latency_ms": 150.0, "t_s": 0.35},
        ]
    )
    assert told(timeline, 1) == [
        ("push(force=1)", "held", 30.0),
        ("brake()", "safe", 10.0),
        ("push(force=0)", "safe", 110.0),
    ]
    assert told(timeline, 2) == [("push(force=0)", "held", 50.0)]
    assert timeline.acts[-1][1:3] == ("push(force=-1)", "late")
    assert timeline.details[1]["error"] == "too old"
    assert (timeline.account.counts["misses"], timeline.words["cause"][1], timeline.words["subcause"][1]) == (
        2,
        "execute",
        "expired",
    )


def test_late_decision_adds_spans_to_its_tick() -> None:
    timeline = timeline_of(synthetic(16, 1, lambda k: 70 if k == 3 else 20))
    row = timeline.k.index(3)
    assert timeline.words["subcause"][row] == "decoder_slow"
    assert math.isclose(timeline.stage_ms(row, "decide"), 70, abs_tol=0.01)
    assert math.isnan(timeline.stage_ms(row, "execute"))
    assert timeline.details[3]["evidence"] == {"decide_ms": 70}
