"""The clock offset's law, and its filter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.wire.messages import Pong
from rtcontrol.bridges.wire.offset import OffsetFilter, measure

delays = st.integers(0, 10**9)


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**15), delays, delays, delays)
def test_true_offset_lies_within_half_the_round_trip(offset: int, t0: int, there: int, busy: int, back: int) -> None:
    t1 = t0 + offset + there
    found = measure(t0, t1, t1 + busy, t0 + there + busy + back)
    assert found is not None and found.rtt_ns == there + back
    # Rounded to whole nanoseconds.
    assert abs(found.offset_ns - offset) <= found.error_ns + 0.5


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(delays, delays), min_size=1, max_size=16))
def test_filter_is_as_good_as_its_best_exchange(offset: int, ways: list[tuple[int, int]]) -> None:
    believed, t0 = OffsetFilter(max_age_ns=10**12), 10**16
    for there, back in ways:
        pong = Pong(id=0, t_ping_ns=t0, t_received_ns=t0 + offset + there, t_sent_ns=t0 + offset + there)
        t0 += there + back
        found = believed.pong(pong, t0)
    assert found is not None and found.rtt_ns == min(sum(w) for w in ways)
    assert abs(found.ours_ns(t0 + offset) - t0) <= found.error_ns + 0.5


def test_nothing_is_believed_before_the_first_exchange_or_long_after_the_last() -> None:
    believed = OffsetFilter(max_age_ns=1000)
    assert believed.now(0) is None
    believed.add(0, 10, 10, 20)
    assert believed.now(1020) is not None
    assert believed.now(1021) is None
