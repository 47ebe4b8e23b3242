"""Percentiles of times that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.metrics.scores import curve, latency

TIMES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=200)


@given(TIMES)
def test_percentiles_are_times_that_were_measured_and_grow(ms: list[float]) -> None:
    found = latency(ms)
    shown = [found[name] for name in ("p50", "p90", "p95", "p99", "max")]
    assert shown == sorted(shown) and {round(one, 3) for one in ms} >= set(shown)
    assert min(ms) - 1e-3 <= found["mean"] <= max(ms) + 1e-3 and found["count"] == len(ms)
    assert sum(one <= found["p90"] + 5e-4 for one in ms) >= 0.9 * len(ms)
    assert [one for _, one in curve(ms)] == sorted(one for _, one in curve(ms))


def test_the_median_gives_the_rate() -> None:
    assert latency([50.0, 60.0, 70.0])["hz"] == pytest.approx(16.67)


def test_nothing_measured_is_none() -> None:
    assert latency([]) == {"count": 0, **dict.fromkeys(("p50", "p90", "p95", "p99", "mean", "max", "hz"))}
    assert curve([]) == []
