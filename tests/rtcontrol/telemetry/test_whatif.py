"""Tests that a run's timeline agrees with its counts, and that a replay at another rate predicts such a run."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from synthetic import header, synthetic, timeline_of, two_humps

from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.whatif import TickWork, estimate_rates, outages_of, simulate

MS = st.floats(0, 200)
STEPS = st.lists(st.builds(TickWork, MS, MS, MS, MS, st.booleans()), min_size=1, max_size=20)
RATES = (10.0, 12.0, 20.0, 30.0)


@given(STEPS, st.sampled_from(RATES), st.lists(st.tuples(st.floats(0, 5e3), st.floats(0, 500)), max_size=4))
def test_each_release_is_counted_once(steps: list[TickWork], hz: float, halts: list[tuple[float, float]]) -> None:
    outages, last = [], 0.0
    for begin, length in sorted(halts):
        outages.append((max(begin, last), last := max(begin, last) + length))
    missed = [*simulate(steps, hz, 5.0, outages=outages)]
    assert all(0 <= begin < end <= 5 * hz for begin, end in missed)
    assert [*simulate(steps, hz, 5.0, outages=outages)] == missed


@given(st.floats(0, 24), st.floats(0, 24), st.sampled_from(RATES))
def test_replayed_work_misses_none_or_all_releases(prepare: float, decide: float, hz: float) -> None:
    assert not [*simulate([TickWork(prepare / 3, decide / 3, prepare / 3, decide / 3)], hz, 3.0)]
    assert [*simulate([TickWork(decide=1e3 / hz + 1)], hz, 3.0)] == [(0, 3 * hz)]
    assert [*simulate([TickWork(fails=True)], hz, 3.0)] == [(0, 3 * hz)]


def test_started_decision_is_finished_and_the_next_waits() -> None:
    # 150 ms of 100: the first is late, the second waits 50 ms and is late too, the third waits 100 and never begins.
    assert [*simulate([TickWork(decide=150)], 10, 0.3)] == [(0, 3)]
    # Of work that takes turns of three quarters of a period in two threads, nothing waits.
    assert not [*simulate([TickWork(prepare=20, decide=50, execute=25)], 10, 3.0)]


def test_late_loop_skips_periods_and_outages_stop_all() -> None:
    assert [*simulate([TickWork(prepare=250)], 10, 3.0)] == [(0, 30)]
    found = simulate([TickWork(decide=10)], 10, 3.0, outages=[(1005, 1495)])
    assert [*found] in ([(10, 15)], [(10, 14)])
    assert not [*simulate([TickWork(decide=10)], 10, 3.0, outages=[(1020, 1060)])]


def test_other_rates_are_predicted_within_two_points() -> None:
    flight = timeline_of(synthetic(16, 600, two_humps(1)))
    told = {line["hz"]: line["miss_rate"] for line in estimate_rates(flight)}
    assert abs(told[16] - flight.account.miss_rate) < 0.02
    for seed, hz in enumerate(RATES, 2):
        real = timeline_of(synthetic(hz, 600, two_humps(seed))).account.miss_rate
        assert 0.05 < real < 0.6
        assert abs(told[hz] - real) < 0.02, (hz, told, real)


def test_replayed_pause_keeps_its_place() -> None:
    events = [*synthetic(16, 10, lambda k: 20.0)]
    for event in events:
        if event.get("k") == 80 and "kind" in event:
            event |= {"kind": "miss", "cause": "pause", "subcause": "gc", "evidence": {"explained_ms": 300.0}}
            event.pop("call")
    ((begin, end),) = outages_of(timeline_of(events))
    assert begin == 5000 and 250 <= end - begin <= 320
    ((own,),) = [[line for line in estimate_rates(timeline_of(events)) if line["own"]]]
    assert 3 / 160 <= own["miss_rate"] <= 6 / 160


def test_lockstep_world_holds_at_any_rate() -> None:
    assert estimate_rates(timeline_of(synthetic(16, 2, lambda k: 20.0, clock="lockstep"))) == []


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
