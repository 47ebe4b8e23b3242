"""Garbage is collected in the slack between two ticks, and where there never is any."""

from __future__ import annotations

import gc
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
