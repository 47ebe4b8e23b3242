"""The fault list, whole: what the robot did, and that no call was executed too old."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from tests.bridges.faults.table import show
from tests.bridges.ros2.faults import FAULTS, run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_fault_makes_the_robot_execute_a_call_that_is_too_old(tmp_path: Path) -> None:
    rows = run(tmp_path, "", "ray")
    print(show(rows))
    assert len(rows) == len(FAULTS)
    assert [row.fault for row in rows if row.too_old] == []
    # Whatever ends the observations or the calls ends in the safe call.
    goes_on = ("2,000 Hz", "strangers", "characters")
    assert [row.fault for row in rows if row.safe_ms is None and not any(w in row.fault for w in goes_on)] == []
