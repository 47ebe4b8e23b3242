"""Tests of real-time helpers: garbage is collected in the slack, pauses are reported, little stays in memory."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np

from rtcontrol.loop.core import snapshot
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.telemetry.events import jsonable


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


def kept(data: Any) -> Any:
    return snapshot(data, jsonable)


def test_large_array_is_not_kept_in_memory() -> None:
    assert kept({"camera": np.zeros((480, 640, 3), "uint8"), "x": 1.0}) == {
        "camera": {"dtype": "uint8", "shape": [480, 640, 3]},
        "x": 1.0,
    }


def test_pauses_are_clipped_to_the_requested_time() -> None:
    watch = PauseWatch(62_500_000)
    base = time.monotonic_ns()
    watch._collections.extend([(base, base + 20), (base + 100, base + 110)])
    watch._gaps.append((base + 10, base + 40))
    assert watch.pauses(base + 5, base + 105) == [
        (base + 5, base + 20, "gc"),
        (base + 10, base + 40, "stall"),
        (base + 100, base + 105, "gc"),
    ]
