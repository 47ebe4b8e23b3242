"""Tests that the timeline of each tick agrees with the account's counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from synthetic import header, synthetic, timeline_of

from rtcontrol.telemetry.account import Account

CAUSES = st.sampled_from(["decide", "pause", "wake", "unknown"])
STATUS = st.sampled_from(["executed", "expired", "failed"])


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Yield random runs: ticks with later events about them, in the order in which a loop writes them."""
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
    assert Counter(f"{c}.{s}" for c, s in both if s) == +account.breakdowns["misses_by_subcause"]
    assert causes.count("") == account.on_time
    assert sum(s for s in timeline.numbers["skipped"] if s == s) == account.counts["skipped_releases"]
    assert [*timeline.k] == sorted(timeline.k)


def test_call_that_client_did_not_execute_is_a_miss() -> None:
    call = {"superseded": 0, "kind": "call", "call": "push(force=2)", "latency_ms": 20.0}
    failed = {"ack": 1, "status": "expired", "why": "fresh", "error": "too old", "t_s": 0.18}
    ticks = [{"k": k, "t_s": k / 10, **call} for k in range(3)]
    timeline = timeline_of([{"header": header(10)}, *ticks, failed, {"ack": 2, "status": "failed", "why": "safe"}])
    assert timeline.account.counts["misses"] == 1 and timeline.details[1]["error"] == "too old"
    assert [(timeline.words["cause"][row], timeline.words["subcause"][row]) for row in (1, 2)] == [
        ("execute", "expired"),
        ("", ""),
    ]


def test_late_decision_adds_spans_to_its_tick() -> None:
    timeline = timeline_of(synthetic(16, 1, lambda k: 70 if k == 3 else 20))
    row = timeline.k.index(3)
    assert timeline.words["subcause"][row] == "decoder_slow"
    assert math.isclose(timeline.stage_ms(row, "decide"), 70, abs_tol=0.01)
    assert math.isnan(timeline.stage_ms(row, "execute"))
    assert timeline.details[3]["evidence"] == {"decide_ms": 70}
