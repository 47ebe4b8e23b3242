"""The fault list, whole: what the game did, and that no call was executed too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridges.faults.table import show
from tests.bridges.unity.faults import FAULTS, run
from tests.bridges.unity.mono import MISSING, REASON


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=REASON)
def test_no_fault_makes_the_game_execute_a_call_that_is_too_old(tmp_path: Path) -> None:
    rows = run(tmp_path, "", "ray")
    print(show(rows))
    assert len(rows) == len(FAULTS)
    assert [row.fault for row in rows if row.too_old] == []
    # Whatever ends the observations or the calls ends in the safe call.
    goes_on = ("2,000", "strangers", "killed -9, started again after 2 s")
    assert [row.fault for row in rows if row.safe_ms is None and not any(w in row.fault for w in goes_on)] == []
