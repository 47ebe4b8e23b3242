"""Against another vendor's DDS, the one that ROS 2 uses by default.

    pytest -m slow tests/bridges/ros2/test_fastdds.py

Needs Debian's packages: apt-get install g++ libfastrtps-dev libfastcdr-dev fastddsgen default-jre-headless
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")
pytest.importorskip("rosbags", reason="rosbags (a development dependency) is not installed")

from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.environment import domain
from rtcontrol_client.ros2.msgs import geometry_msgs
from tests.bridges.ros2 import definitions
from tests.bridges.ros2.robot import topic
from tests.helpers.processes import until

MISSING = [tool for tool in ("fastddsgen", "g++", "java") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING) or not Path("/usr/include/fastdds").is_dir(),
        reason=f"no {', '.join(MISSING) or 'libfastrtps-dev'}: see this file's first lines",
    ),
]
IDL = {"float64": "double", "string": "string", "int32": "long", "uint32": "unsigned long"}
COUNT = 400


def idl(names: list[str]) -> str:
    """The definitions as IDL, each after what it uses; fastddsgen's -typeros2 adds `dds_::` and `_` itself."""
    store, done, text = definitions.store(), [], ""

    def one(name: str) -> str:
        if name in done:
            return ""
        done.append(name)
        package, _, short = name.split("/")
        before, members = "", ""
        for field, (kind, what) in store.get_msgdef(name).fields:
            inner = what[0] if kind.name == "ARRAY" else (kind, what)
            if inner[0].name == "NAME":
                before += one(inner[1])
            type_name = inner[1].replace("/", "::") if inner[0].name == "NAME" else IDL[inner[1][0]]
            size = f"[{what[1]}]" if kind.name == "ARRAY" else ""
            # IDL takes `pose` for the type Pose.
            own = f"{field}_" if field in ("pose", "twist") and package == "geometry_msgs" else field
            members += f"    {type_name} {own}{size};\n"
        return f"{before}module {package} {{ module msg {{\n  struct {short} {{\n{members}  }};\n}}; }};\n"

    for name in names:
        text += one(name)
    return text


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fastdds")
    (folder / "robot.idl").write_text(idl(["geometry_msgs/msg/Twist", "nav_msgs/msg/Odometry"]))
    shutil.copy(Path(__file__).parent / "fastdds_robot.cpp", folder)
    for command in (
        "fastddsgen -typeros2 -replace robot.idl",
        "g++ -O1 -std=c++14 -o robot fastdds_robot.cpp robot.cxx robotPubSubTypes.cxx -lfastrtps -lfastcdr -lpthread",
    ):
        done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "robot"


@pytest.fixture
def number() -> int:
    return 100 + os.getpid() % 100


@pytest.fixture
def fast_robot(program: Path, number: int) -> Iterator[str]:
    """The robot, running; its types' names."""
    robot = subprocess.Popen([str(program), str(number)], stdout=subprocess.PIPE, text=True)
    assert robot.stdout is not None
    yield robot.stdout.readline().strip()
    robot.kill()
    robot.wait()


@pytest.mark.parametrize("reach", ["SUBNET", "LOCALHOST"])
def test_twists_reach_a_fast_dds_robot_and_its_odometry_comes_back(fast_robot: str, number: int, reach: str) -> None:
    assert fast_robot == "geometry_msgs::msg::dds_::Twist_ nav_msgs::msg::dds_::Odometry_"
    bus = Bus(domain({"ROS_DOMAIN_ID": str(number), "ROS_AUTOMATIC_DISCOVERY_RANGE": reach}))
    command = bus.output(topic("/cmd_vel", "geometry_msgs/Twist", depth=10))
    odom = bus.input(topic("/odom", "nav_msgs/Odometry", reliability="reliable", depth=10))
    until(lambda: command.readers() and odom.writers(), "not matched")
    time.sleep(0.5)  # matching is not symmetric
    assert bus.problems() == {}
    times = []
    for i in range(COUNT):
        twist = geometry_msgs.Twist(
            linear=geometry_msgs.Vector3(x=i / 7, y=-i / 3), angular=geometry_msgs.Vector3(z=0.1)
        )
        began = time.perf_counter()
        assert command.write(twist)
        back: list[Any] = []
        while not back and time.perf_counter() - began < 5:
            back = odom.take()
        times.append(time.perf_counter() - began)
        (answer,) = back
        assert answer.header.stamp.nanosec == i + 1
        assert answer.pose.pose.position.x == i / 7
        assert answer.pose.covariance[35] == -i / 3
        assert answer.twist.twist.angular.z == 0.1
        assert (answer.header.frame_id, answer.child_frame_id) == ("odom", "base_footprint")
    times.sort()
    print(
        f"\n{reach}: {COUNT}/{COUNT}, p50 {1e3 * times[COUNT // 2]:.2f} ms, p99 {1e3 * times[COUNT * 99 // 100]:.2f} ms"
    )


def test_a_best_effort_command_is_told_to_be_incompatible(fast_robot: str, number: int) -> None:
    assert fast_robot
    bus = Bus(domain({"ROS_DOMAIN_ID": str(number)}))
    command = bus.output(topic("/cmd_vel", "geometry_msgs/Twist", reliability="best_effort"))
    until(bus.subscribers, "the robot is not discovered")
    time.sleep(0.5)
    assert bus.problems()["/cmd_vel"].startswith(
        "QoS of /cmd_vel is incompatible: a subscriber asks for reliable, and in our file qos.reliability offers "
        "best_effort."
    )
    assert command.readers() == 0


def test_a_publisher_that_falls_silent_is_told_to_a_subscriber_that_asked_for_a_lease(
    program: Path, number: int
) -> None:
    with subprocess.Popen([str(program), str(number), "400"], stdout=subprocess.PIPE, text=True) as robot:
        assert robot.stdout is not None
        killer = threading.Timer(30, robot.kill)
        killer.start()
        bus = Bus(domain({"ROS_DOMAIN_ID": str(number)}))
        command = bus.output(topic("/cmd_vel", "geometry_msgs/Twist"), promise_ms=187.5)
        until(command.readers, "not matched")
        time.sleep(0.5)
        for _ in range(20):
            command.write(geometry_msgs.Twist())
            time.sleep(0.0625)
        silent = time.monotonic()
        # We live, and our participant says so: it is this topic that is silent.
        said: list[str] = []
        while not said or said[-1] != "alive 0\n":
            said.append(robot.stdout.readline())
            assert said[-1], said
        print(f"\n{said}, {1e3 * (time.monotonic() - silent) + 62.5:.0f} ms after the last command")
        killer.cancel()
        robot.kill()
