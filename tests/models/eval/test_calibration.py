"""Calibration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.metrics.intervals import BINS, calibration

DECIDED = st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 1)), min_size=1, max_size=200)


@given(DECIDED)
def test_bins_are_of_equal_mass_and_their_error_is_a_share(decided: list[tuple[float, int]]) -> None:
    found = calibration(*zip(*decided, strict=True))
    counts = [count for count, _, _ in found["bins"]]
    assert sum(counts) == found["decisions"] == len(decided)
    assert len(counts) == min(BINS, len(decided)) and max(counts) - min(counts) <= 1
    means = [mean for _, mean, _ in found["bins"]]
    assert means == sorted(means) and 0 <= found["ece"] <= 1


def test_who_is_as_often_right_as_sure_has_no_error_and_who_is_always_wrong_has_all() -> None:
    sure = [i / 100 for i in range(10, 100, 6)]
    honest = [(c, int(k < round(100 * c))) for c in sure for k in range(100)]
    assert calibration(*zip(*honest, strict=True))["ece"] == pytest.approx(0, abs=1e-4)
    assert calibration([0.9] * 30, [0] * 30)["ece"] == pytest.approx(0.9)
    # One bin of all would call this right.
    assert calibration([0.25] * 32 + [1.0] * 28, [1] * 32 + [0] * 28)["ece"] == pytest.approx(52 / 60, abs=1e-4)
