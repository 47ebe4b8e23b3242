"""What /diagnostics says."""

from __future__ import annotations

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.ros2 import bridge


@pytest.mark.parametrize(
    ("connected", "standing", "troubles", "level", "says"),
    [
        (True, "fresh", {}, bridge.OK, "fresh call in force"),
        (True, "held", {"/scan": "no news"}, bridge.WARN, "no news"),
        (True, "safe", {}, bridge.ERROR, "safe call in force"),
        (False, "safe", {}, bridge.ERROR, "no connection to the server: safe call in force"),
        (False, "fresh", {}, bridge.ERROR, "no connection to the server: the last call is in force until"),
    ],
)
def test_it_says_what_is_in_force_and_why(
    connected: bool, standing: str, troubles: dict[str, str], level: int, says: str
) -> None:
    status = bridge.diagnostic_status(connected, standing, {"on_time_share": 1.0}, troubles)
    assert (status.level, status.name) == (level, "rtcontrol")
    assert status.message.startswith(says)
