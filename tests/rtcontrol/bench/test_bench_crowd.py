"""The bench of crowds counts what it is told, and nothing that it is not."""

from __future__ import annotations

import pytest

from rtcontrol.bench import crowd
from rtcontrol.models.errors import UserError


def test_what_a_crowd_is_told_and_what_its_report_counts_are_the_same_calls() -> None:
    found = crowd.serve(6, 10.0, 2.0, "noop", 20.0, True)
    told, counted = found["status"], found["report"]
    assert found["calls"] == sum(told.values()) and set(told) <= {"fresh", "held", "safe"}
    assert counted["ticks"] == counted["on_time"] + counted["misses"]
    assert counted["releases"] == counted["ticks"] + counted["skipped_releases"]
    # The report has the warm-up too.
    assert counted["ticks"] > found["calls"] > 0
    assert found["calls_a_cpu_second"] is None or found["calls_a_cpu_second"] > 0


def test_each_size_of_batch_is_timed_as_often_as_it_is_said() -> None:
    found = crowd.batches("lander", 3, (1, 5))
    assert set(found["sizes"]) == {"1", "5"} and found["largest"] == 5
    assert set(found["over_one_alone"]) == {"wall", "cpu"}


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError):
        crowd.batches("nobody", 3)
