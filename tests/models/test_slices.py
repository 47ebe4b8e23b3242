"""A long prompt in slices, on a runner that is slow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models import in_flight
from tests.models.small import WORDS, build, build_checkpoint, tool


def test_no_slice_holds_a_slow_runner_for_long_and_the_next_decision_begins_with_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_checkpoint(tmp_path / "slow")  # a runner that nobody knows yet
    decider = build(folder, tuple(tool(name, 0, v=["left", "red"]) for name in ("go", "stop")))
    sizes: list[int] = []
    plain = decider.runner.prefill

    def prefill(handle: Any, count: int) -> None:
        sizes.append(count)
        time.sleep(count * 5e-4)
        plain(handle, count)

    monkeypatch.setattr(decider.runner, "prefill", prefill)
    first = None
    for text in (WORDS, f"red {WORDS}"):
        sizes.clear()
        for _ in decider.decide_in_steps(f"{text} {text} {text}", "go", sliced=True):
            pass
        assert len(sizes) > 3 and max(sizes) <= in_flight.SLICE_S / 5e-4
        assert sizes[0] == (first or in_flight.LEAST_SLICE)
        first = max(in_flight._slices[decider.runner], in_flight.LEAST_SLICE)
