"""What mistakes in robot.yaml are told as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

import yaml

from rtcontrol.bridges.ros2 import config
from rtcontrol.bridges.ros2.errors import Ros2BridgeError
from tests.bridges.ros2.mapping import EXAMPLE, NUMBER, mapper, publishes, put

ODOM = ("observe", "topics", "/odom")
CMD = ("tools", "drive", "publish", "/cmd_vel")
FAST = {"speed": 77, "turn": "left"}


def crossed(value: dict[str, Any]) -> None:
    value["observe"]["topics"]["/odom"]["fields"]["x"] |= {"min": 1, "max": 0}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("speed", value=3), "robot.yaml: speed is no key of this format"),
        (put("hz", value="fast"), "robot.yaml: hz: "),
        (lambda c: c.pop("safe"), "robot.yaml: safe is missing"),
        (put("safe", value="halt"), "robot.yaml: safe: there is no tool 'halt'"),
        (put("safe", value="drive"), "safe.arguments: the argument 'speed' of drive is missing"),
        (put("safe", value={"name": "stop", "arguments": {"x": 1}}), "'x' of stop is no parameter of it"),
        (put(*ODOM, "type", value="nav_msgs/msg/Odometri"), "/odom.type: unknown message type 'nav_msgs/msg/Odometri'"),
        (put(*ODOM, "fields", "x", "path", value="pose.position.x"), "/odom.fields.x: path: there is no 'position' in"),
        (put(*ODOM, "fields", "x", "path", value="pose"), "x: path: pose is a message, not a single value"),
        (put(*ODOM, "fields", "x", "as", value="yaw"), "/odom.fields.x: as: yaw is of a quaternion"),
        (put(*ODOM, "fields", "x", "unit", value="furlong"), "observe.topics./odom.fields.x.unit: input should be"),
        (put("observe", "text", value="x {xx}"), "observe.text: there is no field {xx}"),
        (put(*CMD, "set", "linear.x", value={"from": "speed"}), "set.linear.x: add `min` and `max`"),
        (put(*CMD, "set", "linear.x", value={"from": "pace", "min": 0, "max": 1}), "there is no parameter 'pace'"),
        (put(*CMD, "set", "linear.w", value=1.0), "set.linear.w: there is no 'w' in Vector3"),
        (put(*CMD, "set", "linear.x", value="fast"), "set.linear.x: 'fast' does not fit linear.x"),
        (put(*CMD, "set", "linear.x", value="now"), "`now` is for a time stamp"),
        (put(*CMD, "set", "linear", value=1.0), "does not fit linear, which is of the kind vector"),
        (put(*CMD, "set", "angular.z", "values", value={"left": 1}), "values has nothing for 'straight'"),
        (put("tools", "drive", "required", value=["speed"]), "turn may be left out of a call: add `default`"),
        (put("tools", "drive", "required", value=["sped"]), "tools.drive.required: there is no parameter 'sped'"),
        (put("tools", "stop", "publish", "/cmd_vel", "type", value="std_msgs/msg/String"), "has another type or QoS"),
        (put("observe", "text", value="x {x:.1f}"), "observe.text: {x} has a format of its own"),
        (put("observe", "text", value="x {x!r}"), "observe.text: {x} has a format of its own"),
        (put("observe", "text", value="x \ud800 {x}"), "observe.text: it is no valid Unicode"),
        (crossed, "/odom.fields.x: min is above max"),
        (put(*ODOM, "fields", "f", value={"path": "child_frame_id", "digits": 1}), "f: digits: child_frame_id is no"),
        (put("instruction_topic", value="~/goal"), "instruction_topic: ~/goal is private to a node"),
        (put("diagnostics", value={"topic": "~told"}), "diagnostics.topic: ~told is private to a node"),
        (put("diagnostics", value={"topic": "/cmd_vel"}), "/cmd_vel: it is said to be geometry_msgs/msg/Twist and dia"),
        (put("instruction_topic", value="odom"), "/odom: it is said to be nav_msgs/msg/Odometry and std_msgs/msg/Str"),
        (put(*ODOM[:-1], "odom", value=EXAMPLE["observe"]["topics"]["/odom"]), "odom and /odom are the same topic"),
        (put(*CMD[:-1], "cmd_vel", value={"type": "geometry_msgs/Twist"}), "drive.publish: cmd_vel and /cmd_vel are"),
        (
            put("tools", "stop", "publish", value={"cmd_vel": EXAMPLE["tools"]["stop"]["publish"]["/cmd_vel"]}),
            "robot.yaml: /cmd_vel: it is written with / before it and without",
        ),
        (put("instruction_topic", value="/é"), "instruction_topic: string should match"),
        (put("tools", "drive", "parameters", "speed", "type", value="int"), "parameters: speed.type: 'int' is none of"),
        (put("tools", "drive", "parameters", "turn", "enum", value=5), "parameters: turn.enum: 5 is no list of values"),
        (put(*CMD, "set", "angular.z", "default", value="up"), "angular.z: default: nothing is given for 'up'"),
        (put("safe", value={"name": "drive", "arguments": FAST}), "speed: 77 is none of 0, 10"),
    ],
)
def test_a_mistake_names_file_key_and_remedy(change: Any, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        mapper(change)
    assert raised.value.what.startswith("robot.yaml: ") and says in raised.value.what, raised.value.what
    assert raised.value.remedy.endswith(".")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "robot.yaml is empty."),
        ("# nothing", "robot.yaml is empty."),
        ("- a", "robot.yaml has no keys at its top."),
        ("instruction: 2024-13-45", "robot.yaml: month must be in 1..12."),
        ("a: " + "[" * 3000, "robot.yaml: it is nested too deeply."),
        ("a: b\0", "robot.yaml: unacceptable character #x0000"),
        ("a:\n\tb: 1", "robot.yaml line 2: found character"),
        ("hz: 16\nhz: 20\n", "robot.yaml line 2: 'hz' is given twice"),
    ],
)
def test_a_text_that_is_no_config_is_told(text: str, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        config.parse(text, "robot.yaml")
    assert raised.value.what.startswith(says), raised.value.what


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "it is no UTF-8 text"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_what_is_no_text_file_is_told(made: Any, why: str, tmp_path: Path) -> None:
    made(tmp_path / "robot.yaml")
    with pytest.raises(Ros2BridgeError, match=rf"cannot be read \({why}\).*Copy .*examples/robot.yaml"):
        config.load(tmp_path / "robot.yaml")


@pytest.mark.parametrize(
    ("kind", "field", "limit", "says"),
    [
        ("ackermann_msgs/msg/AckermannDrive", "speed", 1e300, "max: 1e.300 is not between -3.40282e.38 and"),
        ("std_msgs/msg/UInt8", "data", 256, "max: 256.0 is not between 0 and 255"),
        ("trajectory_msgs/msg/JointTrajectoryPoint", "time_from_start", 2**31, "max: 2147483648.0 does not fit"),
    ],
)
def test_a_limit_that_the_field_cannot_hold_is_a_mistake(kind: str, field: str, limit: float, says: str) -> None:
    with pytest.raises(Ros2BridgeError, match=says):
        publishes(kind, {field: {"from": "v", "min": 0, "max": limit}}, {"v": 1}, NUMBER)


def test_words_that_yaml_takes_for_booleans_stay_words() -> None:
    text = yaml.safe_dump({**EXAMPLE}).replace("hz: 16", "hz: 16\nsession: {model: no}")
    assert config.parse(text, "robot.yaml").session.model == "no"
