"""Which publishers count as rivals of the bridge, or of a sensor."""

from __future__ import annotations

import pytest

from rtcontrol_client.ros2.rivals import LINGER_S, UNKNOWN, OtherPublishers

LOCAL = ["/rtcontrol_bridge", "/rtcontrol_bridge_guard"]


@pytest.fixture
def rivals() -> OtherPublishers:
    return OtherPublishers("/rtcontrol_bridge")


def test_bridge_and_its_guard_are_not_rivals(rivals: OtherPublishers) -> None:
    for now in (0.0, 2 * LINGER_S):
        assert rivals.command_problem("/cmd_vel", LOCAL, now) is None
        assert rivals.sensor_problem("/cmd_vel", [*LOCAL, "/teleop"], now) is None


def test_other_node_is_reported_at_once(rivals: OtherPublishers) -> None:
    problem = rivals.command_problem("/cmd_vel", [*LOCAL, "/teleop", "/nav"], 0.0)
    assert problem is not None
    assert problem.startswith("/cmd_vel: /nav and /teleop publishes this command, too, and the robot obeys both.")
    other_robot = rivals.command_problem("/cmd_vel", [*LOCAL, "/b/rtcontrol_bridge"], 0.0)
    assert other_robot is not None and "/b/rtcontrol_bridge" in other_robot


@pytest.mark.parametrize("extra", [*LOCAL, UNKNOWN])
def test_restarted_bridge_is_no_rival_before_it_lingers(rivals: OtherPublishers, extra: str) -> None:
    both = [*LOCAL, extra]
    assert rivals.command_problem("/cmd_vel", both, 0.0) is None
    assert rivals.command_problem("/cmd_vel", both, LINGER_S - 0.1) is None
    assert rivals.command_problem("/cmd_vel", LOCAL, LINGER_S) is None  # the killed process has left the graph
    assert rivals.command_problem("/cmd_vel", both, LINGER_S + 1) is None
    problem = rivals.command_problem("/cmd_vel", both, 2 * LINGER_S + 1)
    assert problem is not None and "another" in problem


def test_sensor_of_two_nodes_is_reported(rivals: OtherPublishers) -> None:
    assert rivals.sensor_problem("/scan", ["/lidar"], 0.0) is None
    assert rivals.sensor_problem("/tf", ["/odometry", "/robot_state"], 0.0) is None
    problem = rivals.sensor_problem("/scan", ["/lidar", "/old_lidar"], 0.0)
    assert problem is not None and "/lidar and /old_lidar publish this sensor" in problem
    twice = ["/lidar", "/lidar"]  # one driver that was restarted, or two
    assert rivals.sensor_problem("/points", twice, 0.0) is None
    problem = rivals.sensor_problem("/points", twice, LINGER_S)
    assert problem is not None and "2 publishers (/lidar)" in problem
