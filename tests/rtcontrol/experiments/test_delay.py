from __future__ import annotations

import itertools

import pytest

from rtcontrol.evaluation.experiments import delay
from rtcontrol.evaluation.experiments.delay import HISTORY, TICKS, Lateness, demonstrations, expert, fly, text


def test_the_expert_stands_on_time_and_falls_late() -> None:
    assert fly(None, 0, 8) == [TICKS] * 8
    assert max(fly(None, 3, 8)) < 100


def test_a_late_label_is_what_is_right_when_it_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "WORLDS", 1)  # whose rows follow each other
    late = 2
    rows = list(itertools.islice(demonstrations(3, Lateness((late,))), 12))
    checked = 0
    for row, then in zip(rows, rows[late:], strict=False):
        numbers = [int(n) for n in then.observation.split()[1::2]]
        x, v, angle, spin = (n / scale for n, scale in zip(numbers, (100, 100, 1000, 100), strict=True))
        if abs(angle + 0.3 * spin + 0.03 * x + 0.06 * v) > 0.01:  # else rounding decides
            assert row.call == expert((x, v, angle, spin))
            checked += 1
    assert checked > 5


def test_the_history_shows_the_calls_that_acted_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "WORLDS", 1)
    monkeypatch.setattr(delay, "NOISE", 0.0)  # what acts is what is right
    rows = list(itertools.islice(demonstrations(1, Lateness((2,))), 15))
    for i, row in enumerate(rows[HISTORY:], start=HISTORY):
        assert row.history == tuple(before.call.text() for before in rows[i - HISTORY : i] if before.call)


def test_what_is_far_is_clamped_to_a_number_that_is_a_word() -> None:
    assert text((-9, 9, 0.2, -9)) == "x -400 v 400 angle 200 spin -400"
