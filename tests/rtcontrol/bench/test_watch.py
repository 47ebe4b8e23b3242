"""What it costs a run that somebody looks on: flown for a moment, to see that both ways are flown and counted."""

from __future__ import annotations

import pytest

from rtcontrol.bench.watch import compare
from rtcontrol.models.errors import UserError


def test_both_ways_are_flown_and_what_changes_is_told() -> None:
    done: list[None] = []
    found = compare(1.0, 1, "inprocess", "expert", lambda: done.append(None))
    assert len(done) == 2
    (unwatched,), (watched,) = found["runs"]["unwatched"], found["runs"]["watched"]
    assert unwatched["messages"] == 0 < watched["messages"]
    ratio = watched["p99"] / unwatched["p99"] - 1
    # Of one pair, the median is the run's own.
    assert found["median"]["change"]["p99"] == pytest.approx(ratio, abs=1e-3)
    assert found["together"]["watched"]["p99"] == pytest.approx(watched["p99"])


def test_a_run_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(UserError, match="no such model"):
        compare(1.0, 1, "inprocess", "no such model", lambda: None)
