"""Bursts hold every miss once, and nothing quiet."""

from __future__ import annotations

from itertools import groupby, pairwise

from flown import flown, header, timeline_of
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.telemetry.recorded import bursts, described, worst

RELEASES = st.lists(st.booleans(), max_size=60)


def ranges(missed: list[bool]) -> list[tuple[int, int]]:
    found = []
    for gone, group in groupby(enumerate(missed), lambda pair: pair[1]):
        ks = [k for k, _ in group]
        if gone:
            found.append((ks[0], ks[-1] + 1))
    return found


@given(RELEASES, st.integers(1, 6))
def test_each_miss_is_in_one_burst_and_no_burst_holds_a_long_quiet(missed: list[bool], gap: int) -> None:
    found = bursts(ranges(missed), gap)
    assert sum(b.missed for b in found) == sum(missed)
    for b in found:
        within = missed[b.begin : b.end]
        assert within[0] and within[-1] and sum(within) == b.missed
        assert all(len([*g]) <= gap for gone, g in groupby(within) if not gone)
    for one, next_one in pairwise(found):
        assert next_one.begin - one.end > gap


@given(RELEASES, st.integers(1, 3))
def test_the_worst_are_those_with_the_most_misses(missed: list[bool], most: int) -> None:
    found = bursts(ranges(missed), 2)
    best = worst(found, most)
    assert [b.missed for b in best] == sorted((b.missed for b in found), reverse=True)[:most]


def test_a_burst_is_told_with_its_causes_what_came_before_and_its_recovery() -> None:
    on_time = {"superseded": 0, "kind": "call", "call": "push()", "latency_ms": 25.0}
    events = [{"header": header(10)}, *({"k": k, "t_s": k / 10, **on_time} for k in range(20))]
    events += [{"host_event": {"t_s": 1.9, "event": "lost", "seconds": 0}}]
    events += [{"k": 20, "t_s": 2.0, "superseded": 0, "kind": "miss", "cause": "host", "subcause": "lost"}]
    events += [
        {"k": 23, "t_s": 2.3, "kind": "miss", "cause": "wake", "superseded": 0, "skipped": 2, "skip_cause": "wake"}
        | {"skip_subcause": "gc"}
    ]
    events += [{"k": k, "t_s": k / 10, **on_time} for k in range(24, 60)]
    events += [{"k": 61, "t_s": 6.1, "superseded": 0, "skipped": 1, "skip_cause": "pause", **on_time}]
    first, second = described(timeline_of(events))
    assert (first["begin"], first["end"], first["missed"]) == (20, 24, 4)
    assert first["causes"] == {"skipped.wake.gc": 2, "host.lost": 1, "wake": 1}
    assert first["before"] == [{"t_s": 1.9, "what": "decoder lost"}]
    assert (first["t_s"], first["seconds"], first["recovery_ms"]) == (2.0, 0.4, 425.0)
    assert second["causes"] == {"skipped.pause": 1} and second["t_s"] == 6.0
    assert sum(second["causes"].values()) == second["missed"] == 1


def test_a_run_that_ends_in_a_burst_never_recovered() -> None:
    (burst,) = described(timeline_of(flown(16, 3, lambda k: 20 if k < 40 else 5000)))
    assert burst["recovery_ms"] is None and burst["missed"] == 8
