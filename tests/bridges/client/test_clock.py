"""Tests of the client's clock: a machine that was suspended must not make an old observation fresh."""

from __future__ import annotations

import time

import pytest

from rtcontrol_client import clock


@pytest.mark.parametrize("suspended_s", [0, 4])
def test_ages_count_while_machine_is_suspended(monkeypatch: pytest.MonkeyPatch, suspended_s: int) -> None:
    running, boot = 10_000_000_000, 10_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: running)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda number: boot)
    captured = clock.from_monotonic(running - 1_000_000)
    assert clock.now_ns() - captured == 1_000_000
    running += 2_000_000
    boot += 2_000_000 + suspended_s * 1_000_000_000
    assert clock.now_ns() - captured == 3_000_000 + suspended_s * 1_000_000_000
    assert clock.now_s() == boot / 1e9
    assert running - clock.to_monotonic(captured) == clock.now_ns() - captured
