"""The bridge as a node of a real ROS 2, with a robot and servers as other nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rtcontrol_client.ros2 import EXAMPLE
from rtcontrol_client.ros2.bridge import PROBLEMS_S, SETTLE_S
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.client.worlds import free_port
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import (
    TOLD,
    DrivenRobot,
    Server,
    SimulatedRobot,
    Start,
    gone,
    guards,
    started,
    until_observed,
)
from tests.bridges.ros2.mapping import linked_file
from tests.bridges.ros2.messages import MESSAGES
from tests.helpers.processes import environment, until

FIELDS = """
import json, sys
from rtcontrol_client.ros2.fields import find_type
print(json.dumps({name: find_type(name, "msg")[1].get_fields_and_field_types() for name in sys.argv[1:]}))
"""


def test_message_stubs_have_the_fields_of_real_messages(ros: str) -> None:
    packages = ("builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "nav_msgs", "rosgraph_msgs", "std_msgs")
    names = [name for name in MESSAGES if name.startswith((*packages, "sensor_msgs", "trajectory_msgs"))]
    names = [name for name in names if "/msg/" in name]
    done = subprocess.run([ros, "-c", FIELDS, *names], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = yaml.safe_load(done.stdout)
    assert len(theirs) > 100
    assert {name: MESSAGES[name].kinds for name in names} == theirs


# Driving, and losing parts of the system.


def test_robot_is_driven_and_instructed_through_topics(module_brain: Brain, driven: DrivenRobot) -> None:
    robot = driven.robot
    until(lambda: robot.report()["turning"] == 0.8, "the robot met no wall", 40)
    figures = robot.report()
    assert (figures["collisions"], figures["fastest"]) == (0, pytest.approx(0.3)) and figures["travelled"] > 0.3
    assert module_brain.observed is not None and "battery 87" in str(module_brain.observed.text)
    robot.tell("instruct halt")
    robot.until_it_stands()
    assert module_brain.instruction == "halt"
    robot.tell("instruct go")
    robot.until_it_moves()
    until(lambda: any(o.outcome == "executed" for o in module_brain.outcomes), "no call was acknowledged")


def test_silent_sensor_or_server_leads_to_the_safe_call(module_brain: Brain, driven: DrivenRobot) -> None:
    robot, running = driven.robot, driven.running
    robot.tell("mute /scan")
    running.says("/scan: the last message is older than 500 ms")
    robot.until_it_stands()
    robot.tell("unmute /scan")
    running.says("/scan works again")
    robot.until_it_moves()
    robot.tell("poison nan")
    running.says("/odom: x: it is not a number (NaN)")
    robot.until_it_stands()
    robot.tell("poison 0")
    robot.until_it_moves()
    module_brain.silent = True
    robot.until_it_stands()
    count = robot.report()["commands"]
    until(lambda: robot.report()["commands"] > count + 5, "the safe call is not repeated")
    module_brain.silent = False
    robot.until_it_moves()


def test_other_publishers_are_reported_while_they_last(driven: DrivenRobot) -> None:
    for topic, problem in {
        "/cmd_vel": "/teleop publishes this command, too",
        "/scan": "/robot and /teleop publish this sensor",
    }.items():
        driven.robot.tell(f"rival {topic}")
        driven.running.says(f"{topic}: {problem}")
        driven.robot.tell("alone")
        driven.running.says(f"the publisher of {topic} works again")


def test_guard_stops_the_robot_of_a_killed_bridge(driven: DrivenRobot) -> None:
    until(lambda: driven.robot.report()["alive"] == 1, "the watching subscriber finds no publisher")
    (guard,) = guards(driven.running)
    driven.running.kill()
    driven.robot.until_it_stands()
    until(lambda: driven.robot.report()["alive"] == 0, "the publisher's lease has not ended")
    until(lambda: TOLD.format("was killed") in driven.running.log(), driven.running.log())
    until(lambda: gone(guard), "the guard does not end")
    assert "Traceback" not in driven.running.log()


# ros2/launch#666: `ros2 launch` that gets SIGTERM kills its nodes with SIGKILL; the terminal's Ctrl-C goes to the whole
# group, and the guard must be there when the SIGKILL follows.
def test_guard_survives_signals_to_its_process_group(
    ros: str, module_brain: Brain, driven: DrivenRobot, tmp_path: Path
) -> None:
    driven.running.end()
    own: dict[str, Any] = {"start_new_session": True}
    running = started(ros, driven.domain, tmp_path / "group.log", module_brain.endpoint, **own)
    try:
        driven.robot.until_it_moves()
        (guard,) = guards(running)
        running.popen.send_signal(signal.SIGSTOP)  # a stopped process cannot end in order
        os.killpg(running.popen.pid, signal.SIGINT)
        driven.robot.until_it_stands()
        assert not gone(guard)
        os.killpg(running.popen.pid, signal.SIGKILL)
        for what in ("hangs", "was killed"):
            until(lambda what=what: TOLD.format(what) in running.log(), running.log())
        until(lambda: gone(guard), "the guard does not end")
    finally:
        running.kill()


def test_signal_ends_bridge_and_guard_with_the_safe_call(driven: DrivenRobot) -> None:
    (guard,) = guards(driven.running)
    assert driven.running.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert gone(guard)
    assert "guard:" not in driven.running.log() and "Traceback" not in driven.running.log()
    driven.robot.until_it_stands()


def test_nothing_drives_before_the_guard_is_ready(brain: Brain, robot: SimulatedRobot, bridge: Start) -> None:
    running = bridge(brain.endpoint)
    until(lambda: guards(running), running.log())
    (guard,) = guards(running)
    guard.suspend()
    try:
        running.says("in session")
        time.sleep(2.0)
        assert robot.report()["moving"] == [0.0, 0.0]
    finally:
        guard.resume()
    robot.until_it_moves()
    guard.kill()
    assert running.popen.wait(60) == 2 and "The guard process has ended" in running.log()
    robot.until_it_stands()


# Names, types and QoS.


def test_robot_in_a_namespace_is_driven_and_stopped_by_the_guard(
    ros: str, brain: Brain, bridge: Start, domain: dict[str, str], tmp_path: Path
) -> None:
    topics = ("odom", "scan", "battery_state", "cmd_vel")
    text = EXAMPLE.read_text()
    for name in topics:
        assert f"  /{name}:" in text
        text = text.replace(f"  /{name}:", f"  {name}:")
    config = tmp_path / "robot.yaml"
    config.write_text(text)
    moved = ["--ros-args", *(word for name in topics for word in ("-r", f"/{name}:=/robot1/{name}"))]
    robot = SimulatedRobot(ros, domain, tmp_path / "robot.log", options=moved)
    try:
        own = ["--ros-args", "-r", "__ns:=/robot1", "-r", "__node:=pilot"]
        running = bridge(brain.endpoint, *own, config=config)
        robot.until_it_moves()
        time.sleep(SETTLE_S + PROBLEMS_S)
        missing = re.findall(r"No node (?:publishes|subscribes to) /robot1/(\w+)\.", running.log())
        for topic in missing:  # discovery was slow: each topic was reported missing, and works again now
            running.says(f"{topic} works again")
        assert running.log().count("No node") == len(missing) and "Traceback" not in running.log()
        running.kill()
        robot.until_it_stands()
    finally:
        robot.kill()


def test_mismatch_of_qos_or_domain_is_reported(
    ros: str, brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path, domain: dict[str, str]
) -> None:
    text = EXAMPLE.read_text()
    for old, new in (
        ("sensor_msgs/msg/LaserScan\n", "sensor_msgs/msg/LaserScan\n      qos: {reliability: reliable}\n"),
        ("  /cmd_vel:\n        type", "  /cmd_vel:\n        qos: {reliability: best_effort}\n        type"),
    ):
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "robot.yaml"
    config.write_text(text)
    running = bridge(brain.endpoint, config=config)
    elsewhere = {**domain, "ROS_DOMAIN_ID": str(int(domain["ROS_DOMAIN_ID"]) - 50)}
    other = started(ros, elsewhere, tmp_path / "other.log", brain.endpoint)
    try:
        running.says("New publisher discovered on topic '/scan', offering incompatible QoS.")
        running.says("New subscription discovered on topic '/cmd_vel', requesting incompatible QoS.")
        other.says("No node publishes /odom. Start the robot, or correct the name")
        other.says("No node subscribes to /cmd_vel.")
        assert "/battery_state" not in other.log()  # not required
    finally:
        other.kill()


def test_bridge_without_server_names_the_command_to_start_one(bridge: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    running, brief = (bridge(endpoint, "--set", f"{key}=0.5") for key in ("connect_timeout_s", "duration_s"))
    assert (running.popen.wait(60), brief.popen.wait(60)) == (2, 7)
    told = f"No rtcontrol server answers at {endpoint}. Start one: rtcontrol serve --bind {endpoint}"
    assert told in running.log()
    assert f"No server was in session within the duration: only the safe call was published. {told}" in brief.log()


# Simulated time.


def test_simulator_reset_starts_an_episode(brain: Brain, robot: SimulatedRobot, bridge: Start) -> None:
    running = bridge(brain.endpoint, "--ros-args", "-p", "use_sim_time:=true")
    robot.tell("clock 100 0.5")
    robot.until_it_moves()
    assert brain.epoch == 0
    robot.tell("clock 3 1")
    running.says("The simulator's time jumped back")
    until(lambda: brain.epoch == 1, "the server received no reset")
    robot.until_it_moves()


# Actions and services.


def obey(text: str, instruction: str) -> FunctionCall:
    """Return the call that the instruction spells out, such as `count 5` or `lamp on`."""
    name, _, given = instruction.partition(" ")
    arguments: dict[str, Any] = {
        "count": {"to": int(given or 0) if name == "count" else 0},
        "lamp": {"on": given == "on"},
    }
    return FunctionCall(name=name, arguments=arguments.get(name, {}))


@pytest.fixture
def counting() -> Iterator[Brain]:
    result = Brain(obey)
    yield result
    result.close()


def test_call_sends_goal_and_request_once_and_safe_cancels(
    counting: Brain, serve: Callable[[], Server], bridge: Start, tmp_path: Path
) -> None:
    file = tmp_path / "linked.yaml"
    file.write_text(linked_file())  # the file's safe call switches the lamp off
    server, brain = serve(), counting
    server.do("pursue", order=501)
    server.until_requested("goal", 501)
    running = bridge(brain.endpoint, config=file)
    server.until_requested("canceled", 501)  # a goal as if left by an earlier bridge
    brain.instruction = "wait"
    until_observed(brain, "count idle at unknown got unknown")
    brain.instruction = "count 5"
    until_observed(brain, r"count succeeded at 1 got 2")
    brain.instruction = "count 800"
    until_observed(brain, "count executing")
    brain.instruction = "count 700"
    server.until_requested("goal", 700)
    assert server.requested("goal", "canceled")[2:] == [["goal", 5], ["goal", 800], ["canceled", 800], ["goal", 700]]
    brain.silent = True  # the safe call
    server.until_requested("canceled", 700)
    brain.silent = False
    server.do("behave", accepts=False)
    brain.instruction = "count 3"
    until_observed(brain, "count rejected")
    running.says("/count: the goal is rejected.")
    server.seen.clear()
    brain.instruction = "lamp on"
    server.until_requested("lamp", True)
    brain.instruction = "knock"
    server.until_requested("knock")
    assert server.requested("lamp", "knock")[-2:] == [["lamp", True], ["knock"]]
    server.do("behave", accepts=True)
    brain.instruction = "count 600"
    server.until_requested("goal", 600)
    server.seen.clear()
    running.kill()
    server.until_requested("canceled", 600)  # by the guard
    server.until_requested("lamp", False)
    assert "Traceback" not in running.log()
