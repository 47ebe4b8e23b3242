"""Which publishers count as rivals of the bridge, or of a sensor."""

from __future__ import annotations

import pytest

from rtcontrol_client.ros2.rivals import LINGER_S, UNKNOWN, Rivals

LOCAL = ["/rtcontrol_bridge", "/rtcontrol_bridge_guard"]


@pytest.fixture
def rivals() -> Rivals:
    return Rivals("/rtcontrol_bridge")


def test_bridge_and_its_guard_are_not_rivals(rivals: Rivals) -> None:
    for now in (0.0, 2 * LINGER_S):
        assert rivals.of_command("/cmd_vel", LOCAL, now) is None
        assert rivals.of_sensor("/cmd_vel", [*LOCAL, "/teleop"], now) is None


def test_other_node_is_reported_at_once(rivals: Rivals) -> None:
    problem = rivals.of_command("/cmd_vel", [*LOCAL, "/teleop", "/nav"], 0.0)
    assert problem is not None
    assert problem.startswith("/cmd_vel: /nav and /teleop publishes this command, too, and the robot obeys both.")
    other_robot = rivals.of_command("/cmd_vel", [*LOCAL, "/b/rtcontrol_bridge"], 0.0)
    assert other_robot is not None and "/b/rtcontrol_bridge" in other_robot


@pytest.mark.parametrize("extra", [*LOCAL, UNKNOWN])
def test_restarted_bridge_is_no_rival_before_it_lingers(rivals: Rivals, extra: str) -> None:
    both = [*LOCAL, extra]
    assert rivals.of_command("/cmd_vel", both, 0.0) is None
    assert rivals.of_command("/cmd_vel", both, LINGER_S - 0.1) is None
    assert rivals.of_command("/cmd_vel", LOCAL, LINGER_S) is None  # the killed process has left the graph
    assert rivals.of_command("/cmd_vel", both, LINGER_S + 1) is None
    problem = rivals.of_command("/cmd_vel", both, 2 * LINGER_S + 1)
    assert problem is not None and "another" in problem


def test_sensor_of_two_nodes_is_reported(rivals: Rivals) -> None:
    assert rivals.of_sensor("/scan", ["/lidar"], 0.0) is None
    assert rivals.of_sensor("/tf", ["/odometry", "/robot_state"], 0.0) is None
    problem = rivals.of_sensor("/scan", ["/lidar", "/old_lidar"], 0.0)
    assert problem is not None and "/lidar and /old_lidar publish this sensor" in problem
    twice = ["/lidar", "/lidar"]  # one driver that was restarted, or two
    assert rivals.of_sensor("/points", twice, 0.0) is None
    problem = rivals.of_sensor("/points", twice, LINGER_S)
    assert problem is not None and "2 publishers (/lidar)" in problem
