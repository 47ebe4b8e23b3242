"""Tests of the loop in real time and in lockstep: its releases, its end, garbage, pauses and memory."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cart import Cart, Flight
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.core import copy_data
from rtcontrol.loop.grid import WallGrid
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.loop.warmup import Warmup
from rtcontrol.telemetry.events import to_jsonable


def test_garbage_is_collected_even_without_slack() -> None:
    collected: list[int] = []
    with SlackCollector() as collector:
        gc.callbacks.append(lambda phase, info: collected.append(info["generation"]) if phase == "start" else None)
        try:
            kept: list[Any] = [[i] for i in range(collector.THRESHOLD * 2)]
            collector.collect(0)
            assert not collected
            kept += [[i] for i in range(collector.FORCED)]
            collector.collect(0)
            assert collected
        finally:
            gc.callbacks.pop()


class Knot:
    """An object that only a garbage collection can free."""

    def __init__(self) -> None:
        self.itself = self


def slow(phase: str, info: dict[str, int]) -> None:
    if phase == "start" and info["generation"] > 0:
        time.sleep(0.03)


def test_slow_collection_does_not_keep_old_garbage() -> None:
    """On a busy machine the first full collection may take longer than any slack."""
    kept: weakref.WeakSet[Knot] = weakref.WeakSet()
    with SlackCollector() as collector:
        gc.callbacks.append(slow)
        most = 0
        try:
            for turn in range(300):
                if turn == 40:
                    gc.callbacks.remove(slow)
                knots = [Knot() for _ in range(collector.THRESHOLD + 100)]
                kept.update(knots[:10])
                gc.collect(0)  # they are old when they become garbage
                gc.collect(1)
                young = [[i] for i in range(collector.THRESHOLD + 100)]
                del knots
                collector.collect(20_000_000)
                del young
                most = max(most, len(kept))
            after = len(kept)
        finally:
            if slow in gc.callbacks:
                gc.callbacks.remove(slow)
    # Ten a turn: it was collected all the same while it was slow, and by turns later.
    assert most <= 10 * 4 * collector.FULL_ROUNDS and after <= 10 * 2 * collector.FULL_ROUNDS


def test_large_array_is_not_kept_in_memory() -> None:
    assert copy_data({"camera": np.zeros((480, 640, 3), "uint8"), "x": 1.0}, to_jsonable) == {
        "camera": {"dtype": "uint8", "shape": [480, 640, 3]},
        "x": 1.0,
    }


def test_pauses_are_clipped_to_the_requested_time() -> None:
    watch = PauseWatch(62_500_000)
    base = time.monotonic_ns()
    watch._collections.extend([(base, base + 20), (base + 100, base + 110)])
    watch._gaps.append((base + 10, base + 40, "stall"))
    assert watch.pauses(base + 5, base + 105) == [
        (base + 5, base + 20, "gc"),
        (base + 10, base + 40, "stall"),
        (base + 100, base + 105, "gc"),
    ]


@pytest.mark.parametrize(
    ("ran_ms", "waited_ms", "reason"), [(1, 0, "stopped"), (1, 90, "starved"), (95, 0, "stall"), (95, 60, "starved")]
)
def test_gap_has_the_reason_that_fills_it(ran_ms: int, waited_ms: int, reason: str) -> None:
    watch = PauseWatch(62_500_000)
    watch._used = (5, 7)
    assert watch._reason(100_000_000, (5 + ran_ms * 10**6, 7 + waited_ms * 10**6)) == reason


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
        k, release, skipped = clock.start_release(now)
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
