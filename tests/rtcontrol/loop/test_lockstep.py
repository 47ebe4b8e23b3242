"""The world waits: the same run whatever the decider takes, would-be misses counted all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from cart import CartWorld, Flight, good, slow

from rtcontrol.loop.fallback import FallbackPolicy

pytestmark = pytest.mark.realtime


def calls(flight: Flight) -> list[tuple[int, str]]:
    return [(t["k"], t["call"]) for t in flight.ticks]


def test_two_runs_are_equal_and_fast(tmp_path: Path) -> None:
    runs = [
        Flight(
            tmp_path / str(i), good, world=CartWorld(2.0), clock="lockstep", duration_s=None, episodes=4, hz=16
        ).run()
        for i in range(2)
    ]
    assert calls(runs[0]) == calls(runs[1])
    assert [e.ret for e in runs[0].world.episodes] == [e.ret for e in runs[1].world.episodes]
    assert len(runs[0].world.episodes) == 4
    account = runs[0].loop.account
    assert account.skipped_releases == 0
    assert account.ticks >= 4 * 2.0 * 16 - 4


def test_slow_decisions_are_counted_but_change_nothing(tmp_path: Path) -> None:
    settings = {"clock": "lockstep", "duration_s": None, "episodes": 1, "hz": 50}
    quick = Flight(tmp_path / "quick", good, world=CartWorld(0.5), **settings).run()
    late = Flight(tmp_path / "late", slow(0.03, lambda k: k % 4 == 1), world=CartWorld(0.5), **settings).run()
    assert calls(quick) == calls(late)
    # Each slow one is a miss; a machine that was busy meanwhile is blamed in the decider's place.
    slow_ones = [t for t in late.ticks if t["k"] % 4 == 1]
    assert {t.get("cause") for t in slow_ones} <= {"decide", "pause", "wake"}, late.dump()
    late.blames("decide", len(slow_ones) // 2, len(slow_ones) + 2)
    assert late.loop.account.safe_calls == 0


def test_duration_counts_the_worlds_time(tmp_path: Path) -> None:
    flight = Flight(tmp_path, clock="lockstep", duration_s=10.0, hz=16).run()
    assert flight.loop.account.releases == 160
    assert flight.loop.ended_by == "duration"


def test_hold_is_limited_in_the_worlds_time() -> None:
    ms = 1_000_000
    policy = FallbackPolicy("hold", 100 * ms)
    policy.epoch(0)
    policy.fresh_call(50 * ms)
    assert policy.expires_ns is None
    assert policy.miss(100 * ms) == "hold"
    assert policy.expires_ns == 150 * ms
    assert policy.expire(149 * ms) == "none"
    assert policy.expire(150 * ms) == "safe"
    assert policy.miss(200 * ms) == "none"  # the safe call is in force already
    policy.fresh_call(210 * ms)
    assert policy.miss(400 * ms) == "safe"
    policy.epoch(500 * ms)
    assert policy.miss(550 * ms) == "hold"
