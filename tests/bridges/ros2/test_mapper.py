"""The mapping of robot.yaml: what is read, what is published, and what mistakes are told as."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

import yaml
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.ros2 import config
from rtcontrol.bridges.ros2.errors import BridgeError, Unmappable
from rtcontrol.bridges.ros2.mapper import Mapper
from rtcontrol.bridges.ros2.msgs import MESSAGES, geometry_msgs, nav_msgs, sensor_msgs, trajectory_msgs
from rtcontrol.bridges.ros2.reading import pitch, roll, yaw

EXAMPLE = yaml.safe_load(Path(config.EXAMPLE).read_text("utf-8"))


def mapper(change: Any = None) -> Mapper:
    value = copy.deepcopy(EXAMPLE)
    if change is not None:
        change(value)
    return Mapper(config.parse(yaml.safe_dump(value, sort_keys=False), "robot.yaml"), "robot.yaml")


def reads(kind: str, message: Any, **spec: Any) -> Any:
    """The value of one field of a message of the type."""

    def change(value: dict[str, Any]) -> None:
        value["observe"] = {"topics": {"/t": {"type": kind, "fields": {"f": spec}}}}

    return mapper(change).sources[0].read(message)["f"]


def publishes(kind: str, fields: dict[str, Any], arguments: dict[str, Any], parameters: dict[str, Any]) -> Any:
    """The message of a call of a tool with one publication."""

    def change(value: dict[str, Any]) -> None:
        publish = {"/t": {"type": kind, "set": fields}}
        value["tools"]["act"] = {"description": "", "parameters": parameters, "publish": publish}

    return mapper(change).publications("act", arguments, 1_500_000_000)[0].message


NUMBER = {"v": {"type": "number"}}


def about(axis: str, angle: float) -> geometry_msgs.Quaternion:
    return geometry_msgs.Quaternion(**{axis: math.sin(angle / 2), "w": math.cos(angle / 2)})


def test_the_shipped_example_maps_odometry_scan_and_battery() -> None:
    m = mapper()
    odometry = nav_msgs.Odometry()
    odometry.pose.pose.position.x = 1.26
    odometry.pose.pose.orientation = about("z", math.pi / 2)
    scan = sensor_msgs.LaserScan(
        angle_min=-math.pi, angle_increment=math.tau / 360, range_max=12.0, range_min=0.1, ranges=[math.inf] * 360
    )
    scan.ranges[180] = 0.74  # ahead
    scan.ranges[240] = 2.0  # 60 degrees to the left
    battery = sensor_msgs.BatteryState(percentage=math.nan)
    values: dict[str, Any] = {}
    for source, message in zip(m.sources, (odometry, scan, battery), strict=True):
        values |= source.read(message)
    assert m.text(values) == "x 1.3 y 0.0 heading 90 speed 0.0 left 2.0 ahead 0.7 right 5.0 battery unknown"


def test_the_shipped_example_drives_and_stops() -> None:
    m = mapper()
    (drive,) = m.publications("drive", {"speed": 30, "turn": "left"}, 0)
    assert (drive.topic, drive.repeat) == ("/cmd_vel", True)
    assert (drive.message.linear.x, drive.message.angular.z) == (0.3, 0.8)
    assert m.publications("stop", {}, 0)[0].message == geometry_msgs.Twist()
    assert m.warnings() == []
    assert m.tools()[0]["parameters"]["required"] == ["speed", "turn"]


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.text() | st.none())
def test_what_is_published_is_within_its_limits_or_refused(value: Any) -> None:
    fields = {"linear.x": {"from": "v", "scale": 3, "min": -0.5, "max": 0.25}}
    try:
        message = publishes("geometry_msgs/msg/Twist", fields, {"v": value}, NUMBER)
    except Unmappable:
        assert isinstance(value, bool | str | None) or not math.isfinite(value)
    else:
        assert -0.5 <= message.linear.x <= 0.25


def test_ackermann_string_float_and_trajectory_are_published() -> None:
    drive = {"drive.speed": {"from": "v", "min": 0, "max": 5}, "header.stamp": "now", "header.frame_id": "base"}
    message = publishes("ackermann_msgs/msg/AckermannDriveStamped", drive, {"v": 9}, NUMBER)
    assert (message.drive.speed, message.header.frame_id) == (5.0, "base")
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (1, 500_000_000)
    assert publishes("std_msgs/String", {"data": {"from": "v"}}, {"v": "go"}, {"v": {"type": "string"}}).data == "go"
    assert publishes("std_msgs/msg/Float64", {"data": {"from": "v", "min": 0, "max": 9}}, {"v": 2}, NUMBER).data == 2.0
    fields = {
        "joint_names": ["shoulder", "elbow"],
        "points[0].positions[0]": 0.5,
        "points[0].positions[1]": {"from": "v", "scale": math.pi / 180, "min": -1, "max": 1},
        "points[0].time_from_start": 0.25,
    }
    message = publishes("trajectory_msgs/msg/JointTrajectory", fields, {"v": 30}, NUMBER)
    point = trajectory_msgs.JointTrajectoryPoint(positions=[0.5, pytest.approx(math.pi / 6)])
    assert (message.joint_names, message.points[0].positions) == (["shoulder", "elbow"], point.positions)
    assert message.points[0].time_from_start.nanosec == 250_000_000
    message.serialize()


def test_booleans_are_not_numbers_in_a_table_of_values() -> None:
    fields = {"linear.x": {"from": "v", "values": {1: 0.5}}}
    with pytest.raises(Unmappable, match="v: nothing is given for True"):
        publishes("geometry_msgs/msg/Twist", fields, {"v": True}, NUMBER)


def test_an_optional_argument_takes_its_default() -> None:
    def change(value: dict[str, Any]) -> None:
        value["tools"]["drive"]["required"] = ["speed"]
        value["tools"]["drive"]["publish"]["/cmd_vel"]["set"]["angular.z"]["default"] = "straight"

    assert mapper(change).publications("drive", {"speed": 10}, 0)[0].message.angular.z == 0.0


@given(st.floats(-3.1, 3.1), st.sampled_from("xyz"))
def test_angles_of_a_turn_about_one_axis(angle: float, axis: str) -> None:
    found = {"x": roll, "y": pitch, "z": yaw}[axis](about(axis, angle))
    # A pitch beyond 90 degrees is another turn with less pitch.
    assert math.isclose(found, math.asin(math.sin(angle)) if axis == "y" else angle, abs_tol=1e-6)


def test_yaw_of_a_quaternion_that_is_none_has_no_value() -> None:
    with pytest.raises(Unmappable, match="f: the quaternion has the length 0"):
        reads("geometry_msgs/Quaternion", geometry_msgs.Quaternion(), **{"as": "yaw"})


SCAN = "sensor_msgs/msg/LaserScan"
AHEAD = {"as": "sector", "from_deg": -45, "to_deg": 45}


def scan(ranges: list[float]) -> sensor_msgs.LaserScan:
    """Four beams: behind, right, ahead, left."""
    return sensor_msgs.LaserScan(
        angle_min=-math.pi, angle_increment=math.pi / 2, range_min=0.1, range_max=8.0, ranges=ranges
    )


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [(2.5, 2.5), (math.inf, 8.0), (-math.inf, 0.1), (9.5, 8.0)],
    ids=["echo", "free", "near", "far"],
)
def test_sector_reads_ranges_as_rep_117_says(ahead: float, expected: float) -> None:
    assert reads(SCAN, scan([0.5, 0.5, ahead, 0.5]), **AHEAD) == expected


@pytest.mark.parametrize("ahead", [math.nan, 0.0])
def test_sector_without_any_range_has_no_value(ahead: float) -> None:
    with pytest.raises(Unmappable, match="no beam in this direction gave a range"):
        reads(SCAN, scan([1.0, 1.0, ahead, 1.0]), **AHEAD)
    assert reads(SCAN, scan([1.0, 1.0, ahead, 1.0]), missing="blind", **AHEAD) == "blind"


def test_sector_across_the_back_and_a_scan_from_zero_to_two_pi() -> None:
    behind = {"as": "sector", "from_deg": 135, "to_deg": -135}
    assert reads(SCAN, scan([0.5, 1.0, 2.0, 3.0]), **behind) == 0.5
    turned = scan([2.0, 3.0, 0.5, 1.0])
    turned.angle_min = 0.0
    assert reads(SCAN, turned, **behind) == 0.5
    assert reads(SCAN, turned, **{"as": "sector", "from_deg": -180, "to_deg": 180}) == 0.5


def test_the_shape_of_a_scan_may_change_between_messages() -> None:
    def change(value: dict[str, Any]) -> None:
        value["observe"] = {"topics": {"/scan": {"type": SCAN, "fields": {"f": AHEAD}}}}

    source = mapper(change).sources[0]
    assert source.read(scan([1.0, 1.0, 2.0, 1.0])) == {"f": 2.0}
    assert source.read(sensor_msgs.LaserScan(angle_min=0.0, angle_increment=1.0, range_max=8.0, ranges=[3.0])) == {
        "f": 3.0
    }


def test_joint_is_found_by_its_name() -> None:
    joints = sensor_msgs.JointState(name=["wrist", "elbow"], position=[0.1, 1.2345])
    assert reads("sensor_msgs/msg/JointState", joints, path="position[elbow]") == 1.23
    with pytest.raises(Unmappable, match="f: no 'hip' among wrist, elbow"):
        reads("sensor_msgs/msg/JointState", joints, path="position[hip]")
    with pytest.raises(Unmappable, match="velocity has only 0 elements"):
        reads("sensor_msgs/msg/JointState", joints, path="velocity[elbow]")


def test_units_rounding_norms_words_and_times() -> None:
    twist = geometry_msgs.Twist(linear=geometry_msgs.Vector3(x=3.0, y=4.0))
    assert reads("geometry_msgs/msg/Twist", twist, path="linear", **{"as": "norm"}) == 5.0
    assert reads("geometry_msgs/msg/Twist", twist, path="linear.x", unit="km/h", digits=0) == 11
    assert str(reads("geometry_msgs/msg/Twist", geometry_msgs.Twist(), path="linear.x", scale=-1)) == "0.0"
    battery = sensor_msgs.BatteryState(power_supply_status=2)
    path = "power_supply_status"
    assert reads("sensor_msgs/msg/BatteryState", battery, path=path, values={2: "discharging"}) == "discharging"
    with pytest.raises(Unmappable, match="no word is given for 2"):
        reads("sensor_msgs/msg/BatteryState", battery, path=path, values={1: "charging"})
    imu = sensor_msgs.Imu()
    imu.header.stamp.sec = 3
    assert reads("sensor_msgs/msg/Imu", imu, path="header.stamp") == 3.0


def put(*keys: str, value: Any) -> Any:
    def change(root: dict[str, Any]) -> None:
        for key in keys[:-1]:
            root = root[key]
        root[keys[-1]] = value

    return change


ODOM = ("observe", "topics", "/odom")
CMD = ("tools", "drive", "publish", "/cmd_vel")


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
        (
            put(*ODOM, "fields", "x", "path", value="pose"),
            "/odom.fields.x: path: pose is a message, not a single value",
        ),
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
    ],
)
def test_a_mistake_names_file_key_and_remedy(change: Any, says: str) -> None:
    with pytest.raises(BridgeError) as raised:
        mapper(change)
    assert raised.value.what.startswith("robot.yaml: ") and says in raised.value.what, raised.value.what
    assert raised.value.remedy.endswith(".")


def test_a_key_given_twice_is_a_mistake_with_its_line() -> None:
    with pytest.raises(BridgeError, match="robot.yaml line 2: 'hz' is given twice"):
        config.parse("hz: 16\nhz: 20\n", "robot.yaml")


def test_words_that_yaml_takes_for_booleans_stay_words() -> None:
    text = yaml.safe_dump({**EXAMPLE}).replace("hz: 16", "hz: 16\nsession: {model: no}")
    assert config.parse(text, "robot.yaml").session.model == "no"


def test_a_missing_file_says_where_the_example_is(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match=r"cannot be read.*Copy .*examples/robot.yaml"):
        config.load(tmp_path / "none.yaml")


def test_a_safe_call_that_leaves_a_topic_running_is_warned_of() -> None:
    (warning,) = mapper(put("tools", "stop", "publish", value={})).warnings()
    assert "tool drive keeps publishing /cmd_vel, but the safe call stop publishes nothing there" in warning


def test_an_unknown_call_is_refused() -> None:
    with pytest.raises(Unmappable, match="fly is no tool of this robot"):
        mapper().publications("fly", {}, 0)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_type_is_found_by_both_of_its_names(name: str) -> None:
    from rtcontrol.bridges.ros2.paths import message_type

    assert message_type(name) == message_type(name.replace("/msg/", "/"))


def test_topics_that_every_call_publishes_each_tick_are_steady() -> None:
    def elsewhere(value: dict[str, Any]) -> None:
        value["tools"]["stop"]["publish"]["/brake"] = {"type": "std_msgs/msg/Bool"}

    def once(value: dict[str, Any]) -> None:
        value["tools"]["stop"]["publish"]["/cmd_vel"]["repeat"] = False

    assert mapper().steady() == mapper(elsewhere).steady() == {"/cmd_vel"}
    assert mapper(once).steady() == set()
