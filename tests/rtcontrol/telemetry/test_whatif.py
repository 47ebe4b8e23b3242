"""What a replay at another rate says is what a run at that rate does."""

from __future__ import annotations

import math
import multiprocessing
import time
from pathlib import Path

import pytest
from cart import Flight, good
from flown import flown, timeline_of, two_humps
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Decision
from rtcontrol.telemetry.recorded import load
from rtcontrol.telemetry.whatif import Step, outages_of, replay, steps_of, table

MS = st.floats(0, 200)
STEPS = st.lists(st.builds(Step, MS, MS, MS, MS, st.booleans()), min_size=1, max_size=20)
RATES = (10.0, 12.0, 20.0, 30.0)


@given(STEPS, st.sampled_from(RATES), st.lists(st.tuples(st.floats(0, 5e3), st.floats(0, 500)), max_size=4))
def test_each_release_is_counted_once_whatever_the_work(
    steps: list[Step], hz: float, halts: list[tuple[float, float]]
) -> None:
    outages, last = [], 0.0
    for begin, length in sorted(halts):
        outages.append((max(begin, last), last := max(begin, last) + length))
    missed = [*replay(steps, hz, 5.0, outages=outages)]
    assert all(0 <= begin < end <= 5 * hz for begin, end in missed)
    assert [*replay(steps, hz, 5.0, outages=outages)] == missed


@given(st.floats(0, 24), st.floats(0, 24), st.sampled_from(RATES))
def test_work_that_fits_misses_nothing_and_a_step_that_never_fits_misses_all(
    prepare: float, decide: float, hz: float
) -> None:
    assert not [*replay([Step(prepare / 3, decide / 3, prepare / 3, decide / 3)], hz, 3.0)]
    assert [*replay([Step(decide=1e3 / hz + 1)], hz, 3.0)] == [(0, 3 * hz)]
    assert [*replay([Step(fails=True)], hz, 3.0)] == [(0, 3 * hz)]


def test_a_decision_that_has_begun_is_not_broken_off_and_the_next_waits_for_it() -> None:
    # 150 ms of 100: the first is late, the second waits 50 ms and is late too, the third waits 100 and never begins.
    assert [*replay([Step(decide=150)], 10, 0.3)] == [(0, 3)]
    # Of work that takes turns of three quarters of a period in two threads, nothing waits.
    assert not [*replay([Step(prepare=20, decide=50, execute=25)], 10, 3.0)]


def test_a_loop_that_is_late_by_periods_skips_them_and_nothing_goes_on_in_an_outage() -> None:
    assert [*replay([Step(prepare=250)], 10, 3.0)] == [(0, 30)]
    found = replay([Step(decide=10)], 10, 3.0, outages=[(1005, 1495)])
    assert [*found] in ([(10, 15)], [(10, 14)])
    assert not [*replay([Step(decide=10)], 10, 3.0, outages=[(1020, 1060)])]


def test_other_rates_are_told_from_one_run_within_two_points() -> None:
    flight = timeline_of(flown(16, 600, two_humps(1)))
    told = {line["hz"]: line["miss_rate"] for line in table(flight)}
    assert abs(told[16] - flight.miss_rate) < 0.02
    for seed, hz in enumerate(RATES, 2):
        real = timeline_of(flown(hz, 600, two_humps(seed))).miss_rate
        assert 0.05 < real < 0.6
        assert abs(told[hz] - real) < 0.02, (hz, told, real)


def test_times_of_a_record_are_known_also_where_the_decision_came_late() -> None:
    flight = timeline_of(flown(16, 10, lambda k: 70.0 if k % 10 == 3 else 20.0))
    steps = steps_of(flight)
    assert sum(math.isclose(s.decide, 70) for s in steps) == sum(k % 10 == 3 for k in range(160))
    assert all(math.isclose(s.prepare + s.reply, 0.1 + 0.2 + 0.1 + 0.3 + 0.3 + 0.1, abs_tol=0.01) for s in steps)
    assert not outages_of(flight)


def test_a_pause_stays_where_it_was() -> None:
    events = [*flown(16, 10, lambda k: 20.0)]
    for event in events:
        if event.get("k") == 80 and "kind" in event:
            event |= {"kind": "miss", "cause": "pause", "subcause": "gc", "latency_ms": 320.0, "decide_ms": 20.0}
            event.pop("call")
    ((begin, end),) = outages_of(timeline_of(events))
    assert begin == 5000 and 250 <= end - begin <= 320
    ((own,),) = [[line for line in table(timeline_of(events)) if line["own"]]]
    assert 3 / 160 <= own["miss_rate"] <= 6 / 160


def test_the_agents_slow_text_is_work_also_where_its_call_was_dropped() -> None:
    events = [*flown(16, 10, lambda k: 20.0)]
    for event in events:
        if event.get("k") in range(0, 160, 4) and "kind" in event:
            spans = {"woke": 0.1, "text": 45.1, "submitted": 45.2, "received": 45.4, "begun": 45.4, "decided": 65.4}
            event |= {"kind": "miss", "cause": "decide", "subcause": "observe", "decide_ms": 20.0}
            event["spans_ms"] = spans | {"replied": 65.7}
            del event["call"], event["latency_ms"], event["execute_ms"]
    told = {line["hz"]: line["miss_rate"] for line in table(timeline_of(events))}
    assert told[10] == 0 and 0.2 < told[16] < 0.3 and told[30] > 0.2


def test_what_a_request_waits_for_a_busy_decoder_is_no_work() -> None:
    steps = steps_of(timeline_of(flown(16, 20, lambda k: 80.0 if k % 4 == 0 else 20.0)))
    assert any(step.decide > 79 for step in steps) and max(step.prepare for step in steps) < 1


def test_a_world_that_waits_holds_at_any_rate() -> None:
    assert table(timeline_of(flown(16, 2, lambda k: 20.0, clock="lockstep"))) == []


def fly(hz: float, out: Path) -> Path:
    """A real run of a decider with two humps, in a process of its own."""
    took = two_humps(round(hz))

    def decide(request: DecisionRequest) -> Decision:
        if request.tick >= 0:
            time.sleep(took(request.tick) / 1e3)
        return good(request)

    Flight(out, decide, hz=hz, duration_s=150.0).run()
    return out


@pytest.mark.slow
@pytest.mark.realtime
def test_other_rates_are_told_within_two_points_of_real_reruns(tmp_path: Path) -> None:
    rates = (16.0, *RATES)
    with multiprocessing.get_context("spawn").Pool(len(rates)) as pool:
        outs = pool.starmap(fly, [(hz, tmp_path / f"{hz:g}") for hz in rates])
    own, *others = load(outs)
    told = {line["hz"]: line["miss_rate"] for line in table(own.timeline)}
    real = {hz: other.report["miss_rate"] for hz, other in zip(RATES, others, strict=True)}
    print({hz: (round(told[hz], 4), round(real[hz], 4)) for hz in RATES})
    for hz in RATES:
        assert 0.05 < real[hz] < 0.6 and abs(told[hz] - real[hz]) < 0.02, (told, real)
