"""The fault lists, whole: what was done, and that no call was executed too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridges.rig.__main__ import rig
from tests.bridges.rig.faults import run
from tests.bridges.rig.table import show

# Faults through which it is driven on, or that end with its process: all others end in the safe call.
GOES_ON = {
    "ros2": ("2,000 Hz", "strangers", "characters"),
    "unity": ("2,000", "strangers", "game killed"),
    "godot": ("strangers", "game killed"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bridge", GOES_ON)
def test_no_fault_makes_it_execute_a_call_that_is_too_old(tmp_path: Path, bridge: str) -> None:
    kind = rig(bridge)
    if kind.missing:
        pytest.skip(kind.missing)
    rows = run(kind(tmp_path))
    print(show(rows))
    assert len(rows) == len(kind.faults)
    assert [row.fault for row in rows if row.too_old] == []
    assert [row.fault for row in rows if row.safe_ms is None and not any(w in row.fault for w in GOES_ON[bridge])] == []
