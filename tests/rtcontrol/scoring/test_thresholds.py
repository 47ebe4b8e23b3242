"""The sweep of thresholds."""

from __future__ import annotations

from rtcontrol.evaluation.score_tables import THRESHOLDS, sweep


def test_at_each_threshold_is_told_what_would_be_held() -> None:
    found = dict(sweep({"canonical": [0.9, 0.99], "nonsense": [0.3, 0.5, 0.95]}, gate=0.55))
    assert set(found) == {*THRESHOLDS, 0.55}
    assert found[0.55] == {"canonical": 0, "nonsense": 2} and found[0.3]["nonsense"] == 0
    assert found[0.95] == {"canonical": 1, "nonsense": 2}
