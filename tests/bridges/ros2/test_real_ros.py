"""Against real ROS 2 nodes over Fast DDS, of the releases that this machine has.

RTCONTROL_ROS_KILTED names a Python that has Kilted's rclpy and messages (`.ci/run` makes it), RTCONTROL_ROS_JAZZY one
that has Jazzy's (slow; docs/bridges.md says how to make it).
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

import rtcontrol_client.ros2 as package
from rtcontrol_client.ros2 import EXAMPLE
from rtcontrol_client.ros2.bridge import SETTLE_S, TROUBLE_S
from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.dds import Input, Output
from rtcontrol_client.ros2.environment import domain as dds_domain
from rtcontrol_client.ros2.msgs import MESSAGES
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import NODE, Flight, Peer, SimulatedRobot, Start, flown, our_node
from tests.bridges.ros2.filling import LONG, SHORTER, TYPES, edges_of, messages_of, values
from tests.bridges.ros2.robot import topic
from tests.helpers.processes import Program, environment, until

COUNT = 10  # messages of each type: four of them are the edges
IN_FORCE = re.compile("(no connection to the server: )?safe call in force(: .+)?")
QOS: dict[str, dict[str, Any]] = {
    "reliable": {"reliability": "reliable", "depth": COUNT},
    "sensor_data": {"reliability": "best_effort", "depth": COUNT},
}
LATCHED = {"reliability": "reliable", "durability": "transient_local", "depth": 1}


@pytest.fixture
def robot(ros: str, domain: dict[str, str], tmp_path: Path) -> Iterator[SimulatedRobot]:
    """The simulated robot, as a node of that ROS."""
    found = SimulatedRobot(domain, tmp_path / "robot.log", ros=ros)
    yield found
    found.kill()


def until_matched(peer: Peer, inputs: Iterable[Input], outputs: Iterable[Output]) -> None:
    """Wait until each end has found the other: a message of before is no loss."""
    until(lambda: all(o.readers() for o in outputs), "a subscriber of theirs is not matched")
    until(lambda: all(i.writers() for i in inputs), "a publisher of theirs is not matched")
    # Each reader of ours that is reliable shows itself twice (dds.Input).
    twice = {i.topic.name: 1 + (i.topic.qos.reliability == "reliable") for i in inputs}
    until(
        lambda: all(count >= twice.get(name, 1) for name, count in peer.ask("matched").items()),
        "they have not found us",
    )


@pytest.mark.parametrize("qos", QOS.values(), ids=QOS)
def test_every_message_of_every_type_is_read_right_both_ways(
    peer: Peer, domain: dict[str, str], qos: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    bus = Bus(dds_domain(domain))
    long_list = LONG if qos["reliability"] == "reliable" else SHORTER
    sent = {name: messages_of(name, COUNT - 4) + edges_of(name, long_list) for name in TYPES}
    inputs, outputs = {}, {}
    for i, name in enumerate(TYPES):
        peer.ask("publisher", topic=f"/theirs{i}", type=name, **qos)
        peer.ask("subscriber", topic=f"/ours{i}", type=name, **qos)
        inputs[name] = bus.input(topic(f"/theirs{i}", name, **qos))
        outputs[name] = bus.output(topic(f"/ours{i}", name, **qos))
    until_matched(peer, inputs.values(), outputs.values())
    assert bus.problems() == {}
    for i, name in enumerate(TYPES):
        assert set(peer.ask("hashes", topic=f"/theirs{i}") + peer.ask("hashes", topic=f"/ours{i}")) == {
            MESSAGES[name][1]
        }, f"the type hash of {name}"
    right = {"theirs to ours": 0, "ours to theirs": 0}
    for i, name in enumerate(TYPES):
        expected = [values(message) for message in sent[name]]
        peer.ask("publish", topic=f"/theirs{i}", messages=expected)
        read: list[Any] = []
        until(lambda name=name, read=read: read.extend(inputs[name].take()) or len(read) >= COUNT, f"{name} is lost")
        assert [values(message) for message in read] == expected, name
        right["theirs to ours"] += len(read)
        for message in sent[name]:
            assert outputs[name].write(message)
        heard: list[Any] = []
        until(
            lambda i=i, heard=heard: heard.extend(peer.ask("heard", topic=f"/ours{i}")) or len(heard) >= COUNT,
            f"{name} is not heard",
        )
        assert heard == expected, name
        right["ours to theirs"] += len(heard)
    print(f"\n{len(TYPES)} types, {COUNT} messages each: {right}")
    record_property("messages", right)


def test_latched_message_reaches_who_comes_later_both_ways(peer: Peer, domain: dict[str, str]) -> None:
    bus, kind = Bus(dds_domain(domain)), "geometry_msgs/msg/PoseStamped"
    first, message = (values(one) for one in messages_of(kind, 2))
    peer.ask("publisher", topic="/theirs", type=kind, **LATCHED)
    peer.ask("publish", topic="/theirs", messages=[first, message])
    reader = bus.input(topic("/theirs", kind, **LATCHED))
    read: list[Any] = []
    until(lambda: read.extend(reader.take()) or read, "their latched message does not come")
    assert [values(one) for one in read] == [message]
    assert bus.output(topic("/ours", kind, **LATCHED)).write(messages_of(kind, 2)[1])
    peer.ask("subscriber", topic="/ours", type=kind, **LATCHED)
    heard: list[Any] = []
    until(lambda: heard.extend(peer.ask("heard", topic="/ours")) or heard, "our latched message does not come")
    assert heard == [message]


@pytest.mark.parametrize("reach", [{"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}, {"ROS_LOCALHOST_ONLY": "1"}, {}])
def test_a_default_bridge_and_a_node_of_this_machine_meet_whatever_its_range(
    ros: str, domain: dict[str, str], tmp_path: Path, reach: dict[str, str]
) -> None:
    plain = {name: value for name, value in domain.items() if name != "ROS_LOCALHOST_ONLY"}
    peer, bus, kind = (
        Peer(ros, {**plain, **reach}, tmp_path / "peer.log"),
        Bus(dds_domain(plain)),
        "nav_msgs/msg/Odometry",
    )
    try:
        message, command = messages_of(kind, 1)[0], messages_of("geometry_msgs/msg/Twist", 1)[0]
        peer.ask("publisher", topic="/theirs", type=kind)
        peer.ask("subscriber", topic="/ours", type="geometry_msgs/msg/Twist")
        reader, writer = bus.input(topic("/theirs", kind)), bus.output(topic("/ours", "geometry_msgs/msg/Twist"))
        until_matched(peer, [reader], [writer])
        peer.ask("publish", topic="/theirs", messages=[values(message)])
        assert writer.write(command)
        until(lambda: [values(one) for one in reader.take()] == [values(message)], "their message does not come")
        until(lambda: peer.ask("heard", topic="/ours") == [values(command)], "ours does not come")
    finally:
        peer.kill()


@pytest.mark.parametrize("reach", [{"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}, {"ROS_LOCALHOST_ONLY": "1"}])
def test_a_node_that_starts_long_after_us_is_found(
    ros: str, domain: dict[str, str], tmp_path: Path, reach: dict[str, str]
) -> None:
    given = {name: value for name, value in domain.items() if name != "ROS_LOCALHOST_ONLY"} | reach
    bus = Bus(dds_domain(given))
    time.sleep(3.0)  # the announcements of a start are over
    peer = Peer(ros, given, tmp_path / "peer.log")
    try:
        peer.ask("publisher", topic="/theirs", type="nav_msgs/msg/Odometry")
        reader = bus.input(topic("/theirs", "nav_msgs/msg/Odometry"))
        until(reader.writers, "the later node is not found", 25)
    finally:
        peer.kill()


def test_ros_knows_the_bridge_as_a_node_with_its_topics_until_it_ends(
    peer: Peer, brain: Brain, bridge: Start, tmp_path: Path
) -> None:
    from tests.bridges.ros2.links import robot

    config = tmp_path / "linked.yaml"
    config.write_text(robot())
    running = bridge(brain.endpoint, config=config)
    until(lambda: "/rtcontrol_bridge" in peer.ask("nodes"), "its name is not known")
    published, subscribed, asked = peer.ask("nodes")["/rtcontrol_bridge"]
    assert published == {"/diagnostics": ["diagnostic_msgs/msg/DiagnosticArray"]}
    assert {"/beat", "/count/_action/feedback", "/count/_action/status"} == set(subscribed)
    assert asked["/lamp"] == ["std_srvs/srv/SetBool"] and "/count/_action/send_goal" in asked
    running.end()
    until(lambda: "/rtcontrol_bridge" not in peer.ask("nodes"), "it has ended, and is a node yet")


@pytest.fixture(scope="module")
def to_brain(ros: str, own_brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    yield from flown(tmp_path_factory.mktemp("flight"), own_brain.endpoint, ros=ros)


@pytest.fixture
def flight(to_brain: Flight) -> Flight:
    """One of both tests, driven."""
    to_brain.go()
    return to_brain


def test_real_robot_is_driven_by_what_its_topics_say(own_brain: Brain, flight: Flight) -> None:
    robot = flight.robot
    until(lambda: robot.report()["travelled"] > 0.5, "the robot did not move", 40)
    assert own_brain.observed is not None and "battery 87" in (own_brain.observed.text or "")
    until(lambda: robot.report()["turning"] == 0.8, "the robot met no wall", 40)
    figures = robot.report()
    assert (figures["collisions"], figures["fastest"]) == (0, pytest.approx(0.3))
    robot.tell("instruct halt")
    robot.until_it_stands()
    assert own_brain.instruction == "halt" and flight.running.end() == 143
    level, said, _ = robot.report()["diagnostics"]
    assert level == 2 and IN_FORCE.fullmatch(said), said


def test_faults_of_a_real_robot_and_of_its_server_end_in_the_safe_call(
    own_brain: Brain, flight: Flight, ros: str, tmp_path: Path
) -> None:
    robot, running = flight.robot, flight.running
    robot.tell("mute /scan")
    running.says("/scan: the last message is older than 500 ms")
    robot.until_it_stands()
    robot.tell("unmute /scan")
    robot.until_it_moves()
    robot.tell("poison nan")
    running.says("/odom: x: it is not a number (NaN)")
    robot.until_it_stands()
    robot.tell("poison off")
    robot.until_it_moves()
    own_brain.silent = True
    robot.until_it_stands()
    own_brain.silent = False
    robot.until_it_moves()
    robot.kill()
    running.says("/odom: the last message is older than 500 ms")
    again = SimulatedRobot(flight.domain, tmp_path / "again.log", ros=ros)
    try:
        again.until_it_moves()
        until(lambda: bool(again.since(0.0)["met"]), "who watches the commands heard none")
        mark = time.monotonic()
        running.kill()
        again.until_it_stands()  # by the guard
        until(lambda: bool(again.since(mark)["dead"]), "its lease has not ended")
    finally:
        again.kill()


WRONG = {
    "type: sensor_msgs/msg/LaserScan\n": (
        "type: sensor_msgs/msg/LaserScan\n      qos: {reliability: reliable}\n",
        "QoS of /scan is incompatible: its publisher offers best_effort, and in our file qos.reliability asks for",
    ),
    "      /cmd_vel:\n        type: geometry_msgs/msg/Twist": (
        "      /cmd_vel:\n        type: geometry_msgs/msg/TwistStamped",
        "/cmd_vel is subscribed to as geometry_msgs/msg/Twist, and our file says geometry_msgs/msg/TwistStamped.",
    ),
    "type: sensor_msgs/msg/BatteryState\n": (
        "type: sensor_msgs/msg/Temperature\n",
        "/battery_state is published as sensor_msgs/msg/BatteryState, and our file says sensor_msgs/msg/Temperature",
    ),
}


def test_what_keeps_a_real_robot_and_the_bridge_apart_is_told_in_words(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path, domain: dict[str, str]
) -> None:
    text = EXAMPLE.read_text()
    for old, (new, _) in WRONG.items():
        assert old in text
        text = text.replace(old, new)
    text = text.replace("path: percentage", "path: temperature").replace("linear.x:", "twist.linear.x:")
    config = tmp_path / "robot.yaml"
    config.write_text(text.replace("angular.z:", "twist.angular.z:"))
    running = bridge(brain.endpoint, config=config)
    elsewhere = {**domain, "ROS_DOMAIN_ID": str(int(domain["ROS_DOMAIN_ID"]) - 50)}
    command = ["-m", "rtcontrol_client.ros2", "--config", str(EXAMPLE), "--connect", brain.endpoint]
    other = Program(command, tmp_path / "other.log", env=elsewhere)
    try:
        for _, says in WRONG.values():
            running.says(says)
        other.says("Nobody publishes /odom. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the")
    finally:
        other.kill()
    robot.until_ready()


@pytest.fixture
def node(ros: str, brain: Brain, domain: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts our own rclpy node."""
    made: list[Program] = []

    def start(*options: str, config: Path = EXAMPLE) -> Program:
        given, log = ("-r", "__node:=pilot", *options), tmp_path / f"node-{len(made)}.log"
        made.append(our_node(ros, domain, log, brain.endpoint, *given, config=config))
        return made[-1]

    yield start
    for one in made:
        one.kill()


def test_our_own_node_drives_a_real_robot_and_ends_in_the_safe_call(
    robot: SimulatedRobot, node: Callable[[], Program]
) -> None:
    running = node()
    robot.until_it_moves()
    robot.tell("instruct halt")
    robot.until_it_stands()
    robot.tell("instruct go")
    robot.until_it_moves()
    robot.tell("mute /scan")
    running.says("/scan: the last message is older than 500 ms")
    robot.until_it_stands()
    robot.tell("unmute /scan")
    for number in (signal.SIGTERM, signal.SIGHUP):
        robot.until_it_moves()
        assert running.end(number) == 0, running.log()
        robot.until_it_stands()
        assert IN_FORCE.fullmatch(robot.said()) and "Traceback" not in running.log(), number
        running = node()


TOPICS = ("odom", "scan", "battery_state", "cmd_vel")
MOVED = ["--ros-args", *(word for name in TOPICS for word in ("-r", f"/{name}:=/robot1/{name}"))]


@pytest.mark.parametrize("way", ["names in full", "namespace", "remapping"])
def test_robot_in_a_namespace_is_driven(
    way: str,
    ros: str,
    brain: Brain,
    bridge: Start,
    node: Callable[..., Program],
    domain: dict[str, str],
    tmp_path: Path,
) -> None:
    text = EXAMPLE.read_text()
    for name in TOPICS:
        assert f"  /{name}:" in text
        if way != "remapping":
            text = text.replace(f"  /{name}:", f"  {name}:" if way == "namespace" else f"  /robot1/{name}:")
    config = tmp_path / "robot.yaml"
    config.write_text(text)
    robot = SimulatedRobot(domain, tmp_path / "robot.log", ros=ros, options=MOVED)
    try:
        if way == "names in full":
            running = bridge(brain.endpoint, config=config)
        else:
            running = node(*(["-r", "__ns:=/robot1"] if way == "namespace" else MOVED[1:]), config=config)
        robot.until_it_moves()
        time.sleep(SETTLE_S + TROUBLE_S)
        assert "Nobody" not in running.log() and "Traceback" not in running.log()
    finally:
        robot.kill()


def test_our_own_node_copies_messages_of_every_type_and_says_what_is_missing(ros: str, domain: dict[str, str]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = environment(**domain)
        return subprocess.run([ros, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)

    copied = run("-m", "tests.bridges.ros2.rclpy_copies", str(NODE))
    assert copied.stdout == f"{len(TYPES)}\n", copied.stderr
    done = run(str(NODE))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "The parameter config is missing. Give it: --ros-args -p config:=/path/robot.yaml" in done.stderr


# What can be said of the rclpy package without ROS: its files fit together and name what they need. That it runs,
# test_real_ros.py shows.


FOLDER = Path(package.__path__[0]) / "rclpy_node"


def test_package_xml_depends_on_every_package_of_the_message_types() -> None:
    root = ElementTree.parse(FOLDER / "package.xml").getroot()
    needed = {element.text for element in root.findall("exec_depend")}
    assert {name.split("/")[0] for name in MESSAGES} - needed <= {"builtin_interfaces"}
    assert root.findtext("name") == "rtcontrol_bridge"


def test_setup_names_files_and_an_entry_point_that_exist() -> None:
    setup = (FOLDER / "setup.py").read_text("utf-8")
    assert "bridge = rtcontrol_bridge.node:main" in setup
    tree = ast.parse((FOLDER / "rtcontrol_bridge" / "node.py").read_text("utf-8"))
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for file in ("resource/rtcontrol_bridge", "launch/bridge.launch.py", "setup.cfg", "rtcontrol_bridge/__init__.py"):
        assert (FOLDER / file).is_file()
