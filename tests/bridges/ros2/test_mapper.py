"""The mapping of robot.yaml: what is read, and what is published."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.ros2.errors import Ros2BridgeError, Unmappable
from rtcontrol.bridges.ros2.fields import pitch, roll, yaw
from rtcontrol.bridges.ros2.msgs import MESSAGES, geometry_msgs, nav_msgs, sensor_msgs, std_msgs, trajectory_msgs
from rtcontrol.bridges.ros2.paths import message_type
from tests.bridges.ros2.mapping import NUMBER, mapper, publishes, put, reads


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
    assert m.hello(None, 16.0)["tools"][0]["parameters"]["required"] == ["speed", "turn"]


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


@pytest.mark.parametrize("ahead", [math.nan, 0.0, 0.007, -1.0, 0.099])
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


INC = math.tau / 1024
ROUND = {"angle_min": 0.0, "angle_max": 6.28, "angle_increment": math.radians(1), "range_min": 0.12, "range_max": 3.5}


@pytest.mark.parametrize(
    ("sensor", "ranges", "expected"),
    [
        # hokuyo_node 5: an open corridor, 0.0 for no echo, and 7 mm, which is the code of an error.
        (
            {"angle_min": -341 * INC, "angle_increment": INC, "range_min": 0.02, "range_max": 5.6},
            [3.153] * 250 + [0.0] * 90 + [0.007000000216066837] + [0.0] * 90 + [2.53] * 252,
            2.53,
        ),
        # sick_scan 110: from pi downwards; sick_scan_xd 159: from -pi downwards, which is the same.
        *(
            (
                {"angle_min": a, "angle_increment": -math.tau / 360, "range_max": 100.0},
                [9.0] * 170 + [1.0] + [9.0] * 189,
                1.0,
            )
            for a in (math.pi, -math.pi)
        ),
        # TurtleBot3: from 0 to 2 pi; ahead is at both ends.
        (ROUND, [3.0, 3.0, 3.0, -1.0] + [3.0] * 176 + [0.3] + [3.0] * 169 + [1.2] + [3.0] * 9, 1.2),
        (ROUND, [math.inf] * 180 + [0.3] + [math.inf] * 179, 3.5),
        # rplidar_ros 115: a range_max of 0; drivers that leave range_min out, or NaN.
        ({**ROUND, "range_max": 0.0}, [2.0] * 360, 2.0),
        ({**ROUND, "range_max": math.nan}, [2.0] * 360, 2.0),
        ({**ROUND, "range_min": math.nan}, [0.05] + [0.0] * 359, 0.05),
        ({**ROUND, "range_min": 0.0}, [0.0, -0.5, 0.05] + [2.0] * 357, 0.05),
        ({**ROUND, "range_min": math.nan}, [-math.inf] + [2.0] * 359, 0.0),
        ({**ROUND, "range_min": -1.0}, [-0.5, -math.inf] + [2.0] * 358, 0.0),
        ({**ROUND, "intensities": [0.0] * 360}, [2.0] * 360, 2.0),
    ],
)
def test_sector_reads_the_scans_of_real_sensors(sensor: dict[str, Any], ranges: list[float], expected: float) -> None:
    ahead = {"as": "sector", "from_deg": -30, "to_deg": 30}
    assert reads(SCAN, sensor_msgs.LaserScan(ranges=ranges, **sensor), **ahead) == expected


def test_sector_whose_beams_failed_is_not_read_from_beside_it() -> None:
    ranges = [2.0] * 40 + [math.nan] + [0.0] * 320
    failed = sensor_msgs.LaserScan(**{**ROUND, "angle_min": -math.pi / 2}, ranges=ranges)
    beside = {"as": "sector", "from_deg": -49.5, "to_deg": -10}
    with pytest.raises(Unmappable, match="no beam in this direction gave a range"):
        reads(SCAN, failed, **{**beside, "from_deg": -50.5})
    assert reads(SCAN, failed, **beside) == 2.0


@pytest.mark.parametrize(
    ("scan", "says"),
    [
        (sensor_msgs.LaserScan(**ROUND), "the scan has no beam in this direction"),
        (sensor_msgs.LaserScan(**{**ROUND, "angle_increment": 0.0}, ranges=[1.0] * 9), "the scan says no directions"),
        (sensor_msgs.LaserScan(**{**ROUND, "angle_increment": math.nan}, ranges=[1.0] * 9), "the scan says no dir"),
        (sensor_msgs.LaserScan(**{**ROUND, "angle_min": math.inf}, ranges=[1.0] * 9), "the scan says no directions"),
        (sensor_msgs.LaserScan(**{**ROUND, "range_max": 0.0}, ranges=[math.inf] * 360), "it is infinite"),
        (sensor_msgs.LaserScan(**{**ROUND, "range_min": 5.0}, ranges=[1.0] * 360), "no beam in this direction gave"),
    ],
)
def test_scan_that_says_nothing_of_a_sector_has_no_value(scan: sensor_msgs.LaserScan, says: str) -> None:
    with pytest.raises(Unmappable, match=says):
        reads(SCAN, scan, **AHEAD)


def test_the_shape_of_a_scan_may_change_between_messages() -> None:
    topics = {"/scan": {"type": SCAN, "fields": {"f": AHEAD}}}
    source = mapper(put("observe", value={"topics": topics})).sources[0]
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


@pytest.mark.parametrize("level", [0, 127, 128, 255])
def test_byte_has_all_of_its_values(level: int) -> None:
    status, spec = "diagnostic_msgs/msg/DiagnosticStatus", {"from": "n", "min": 0, "max": 255}
    made = publishes(status, {"level": spec}, {"n": level}, {"n": {"type": "integer"}})
    assert reads(status, type(made).deserialize(made.serialize()), path="level", digits=0) == level
    with pytest.raises(Ros2BridgeError, match="256.0 is not between 0 and 255"):
        publishes(status, {"level": {**spec, "max": 256}}, {"n": level}, {"n": {"type": "integer"}})


@pytest.mark.parametrize(("value", "why"), [(math.nan, "not a number"), (-math.inf, "infinite")])
def test_what_is_not_a_number_has_no_value(value: float, why: str) -> None:
    with pytest.raises(Unmappable, match=why):
        reads("std_msgs/msg/Float64", std_msgs.Float64(data=value), path="data")


@given(st.integers() | st.floats())
def test_a_field_of_32_bits_never_gets_more(value: float) -> None:
    fields = {"speed": {"from": "v", "scale": 1e30, "min": -3.4e38, "max": 3.4e38}}
    with contextlib.suppress(Unmappable):
        publishes("ackermann_msgs/msg/AckermannDrive", fields, {"v": value}, NUMBER).serialize()


LISTED = {"v": {"type": "string", "enum": ["left", "right"]}}


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["up", "a\0", "\ud800", 1, None, ["left"], {"left": 1}], LISTED),
        (["a\0b", "\ud800", 1, 10**400, ["a"]], {"v": {"type": "string"}}),
    ],
    ids=["not listed", "not for ROS"],
)
def test_a_word_that_the_tool_does_not_list_or_ros_cannot_carry_is_not_published(
    words: list[Any], parameters: dict[str, Any]
) -> None:
    for word in words:
        with pytest.raises(Unmappable):
            publishes("std_msgs/msg/String", {"data": {"from": "v"}}, {"v": word}, parameters)
    assert publishes("std_msgs/msg/String", {"data": {"from": "v"}}, {"v": "left"}, parameters).data == "left"


def test_a_field_whose_name_has_a_point_is_shown() -> None:
    topics = {"/t": {"type": "std_msgs/msg/Float64", "fields": {"a.b": "data"}}}
    observe = {"text": "{{a}} {a.b}", "topics": topics}
    assert mapper(put("observe", value=observe)).text({"a.b": 1.5}) == "{a} 1.5"


def test_a_safe_call_that_leaves_a_topic_running_is_warned_of() -> None:
    (warning,) = mapper(put("tools", "stop", "publish", value={})).warnings()
    assert "tool drive keeps publishing /cmd_vel, but the safe call stop publishes nothing there" in warning


def test_an_unknown_call_is_refused() -> None:
    with pytest.raises(Unmappable, match="fly is no tool of this robot"):
        mapper().publications("fly", {}, 0)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_type_is_found_by_both_of_its_names(name: str) -> None:
    assert message_type(name) == message_type(name.replace("/msg/", "/"))


def test_topics_that_every_call_publishes_each_tick_are_steady() -> None:
    elsewhere = put("tools", "stop", "publish", "/brake", value={"type": "std_msgs/msg/Bool"})
    once = put("tools", "stop", "publish", "/cmd_vel", "repeat", value=False)
    assert mapper().steady() == mapper(elsewhere).steady() == {"/cmd_vel"}
    assert mapper(once).steady() == set()
