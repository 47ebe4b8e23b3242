"""The guard of our rclpy node, with nodes of a real ROS 2: a node that is killed or stands still leaves no robot
driving, whatever its names, types and QoS are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import TOLD, Flight, Peer, SimulatedRobot, flown, our_node
from tests.helpers.processes import Program, until


@pytest.fixture(scope="module")
def one(ros: str, own_brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    yield from flown(tmp_path_factory.mktemp("guarded"), own_brain.endpoint, ros=ros, node=True)


@pytest.fixture
def flight(one: Flight) -> Flight:
    one.go()
    return one


def guards(running: Program) -> list[psutil.Process]:
    return [child for child in psutil.Process(running.popen.pid).children() if "--guard" in child.cmdline()]


# PR2/pr2_mechanism#25, amor-ros-pkg/rosaria#51: the node that drives is killed, and the robot follows its last command.
def test_a_node_that_is_killed_leaves_a_robot_that_stands(flight: Flight) -> None:
    (guard,) = guards(flight.running)
    flight.running.kill()
    flight.robot.until_it_stands()
    until(lambda: TOLD.format("was killed") in flight.running.log(), flight.running.log())
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, "the guard goes on for ever")
    assert "Traceback" not in flight.running.log()


# ROBOTIS-GIT/turtlebot3#1154: what commands falls silent, and the last velocity stays.
def test_a_node_that_stands_still_leaves_a_robot_that_stands_and_goes_on_when_it_can(flight: Flight) -> None:
    flight.running.popen.send_signal(signal.SIGSTOP)
    try:
        flight.robot.until_it_stands()
        until(lambda: TOLD.format("stands still") in flight.running.log(), flight.running.log())
    finally:
        flight.running.popen.send_signal(signal.SIGCONT)
    flight.robot.until_it_moves()


# ros2/launch#666: `ros2 launch` that gets SIGTERM kills its nodes with SIGKILL, one by one; the terminal's Ctrl-C goes
# to the whole group, and the guard must be there when the SIGKILL follows.
def test_a_guard_outlives_the_signals_of_its_group_and_a_kill_that_follows(
    ros: str, own_brain: Brain, flight: Flight, tmp_path: Path
) -> None:
    flight.running.end()
    options: dict[str, Any] = {"start_new_session": True}
    running = our_node(ros, flight.domain, tmp_path / "group.log", own_brain.endpoint, **options)
    try:
        flight.robot.until_it_moves()
        (guard,) = guards(running)
        running.popen.send_signal(signal.SIGSTOP)  # what hangs cannot end in order
        os.killpg(running.popen.pid, signal.SIGINT)
        flight.robot.until_it_stands()
        assert guard.is_running() and guard.status() != psutil.STATUS_ZOMBIE
        os.killpg(running.popen.pid, signal.SIGKILL)
        for what in ("stands still", "was killed"):
            until(lambda what=what: TOLD.format(what) in running.log(), running.log())
        until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, "the guard goes on for ever")
    finally:
        running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_ends_in_order_takes_its_guard_along_which_says_nothing(flight: Flight, number: int) -> None:
    (guard,) = guards(flight.running)
    assert flight.running.end(number) == 0
    assert not guard.is_running()
    assert "guard:" not in flight.running.log() and "Traceback" not in flight.running.log()
    flight.robot.until_it_stands()


def test_without_a_guard_a_killed_node_leaves_a_robot_that_drives_on(flight: Flight) -> None:
    flight.running.end()
    flight.running = flight.start("-p", "guard:=false")
    flight.robot.until_it_moves()
    assert not guards(flight.running)
    flight.running.kill()
    time.sleep(1.0)
    assert flight.robot.report()["moving"] != [0.0, 0.0]


def test_a_guard_is_a_node_of_its_own_that_shares_no_memory_with_what_may_be_killed(
    ros: str, brain: Brain, peer: Peer, domain: dict[str, str], tmp_path: Path
) -> None:
    # eProsima/Fast-DDS#1144: a process that is killed leaves its shared memory locked, and those that use it hang. With
    # ROS_LOCALHOST_ONLY, ROS itself chooses the transports.
    plain = {name: value for name, value in domain.items() if name != "ROS_LOCALHOST_ONLY"}
    other = Peer(ros, plain, tmp_path / "other.log")
    running = our_node(ros, plain, tmp_path / "node.log", brain.endpoint, "-r", "__node:=pilot")
    try:
        until(lambda: "/pilot_guard" in other.ask("nodes"), running.log())
        (guard,) = guards(running)
        assert shared(running.popen.pid) and not shared(guard.pid)
    finally:
        running.kill()
        other.kill()


def shared(pid: int) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return "/dev/shm/fastdds_" in maps or "/dev/shm/fastrtps_" in maps


STAMPED = {
    "wheels": {
        "type": "geometry_msgs/msg/TwistStamped",
        "qos": {"durability": "transient_local"},
        "set": {"header.stamp": "now", "header.frame_id": "base"},
    }
}
SPEED = {"from": "speed", "min": 0, "max": 0.3}
WAGON: dict[str, Any] = {
    "hz": 16,
    "instruction": "drive",
    "observe": {
        "text": "x {x}",
        "topics": {"/odom": {"type": "nav_msgs/Odometry", "fields": {"x": "pose.pose.position.x"}}},
    },
    "tools": {
        "drive": {
            "description": "Drive.",
            "parameters": {"speed": {"type": "number"}},
            "publish": {"wheels": {**STAMPED["wheels"], "set": {**STAMPED["wheels"]["set"], "twist.linear.x": SPEED}}},
        },
        "stop": {"description": "Stand still.", "publish": STAMPED},
    },
    "safe": "stop",
}


# ros-navigation/navigation2#4959: what stopped the robot had no stamp, and a base that looks at its age discards it.
@pytest.mark.parametrize("simulated", [False, True], ids=["wall clock", "simulated time"])
def test_a_stamped_command_in_a_namespace_moved_for_this_node_alone_is_told_by_the_guard_as_the_node_tells_it(
    ros: str, peer: Peer, domain: dict[str, str], tmp_path: Path, simulated: bool
) -> None:
    file, brain = tmp_path / "wagon.yaml", Brain(lambda *_: FunctionCall(name="drive", arguments={"speed": 0.25}))
    file.write_text(yaml.safe_dump(WAGON))
    robot = SimulatedRobot(domain, tmp_path / "robot.log", ros=ros)  # it says where it is; the peer is its base
    names = ["-r", "__ns:=/wagon", "-r", "__node:=pilot", "-r", "pilot:wheels:=/base/wheels"]
    if simulated:
        names += ["-p", "use_sim_time:=true"]
        peer.ask("clock", start=1000.0, rate=1.0)
    kind, moving = "geometry_msgs/msg/TwistStamped", {"x": 0.25, "y": 0.0, "z": 0.0}
    peer.ask("subscriber", topic="/base/wheels", type=kind, durability="transient_local")
    running = our_node(ros, domain, tmp_path / "node.log", brain.endpoint, *names, config=file)
    heard: list[Any] = []

    def last() -> Any:
        heard.extend(peer.ask("heard", topic="/base/wheels"))
        return heard[-1] if heard else None

    try:
        until(lambda: last() and last()["twist"]["linear"] == moving, running.log())
        before = last()["header"]["stamp"]
        running.kill()
        until(lambda: last()["twist"]["linear"] == {"x": 0.0, "y": 0.0, "z": 0.0}, running.log())
        told = last()["header"]
        assert told["frame_id"] == "base"
        assert 0 <= told["stamp"]["sec"] - before["sec"] < 60 and (before["sec"] < 2000) == simulated
        assert "was killed" in running.log()
    finally:
        running.kill()
        robot.kill()
        brain.close()
