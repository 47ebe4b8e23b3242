"""Tests that a replay at another rate predicts a run at that rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from synthetic import synthetic, timeline_of, two_humps

from rtcontrol.telemetry.whatif import Step, outages_of, rates_table, simulate

MS = st.floats(0, 200)
STEPS = st.lists(st.builds(Step, MS, MS, MS, MS, st.booleans()), min_size=1, max_size=20)
RATES = (10.0, 12.0, 20.0, 30.0)


@given(STEPS, st.sampled_from(RATES), st.lists(st.tuples(st.floats(0, 5e3), st.floats(0, 500)), max_size=4))
def test_each_release_is_counted_once(steps: list[Step], hz: float, halts: list[tuple[float, float]]) -> None:
    outages, last = [], 0.0
    for begin, length in sorted(halts):
        outages.append((max(begin, last), last := max(begin, last) + length))
    missed = [*simulate(steps, hz, 5.0, outages=outages)]
    assert all(0 <= begin < end <= 5 * hz for begin, end in missed)
    assert [*simulate(steps, hz, 5.0, outages=outages)] == missed


@given(st.floats(0, 24), st.floats(0, 24), st.sampled_from(RATES))
def test_replayed_work_misses_none_or_all_releases(prepare: float, decide: float, hz: float) -> None:
    assert not [*simulate([Step(prepare / 3, decide / 3, prepare / 3, decide / 3)], hz, 3.0)]
    assert [*simulate([Step(decide=1e3 / hz + 1)], hz, 3.0)] == [(0, 3 * hz)]
    assert [*simulate([Step(fails=True)], hz, 3.0)] == [(0, 3 * hz)]


def test_started_decision_is_finished_and_the_next_waits() -> None:
    # 150 ms of 100: the first is late, the second waits 50 ms and is late too, the third waits 100 and never begins.
    assert [*simulate([Step(decide=150)], 10, 0.3)] == [(0, 3)]
    # Of work that takes turns of three quarters of a period in two threads, nothing waits.
    assert not [*simulate([Step(prepare=20, decide=50, execute=25)], 10, 3.0)]


def test_late_loop_skips_periods_and_outages_stop_all() -> None:
    assert [*simulate([Step(prepare=250)], 10, 3.0)] == [(0, 30)]
    found = simulate([Step(decide=10)], 10, 3.0, outages=[(1005, 1495)])
    assert [*found] in ([(10, 15)], [(10, 14)])
    assert not [*simulate([Step(decide=10)], 10, 3.0, outages=[(1020, 1060)])]


def test_other_rates_are_predicted_within_two_points() -> None:
    flight = timeline_of(synthetic(16, 600, two_humps(1)))
    told = {line["hz"]: line["miss_rate"] for line in rates_table(flight)}
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
    ((own,),) = [[line for line in rates_table(timeline_of(events)) if line["own"]]]
    assert 3 / 160 <= own["miss_rate"] <= 6 / 160


def test_lockstep_world_holds_at_any_rate() -> None:
    assert rates_table(timeline_of(synthetic(16, 2, lambda k: 20.0, clock="lockstep"))) == []
