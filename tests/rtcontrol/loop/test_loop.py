"""Tests of the control loop with a small real world and in-process deciders, in real time and in lockstep."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cart import Cart, Flight
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.grid import WallGrid
from rtcontrol.loop.warmup import Warmup


def calls(flight: Flight) -> list[tuple[int, str]]:
    return [(t["k"], t["call"]) for t in flight.ticks]


def test_two_runs_are_equal_and_fast(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clock": "lockstep", "duration_s": None, "episodes": 4, "hz": 16}
    worlds = [PacedEnvironment("cart", Cart(2.0)) for _ in range(2)]
    runs = [Flight(tmp_path / str(i), world=world, **settings).run() for i, world in enumerate(worlds)]
    assert calls(runs[0]) == calls(runs[1])
    assert [e.ret for e in runs[0].world.episodes] == [e.ret for e in runs[1].world.episodes]
    assert len(runs[0].world.episodes) == 4
    account = runs[0].loop.account
    assert account.counts["skipped_releases"] == 0
    assert account.ticks >= 4 * 2.0 * 16 - 4


@given(
    period=st.integers(1_000, 10**9),
    t0=st.integers(0, 2**62),
    busy=st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
)
def test_every_release_is_started_or_skipped(period: int, t0: int, busy: list[int]) -> None:
    clock = WallGrid(period)
    t0, _ = clock.start(t0)
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


@pytest.mark.realtime
def test_ending_does_not_wait_for_a_slow_rate(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=0.2, duration_s=None, max_age_ms=10_000)
    began = time.monotonic()
    threading.Timer(0.2, lambda: flight.loop.stop("SIGTERM")).start()
    flight.run()
    assert time.monotonic() - began < 4.0  # a period is 5 s


# One decision in five takes 8.3 ms: 120 a second.
MIXED = [40.0] + [4.0, 4.0, 4.0, 4.0, 8.3] * 8


@pytest.mark.parametrize(
    ("times", "workers", "settings", "word"),
    [
        (MIXED, 1, {"hz": 200}, "--hz 200"),
        (MIXED, 1, {"hz": 100}, "--hz 100"),
        (MIXED, 1, {"hz": 96}, None),
        (MIXED, 1, {"hz": 16}, None),
        (MIXED, 1, {"hz": 16, "deadline_ms": 9}, "loop.deadline_ms=9"),
        (MIXED, 1, {"hz": 16, "deadline_ms": 11}, None),
        (MIXED, 2, {"hz": 190, "pipeline": 2, "deadline_ms": 10.5}, None),
        (MIXED, 2, {"hz": 200, "pipeline": 2}, "--hz 200"),
        (MIXED, 1, {"hz": 200, "clock": "lockstep"}, None),
        ([40.0], 1, {"hz": 200}, None),
        ([], 1, {"hz": 200}, None),
    ],
)
def test_rate_or_deadline_near_p90_warns(
    times: list[float], workers: int, settings: dict[str, float], word: str | None
) -> None:
    warning = Warmup(workers, times).warning(RunConfig(env="cart", **settings))  # type: ignore[arg-type]
    assert (warning is None) if word is None else (warning is not None and warning.startswith(f"{word} is "))
