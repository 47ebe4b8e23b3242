"""The absolute grid: no drift, whole periods skipped, phase kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from cart import Flight
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.loop.clock import RateClock

pytestmark = pytest.mark.realtime


@given(
    period=st.integers(1_000, 10**9),
    t0=st.integers(0, 2**62),
    busy=st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
)
def test_every_release_is_started_or_skipped_and_stays_on_the_grid(period: int, t0: int, busy: list[int]) -> None:
    clock = RateClock(period)
    clock.begin(t0)
    now, started, skipped_in_all, last = t0, 0, 0, -1
    for work in busy:
        now = max(now, clock.next_release_ns)
        k, release, skipped = clock.take(now)
        assert release == t0 + k * period
        assert release <= now < release + period
        assert k == last + 1 + skipped
        last, started, skipped_in_all = k, started + 1, skipped_in_all + skipped
        assert k + 1 == started + skipped_in_all
        now += work


def test_a_release_that_is_not_due_cannot_be_taken() -> None:
    clock = RateClock(1_000)
    clock.begin(10_000)
    with pytest.raises(ValueError, match="ahead"):
        clock.take(9_999)


def test_wakes_on_the_grid_without_drift(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=100.0, duration_s=1.0).run()
    wake = sorted(t["wake_ms"] for t in flight.ticks)
    assert len(wake) >= 95
    assert wake[len(wake) // 2] < 1.0
    last = flight.ticks[-1]
    assert last["t_s"] == pytest.approx(last["k"] / 100, abs=1e-6)


def test_ending_does_not_wait_for_a_slow_rate(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=0.2, duration_s=None, max_age_ms=10_000)
    began = time.monotonic()
    threading.Timer(0.2, lambda: flight.loop.stop("SIGTERM")).start()
    flight.run()
    assert time.monotonic() - began < 4.0  # a period is 5 s
