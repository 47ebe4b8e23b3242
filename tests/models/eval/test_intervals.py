"""Intervals of shares, and of differences of the same samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.metrics.intervals import mcnemar, paired, share, wilson

PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def test_wilson_interval() -> None:
    assert wilson(19, 20) == pytest.approx((0.764, 0.991), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(20, 20)[1] == pytest.approx(1.0)
    assert share(1, 4)["share"] == 0.25 and share(0, 0)["share"] is None


@given(PAIRS)
def test_a_difference_lies_in_its_interval_and_turns_with_the_runs(pairs: list[tuple[bool, bool]]) -> None:
    a, b = zip(*pairs, strict=True)
    found, turned = paired(a, b), paired(b, a)
    assert found.both + found.only_a + found.only_b + found.neither == len(pairs)
    assert found.difference == pytest.approx((sum(b) - sum(a)) / len(pairs))
    assert found.low - 1e-9 <= found.difference <= found.high + 1e-9
    assert turned.difference == -found.difference and turned.p == found.p
    assert 0 < found.p <= 1


def test_the_interval_is_that_of_pairs_and_not_of_two_shares() -> None:
    a = [True] * 50 + [False] * 50
    b = [True] * 60 + [False] * 40
    found = paired(a, b)
    assert 0.03 < found.low < found.difference < found.high < 0.17  # unpaired it would reach below nothing
    assert found.p == pytest.approx(2 / 2**10)


def test_mcnemars_exact_test() -> None:
    assert mcnemar(0, 0) == 1 and mcnemar(5, 5) == 1
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(22 / 1024)


def test_nothing_compared_says_nothing() -> None:
    found = paired([], [])
    assert (found.low, found.high, found.p) == (-1, 1, 1)
