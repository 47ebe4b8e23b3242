"""A bridge between a simulated robot in another process, over DDS, and a server: what the robot did."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.ros2 import EXAMPLE
from rtcontrol.bridges.wire.messages import ErrorMessage, FunctionCall
from tests.bridges.client.worlds import Process, free_port, until
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import SimulatedRobot, Start
from tests.bridges.strangers import garbage
from tests.helpers.processes import Program

BATTERY = """      required: false     # unknown is no reason to stop
      max_age_ms: 30000
      fields:
        battery: """


@pytest.fixture
def driven(brain: Brain, robot: SimulatedRobot, bridge: Start) -> Program:
    """A bridge by which the robot is driven already."""
    running = bridge(brain.endpoint)
    robot.until_it_moves()
    return running


def test_a_robot_is_driven_by_what_its_topics_say(brain: Brain, robot: SimulatedRobot, bridge: Start) -> None:
    running = bridge(brain.endpoint)
    until(lambda: robot.report()["travelled"] > 0.5, "the robot did not move")
    assert brain.observed is not None and brain.observed.text is not None
    assert "battery 87" in brain.observed.text
    assert brain.hello is not None and brain.hello.robot == "wheelie"
    until(lambda: robot.report()["turning"] == 0.8, "the robot met no wall", 40)
    figures = robot.report()
    assert (figures["collisions"], figures["fastest"]) == (0, pytest.approx(0.3))
    until(lambda: any(o.outcome == "executed" for o in brain.outcomes), "no call was acknowledged")
    assert running.end() == 143
    assert robot.report()["moving"] == [0.0, 0.0]


def test_an_instruction_published_on_a_topic_changes_what_it_does(
    brain: Brain, robot: SimulatedRobot, bridge: Start
) -> None:
    bridge(brain.endpoint, "--instruct", "go")
    robot.until_it_moves()
    assert brain.instruction == "go"
    robot.tell("instruct halt")
    robot.until_it_stands()
    assert brain.instruction == "halt"


def test_a_server_that_falls_silent_leaves_the_robot_standing(
    brain: Brain, robot: SimulatedRobot, driven: Program
) -> None:
    brain.silent = True
    robot.until_it_stands()
    count = robot.report()["commands"]
    until(lambda: robot.report()["commands"] > count + 5, "the safe call is not repeated")
    brain.silent = False
    robot.until_it_moves()
    driven.end()


def test_a_server_that_says_bye_is_greeted_anew(brain: Brain, robot: SimulatedRobot, driven: Program) -> None:
    brain.hello, brain.bye = None, True
    driven.says("The server ended the session (enough). Connecting anew.")
    until(lambda: brain.hello is not None, "the bridge gave up")
    robot.until_it_moves()


def test_a_bye_that_comes_with_the_welcome_is_no_refusal(brain: Brain, robot: SimulatedRobot, bridge: Start) -> None:
    brain.brief = True
    bridge(brain.endpoint).says("The server ended the session (enough). Connecting anew.")
    robot.until_it_moves()


def test_calls_older_than_their_time_to_live_are_never_executed(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path
) -> None:
    brain.age_ms = 501.0
    running = bridge(brain.endpoint, "--report", str(tmp_path / "report.json"))
    until(lambda: len(brain.outcomes) > 30, "no call was acknowledged")
    assert {o.outcome for o in brain.outcomes} == {"expired"}
    figures = robot.report()
    assert (figures["fastest"], figures["turning"], figures["travelled"]) == (0.0, 0.0, 0.0)
    assert running.end(signal.SIGHUP) == 129
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["expired"] > 30 and report["calls"] <= 5  # the safe call, at the start and at the end


def test_calls_that_a_stall_of_300_ms_made_too_old_are_never_executed(
    brain: Brain, robot: SimulatedRobot, bridge: Start
) -> None:
    brain.ttl_ms = 250.0
    bridge(brain.endpoint)
    robot.until_it_moves()
    for _ in range(5):
        brain.stalled = True
        time.sleep(0.3)
        brain.stalled, count = False, len(brain.outcomes)
        until(lambda count=count: any(o.outcome == "executed" for o in brain.outcomes[count:]), "no call follows")
    old = {tick for tick, age_ms in brain.sent_ms.items() if age_ms > 250}
    until(lambda: old <= {o.tick for o in brain.outcomes}, "not every old call was acknowledged")
    assert old and {o.outcome for o in brain.outcomes if o.tick in old} == {"expired"}
    assert any(o.outcome == "executed" and o.tick > max(old) for o in brain.outcomes)


def test_a_call_outside_the_mapping_is_refused_and_the_robot_stops(
    brain: Brain, robot: SimulatedRobot, driven: Program
) -> None:
    brain.policy = lambda text, instruction: FunctionCall(name="drive", arguments={"speed": 30, "turn": "up"})
    robot.until_it_stands()
    driven.says("A call was refused: turn: nothing is given for 'up'.")
    until(lambda: any(o.outcome == "refused" and "'up'" in (o.error or "") for o in brain.outcomes), "not told")


def test_a_sensor_that_dies_is_told_and_ends_in_the_safe_call(
    robot: SimulatedRobot, bridge: Start, own_server: Process
) -> None:
    running = bridge(own_server.endpoint)
    robot.until_it_moves()
    robot.tell("mute /scan")
    running.says("/scan: the last message is older than 500 ms")
    until(lambda: "safe call in force: /scan: the last message is older" in robot.said(), "not in the diagnostics")
    level, _, values = robot.report()["diagnostics"]
    assert level == 2 and robot.report()["moving"] == [0.0, 0.0]
    assert 0 < float(values["on_time_share"]) < 1 and int(values["misses"]) > 0
    robot.tell("unmute /scan")
    running.says("/scan is in order")
    robot.until_it_moves()


def test_a_killed_server_leaves_the_robot_standing_and_a_new_one_drives_it(
    robot: SimulatedRobot, bridge: Start, own_server: Process
) -> None:
    running = bridge(own_server.endpoint)
    robot.until_it_moves()
    own_server.kill()
    until(lambda: "no connection to the server" in robot.said(), "not in the diagnostics")
    robot.until_it_stands()
    own_server.start()
    robot.until_it_moves(60)
    assert running.popen.poll() is None


NOTE = """
    /rtcontrol/instruction:
      type: std_msgs/msg/String
      required: false
      max_age_ms: 1500
      qos: {reliability: reliable}
      fields: {note: {path: data, missing: none}}
"""


def test_nothing_that_a_robot_says_ends_its_bridge(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path
) -> None:
    config = tmp_path / "robot.yaml"
    text = EXAMPLE.read_text().replace("{battery}", "{battery} note {note}")
    config.write_text(text.replace("\ntools:", NOTE + "\ntools:"))
    running = bridge(brain.endpoint, config=config)
    robot.until_it_moves()
    robot.tell("poison utf8")
    running.says("/odom: a message cannot be read ('utf-8' codec")
    robot.until_it_stands()
    robot.tell("poison off")
    robot.until_it_moves()
    robot.tell("instruct " + "x" * 70_000)
    running.says("The instruction was not taken: ")
    running.says("The observation is not sent: ")
    running.says("observation is in order")
    robot.tell("instruct")
    running.says("The instruction was not taken: instruct.instruction says nothing.")
    robot.until_it_moves()
    assert "x" not in brain.instruction and running.popen.poll() is None


def test_a_bridge_that_is_killed_is_missed_by_the_subscribers_of_its_commands(
    robot: SimulatedRobot, driven: Program
) -> None:
    mark = time.monotonic()
    driven.popen.kill()
    until(lambda: bool(robot.since(mark)["missed"]), "no deadline was missed")
    until(lambda: bool(robot.since(mark)["dead"]), "its lease has not ended")
    # What the base itself must end.
    assert robot.report()["moving"] != [0.0, 0.0]


WRONG = [
    (
        "type: sensor_msgs/msg/LaserScan\n",
        "type: sensor_msgs/msg/LaserScan\n      qos: {reliability: reliable}\n",
        "QoS of /scan is incompatible: its publisher offers best_effort, and in our file qos.reliability asks for "
        "reliable. No message passes.",
    ),
    (
        "      /cmd_vel:\n        type: geometry_msgs/msg/Twist",
        "      /cmd_vel:\n        qos: {reliability: best_effort}\n        type: geometry_msgs/msg/Twist",
        "QoS of /cmd_vel is incompatible: a subscriber asks for reliable, and in our file qos.reliability offers "
        "best_effort.",
    ),
    (
        "/odom:\n      type: nav_msgs/msg/Odometry\n",
        "/odom:\n      type: nav_msgs/msg/Odometry\n      qos: {durability: transient_local}\n",
        "its publisher offers volatile, and in our file qos.durability asks for transient_local",
    ),
    (
        f"type: sensor_msgs/msg/BatteryState\n{BATTERY}{{path: percentage,",
        f"type: sensor_msgs/msg/Temperature\n{BATTERY}{{path: temperature,",
        "/battery_state is published as sensor_msgs/msg/BatteryState, and our file says sensor_msgs/msg/Temperature",
    ),
]


def test_qos_and_types_that_keep_topics_apart_are_told_in_words(
    brain: Brain, robot: SimulatedRobot, bridge: Start, tmp_path: Path
) -> None:
    text = EXAMPLE.read_text()
    for old, new, _ in WRONG:
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "robot.yaml"
    config.write_text(text)
    running = bridge(brain.endpoint, config=config)
    for _, _, says in WRONG:
        running.says(says)


def test_topics_that_nobody_publishes_or_hears_are_told(brain: Brain, bridge: Start) -> None:
    running = bridge(brain.endpoint)
    running.says("Nobody publishes /odom. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network.")
    running.says("Nobody subscribes to /cmd_vel.")
    assert "/battery_state" not in running.log()  # not required


def test_a_robot_that_leaves_is_told(robot: SimulatedRobot, driven: Program) -> None:
    assert robot.popen.stdin is not None
    robot.popen.stdin.close()
    driven.says("Nobody publishes /odom.")
    driven.says("Nobody subscribes to /cmd_vel.")


def test_a_second_bridge_of_the_same_robot_is_refused_in_words(
    robot: SimulatedRobot, bridge: Start, own_server: Process
) -> None:
    first = bridge(own_server.endpoint)
    first.says("in session")
    second = bridge(own_server.endpoint, "--connect-timeout", "1")
    assert second.popen.wait(30) == 2
    second.says("the server answered busy: The robot 'wheelie' is claimed by another session. End that one")
    robot.until_it_moves()
    assert first.popen.poll() is None


def test_what_the_server_refuses_is_told_and_the_bridge_goes_on(
    brain: Brain, robot: SimulatedRobot, driven: Program
) -> None:
    brain.complaint = ErrorMessage(code="instruction", message="It is too long.", remedy="Say less.", retryable=False)
    driven.says("The server answered instruction: It is too long. Say less.")
    until(lambda: "It is too long" in robot.said() or "server is in order" in driven.log(), "not told")
    assert driven.popen.poll() is None


def test_what_is_no_server_is_told_as_such(bridge: Start) -> None:
    with garbage([None]) as (address, _):
        running = bridge(f"tcp://{address}", "--connect-timeout", "3")
        assert running.popen.wait(30) == 2
    assert "No welcome from tcp://127.0.0.1:" in running.log() and "is no rtcontrol server" in running.log()


def test_without_a_server_it_ends_with_the_command_that_starts_one(bridge: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    running, brief = bridge(endpoint, "--connect-timeout", "0.5"), bridge(endpoint, "--duration", "0.5")
    assert (running.popen.wait(20), brief.popen.wait(20)) == (2, 7)
    told = f"No rtcontrol server answers at {endpoint}. Start one: rtcontrol serve --bind {endpoint}"
    assert told in running.log()
    assert f"No server was in session within the duration: only the safe call was published. {told}" in brief.log()
