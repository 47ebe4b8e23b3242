"""A decision is cancelled between two forward passes, and the next one is as if it had not been."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.decode.protocol import Cancelled
from tests.models.small import build, tool

LATE = {"enum": [f"alpha beta go {w}" for w in ("red", "green", "blue")] + ["alpha beta stop"]}


def test_cancel_stops_before_the_next_pass_and_leaves_no_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decider: Any = build(folder, [tool("go", v=LATE)], budget_per_head=1)
    expected = decider.decide("x=1", "go left")
    assert expected.forward_passes > 1
    passes = []
    run = decider.runner.run

    def cancel_in_the_first_pass(batch: Any) -> Any:
        passes.append(len(batch))
        if len(passes) == 1:
            decider.cancel()
        return run(batch)

    monkeypatch.setattr(decider.runner, "run", cancel_in_the_first_pass)
    with pytest.raises(Cancelled):
        decider.decide("x=2", "go left")
    assert len(passes) == 1
    again = decider.decide("x=1", "go left")
    assert again.call == expected.call
    assert again.confidence == pytest.approx(expected.confidence, abs=1e-5)


def test_cancel_from_another_thread_ends_a_long_decision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decider: Any = build(folder, [tool("go", v={"type": "string"})])
    run = decider.runner.run
    started = threading.Event()

    def slow(batch: Any) -> Any:
        started.set()
        time.sleep(0.02)
        return run(batch)

    monkeypatch.setattr(decider.runner, "run", slow)
    raised: list[BaseException] = []

    def decide() -> None:
        try:
            decider.decide("x=1", "go")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=decide)
    thread.start()
    assert started.wait(10)
    decider.cancel()
    thread.join(10)
    assert [type(e) for e in raised] == [Cancelled]
