"""Garbage is collected in the slack between two ticks, and where there never is any."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from cart import Flight

from rtcontrol.loop.realtime import SlackCollector


def test_garbage_is_collected_though_there_is_never_slack() -> None:
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


def test_a_pipeline_that_is_always_busy_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slacks: list[int] = []
    monkeypatch.setattr(SlackCollector, "THRESHOLD", 0)
    monkeypatch.setattr(SlackCollector, "collect", lambda self, slack_ns: slacks.append(slack_ns))
    Flight(tmp_path, duration_s=0.2).run()
    assert 0 in slacks and max(slacks) > 0


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def slow(phase: str, info: dict[str, int]) -> None:
    if phase == "start" and info["generation"] > 0:
        time.sleep(0.03)


def test_one_slow_collection_does_not_let_old_garbage_stay_for_ever() -> None:
    """As on a busy machine: the first full collection takes longer than there ever is slack."""
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
    assert most <= 10 * 4 * collector.TURNS[2] and after <= 10 * 2 * collector.TURNS[2]
