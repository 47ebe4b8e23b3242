"""What the decisions before the first release say of the rate that the machine reaches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cart import Flight, good

from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.warmup import MOST, Warmup
from rtcontrol.models.call import Decision

# One decision in five takes 8.3 ms: 120 a second.
MIXED = [40.0] + [4.0, 4.0, 4.0, 4.0, 8.3] * 8


@pytest.mark.parametrize(
    ("times", "lanes", "settings", "word"),
    [
        (MIXED, 1, {"hz": 200}, "--hz 200"),
        (MIXED, 1, {"hz": 100}, "--hz 100"),
        (MIXED, 1, {"hz": 96}, None),
        (MIXED, 1, {"hz": 16}, None),
        (MIXED, 1, {"hz": 16, "deadline_ms": 9}, "--deadline-ms 9"),
        (MIXED, 1, {"hz": 16, "deadline_ms": 11}, None),
        (MIXED, 2, {"hz": 190, "pipeline": 2, "deadline_ms": 10.5}, None),
        (MIXED, 2, {"hz": 200, "pipeline": 2}, "--hz 200"),
        (MIXED, 1, {"hz": 200, "clock": "lockstep"}, None),
        ([40.0], 1, {"hz": 200}, None),
        ([], 1, {"hz": 200}, None),
    ],
)
def test_a_rate_or_deadline_within_a_margin_of_the_p90_is_warned_of(
    times: list[float], lanes: int, settings: dict[str, float], word: str | None
) -> None:
    warning = Warmup(lanes, times).warning(RunConfig(env="cart", **settings))  # type: ignore[arg-type]
    assert (warning is None) if word is None else (warning is not None and warning.startswith(f"{word} is "))


def test_a_run_that_asks_for_too_much_is_warned_before_it_flies(tmp_path: Path) -> None:
    def decide(request: object) -> Decision:
        time.sleep(0.008)
        return good(request)  # type: ignore[arg-type]

    flight = Flight(tmp_path, decide, hz=110, duration_s=0.1, warmup_s=0.5).run()
    assert any(line.startswith("--hz 110 is above what this machine reaches") for line in flight.said)
    assert 5 <= flight.loop.warmup.to_dict()["decisions"] <= MOST


def test_many_decisions_are_made_only_while_there_is_time(tmp_path: Path) -> None:
    few = Flight(tmp_path / "few", duration_s=0.05).run()
    many = Flight(tmp_path / "many", duration_s=0.05, warmup_s=30.0).run()
    assert (len(few.loop.warmup.round_trip_ms), len(many.loop.warmup.round_trip_ms)) == (5, MOST)
