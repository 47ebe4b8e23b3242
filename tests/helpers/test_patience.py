"""Waiting for a machine that keeps time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.helpers import realtime


def test_a_machine_that_never_keeps_time_is_waited_for_so_long_and_in_all_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def starved() -> Iterator[list[float]]:
        yield [1.0]

    monkeypatch.setattr(realtime, "latenesses", starved)
    monkeypatch.setattr(realtime, "CALM_S", 0.01)
    monkeypatch.setattr(realtime, "PATIENCE_S", 0.1)
    patience = realtime.Patience()
    patience.left_s = 0.15
    waits = []
    for _ in range(3):
        began = time.monotonic()
        patience.wait()
        waits.append(time.monotonic() - began)
    assert waits[0] >= 0.1 and waits[1] >= 0.02 and patience.left_s <= 0
    began = time.monotonic()
    patience.wait()
    assert time.monotonic() - began < 0.1
