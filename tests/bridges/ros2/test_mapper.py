"""The mapping of robot.yaml: reading fields, observing, publishing, and errors in the file."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client.ros2 import Ros2BridgeError, Unmappable, config
from rtcontrol_client.ros2.fields import find_type, pitch, roll, yaw
from rtcontrol_client.ros2.mapper import GoalOrder
from rtcontrol_client.ros2.observer import DelayEstimator, Observer
from tests.bridges.ros2.mapping import NUMBER, linked, mapper, publishes, put, reads
from tests.bridges.ros2.messages import geometry_msgs, nav_msgs, sensor_msgs, std_msgs


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


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.text() | st.none())
def test_published_value_is_clamped_to_its_limits_or_refused(value: Any) -> None:
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
    assert message.joint_names == ["shoulder", "elbow"]
    assert list(message.points[0].positions) == [0.5, pytest.approx(math.pi / 6)]
    assert message.points[0].time_from_start.nanosec == 250_000_000


@given(st.floats(-3.1, 3.1), st.sampled_from("xyz"))
def test_rotation_about_one_axis_gives_its_angle(angle: float, axis: str) -> None:
    result = {"x": roll, "y": pitch, "z": yaw}[axis](about(axis, angle))
    # A pitch beyond 90 degrees equals another rotation with less pitch.
    assert math.isclose(result, math.asin(math.sin(angle)) if axis == "y" else angle, abs_tol=1e-6)


SCAN = "sensor_msgs/msg/LaserScan"


ROUND = {"angle_min": 0.0, "angle_max": 6.28, "angle_increment": math.radians(1), "range_min": 0.12, "range_max": 3.5}
INC = math.tau / 1024
# hokuyo_node 5: an open corridor, with 0.0 for no echo and 7 mm as an error code.
HOKUYO = {"angle_min": -341 * INC, "angle_increment": INC, "range_min": 0.02, "range_max": 5.6}
CORRIDOR = [3.153] * 250 + [0.0] * 90 + [0.007000000216066837] + [0.0] * 90 + [2.53] * 252
# sick_scan 110: angles go down from pi.
SICK = {"angle_min": math.pi, "angle_increment": -math.tau / 360, "range_max": 100.0}
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("sensor", "ranges", "expected"),
    [
        # By REP 117: an echo, free, too near, too far.
        *(({}, [0.5, 0.5, ahead, 0.5], result) for ahead, result in ((2.5, 2.5), (INF, 8.0), (-INF, 0.1), (9.5, 8.0))),
        (HOKUYO, CORRIDOR, 2.53),
        (SICK, [9.0] * 170 + [1.0] + [9.0] * 189, 1.0),
        # TurtleBot3: from 0 to 2 pi; ahead is at both ends.
        (ROUND, [3.0, 3.0, 3.0, -1.0] + [3.0] * 176 + [0.3] + [3.0] * 169 + [1.2] + [3.0] * 9, 1.2),
        # rplidar_ros 115: a range_max of 0; other drivers leave range_min out, or set NaN.
        ({**ROUND, "range_max": 0.0}, [2.0] * 360, 2.0),
        ({**ROUND, "range_max": NAN}, [2.0] * 360, 2.0),
        ({**ROUND, "range_min": NAN}, [-INF] + [2.0] * 359, 0.0),
        ({**ROUND, "range_min": 0.0}, [0.0, -0.5, 0.05] + [2.0] * 357, 0.05),
        # Scans without a value: no beam, no direction, no range.
        ({}, [1.0, 1.0, NAN, 1.0], "no beam in this direction measured a range"),
        ({}, [1.0, 1.0, 0.099, 1.0], "no beam in this direction measured a range"),
        (ROUND, [], "no beam in this direction measured a range"),
        ({**ROUND, "angle_increment": 0.0}, [1.0] * 9, "the scan has no valid directions"),
        ({**ROUND, "angle_min": INF}, [1.0] * 9, "the scan has no valid directions"),
        ({**ROUND, "range_max": 0.0}, [INF] * 360, "it is infinite"),
    ],
)
def test_sector_reads_the_scans_of_real_sensors(sensor: Any, ranges: list[float], expected: float | str) -> None:
    four = {"angle_min": -math.pi, "angle_increment": math.pi / 2, "range_min": 0.1, "range_max": 8.0}
    ahead = {"as": "sector", "from_deg": -30, "to_deg": 30}
    scan = sensor_msgs.LaserScan(ranges=ranges, **(sensor or four))
    if isinstance(expected, float):
        assert reads(SCAN, scan, **ahead) == expected
        return
    with pytest.raises(Unmappable, match=expected):
        reads(SCAN, scan, **ahead)
    assert reads(SCAN, scan, missing="blind", **ahead) == "blind"


def test_sector_with_failed_beams_has_no_value() -> None:
    ranges = [2.0] * 40 + [NAN] + [0.0] * 320
    failed = sensor_msgs.LaserScan(**{**ROUND, "angle_min": -math.pi / 2}, ranges=ranges)
    with pytest.raises(Unmappable, match="no beam in this direction measured a range"):
        reads(SCAN, failed, **{"as": "sector", "from_deg": -50.5, "to_deg": -10})
    assert reads(SCAN, failed, **{"as": "sector", "from_deg": -49.5, "to_deg": -10}) == 2.0
    back = sensor_msgs.LaserScan(**ROUND, ranges=[3.0] * 180 + [0.5] + [3.0] * 179)
    assert reads(SCAN, back, **{"as": "sector", "from_deg": 135, "to_deg": -135}) == 0.5


JOINTS = sensor_msgs.JointState(name=["wrist", "elbow"], position=[0.1, 1.2345])


@pytest.mark.parametrize(
    ("kind", "message", "spec", "why"),
    [
        ("std_msgs/msg/Float64", std_msgs.Float64(data=NAN), {"path": "data"}, "not a number"),
        ("std_msgs/msg/Float64", std_msgs.Float64(data=-INF), {"path": "data"}, "infinite"),
        ("geometry_msgs/Quaternion", geometry_msgs.Quaternion(), {"as": "yaw"}, "f: the quaternion has the length 0"),
        ("sensor_msgs/msg/JointState", JOINTS, {"path": "position[hip]"}, "f: no 'hip' among wrist, elbow"),
        ("sensor_msgs/msg/JointState", JOINTS, {"path": "velocity[elbow]"}, "the list has only 0 elements"),
    ],
)
def test_field_that_is_not_a_number_has_no_value(kind: str, message: Any, spec: dict[str, Any], why: str) -> None:
    with pytest.raises(Unmappable, match=why):
        reads(kind, message, **spec)


def test_units_rounding_norms_values_and_times_are_converted() -> None:
    twist = geometry_msgs.Twist(linear=geometry_msgs.Vector3(x=3.0, y=4.0))
    assert reads("geometry_msgs/msg/Twist", twist, path="linear", **{"as": "norm"}) == 5.0
    assert reads("geometry_msgs/msg/Twist", twist, path="linear.x", unit="percent", digits=0) == 300
    assert str(reads("geometry_msgs/msg/Twist", geometry_msgs.Twist(), path="linear.x", scale=-1)) == "0.0"
    battery = sensor_msgs.BatteryState(power_supply_status=2)
    path = "power_supply_status"
    assert reads("sensor_msgs/msg/BatteryState", battery, path=path, values={2: "discharging"}) == "discharging"
    with pytest.raises(Unmappable, match="`values` has no entry for 2"):
        reads("sensor_msgs/msg/BatteryState", battery, path=path, values={1: "charging"})
    imu = sensor_msgs.Imu()
    imu.header.stamp.sec = 3
    assert reads("sensor_msgs/msg/Imu", imu, path="header.stamp") == 3.0
    assert reads("sensor_msgs/msg/JointState", JOINTS, path="position[elbow]") == 1.23


@pytest.mark.parametrize("level", [0, 127, 128, 255])
def test_byte_field_accepts_all_byte_values(level: int) -> None:
    status, spec = "diagnostic_msgs/msg/DiagnosticStatus", {"from": "n", "min": 0, "max": 255}
    made = publishes(status, {"level": spec}, {"n": level}, {"n": {"type": "integer"}})
    assert made.level == bytes([level])
    assert reads(status, made, path="level", digits=0) == level
    with pytest.raises(Ros2BridgeError, match="256.0 is not between 0 and 255"):
        publishes(status, {"level": {**spec, "max": 256}}, {"n": level}, {"n": {"type": "integer"}})


LISTED = {"v": {"type": "string", "enum": ["left", "right"]}}


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        (["up", "a\0", "\ud800", 1, None, ["left"], {"left": 1}], LISTED),
        (["a\0b", "\ud800", 1, ["a"]], {"v": {"type": "string"}}),
    ],
    ids=["not listed", "not for ROS"],
)
def test_string_outside_enum_or_invalid_in_ros_is_refused(words: list[Any], parameters: dict[str, Any]) -> None:
    for word in words:
        with pytest.raises(Unmappable):
            publishes("std_msgs/msg/String", {"data": {"from": "v"}}, {"v": word}, parameters)
    assert publishes("std_msgs/msg/String", {"data": {"from": "v"}}, {"v": "left"}, parameters).data == "left"


def test_safe_call_that_leaves_a_topic_running_gives_a_warning() -> None:
    (warning,) = mapper(put("tools", "stop", "publish", value={})).warnings()
    assert "tool drive keeps publishing /cmd_vel, but the safe call stop publishes nothing on it" in warning


@pytest.mark.parametrize("name", ["nowhere_msgs/msg/X", "geometry_msgs/msg/twist"])
def test_type_that_is_not_installed_is_an_error_with_a_hint(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown type '{name}'.*source the ROS set-up or the workspace"):
        find_type(name, "msg")


@pytest.mark.parametrize(("value", "fits"), [([1.5] * 36, True), ([1.5], False), ([1.5] * 35 + ["x"], False)])
def test_constant_list_must_fit_the_field(value: list[Any], fits: bool) -> None:
    kind = "geometry_msgs/msg/PoseWithCovariance"
    if fits:
        assert list(publishes(kind, {"covariance": value}, {}, {}).covariance) == value
    else:
        with pytest.raises(Ros2BridgeError, match="does not fit covariance"):
            publishes(kind, {"covariance": value}, {}, {})


def test_topics_published_each_tick_have_a_deadline() -> None:
    elsewhere = mapper(put("tools", "stop", "publish", "/brake", value={"type": "std_msgs/msg/Bool"}))
    once = mapper(put("tools", "stop", "publish", "/cmd_vel", "repeat", value=False))
    assert elsewhere.max_interval_ms("/cmd_vel") == 187.5  # three periods of 16 Hz
    assert elsewhere.max_interval_ms("/brake") is None and once.max_interval_ms("/cmd_vel") is None


# Errors in robot.yaml.


ODOM = ("observe", "topics", "/odom")
CMD = ("tools", "drive", "publish", "/cmd_vel")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("speed", value=3), "robot.yaml: speed: it is not a key of this format"),
        (lambda c: c.pop("safe"), "robot.yaml: safe: it is missing"),
        (put("safe", value="halt"), "robot.yaml: safe: there is no tool 'halt'"),
        (put("safe", value="drive"), "safe.arguments: drive takes speed, turn"),
        (put("safe", value={"name": "stop", "arguments": {"at": 1}}), "safe.arguments: stop takes none"),
        (put(*ODOM, "type", value="nav_msgs/msg/Odometri"), "/odom.type: unknown type 'nav_msgs/msg/Odometri'"),
        (put(*ODOM, "fields", "x", "path", value="pose.position.x"), "/odom.fields.x: path: there is no 'position' in"),
        (put(*ODOM, "fields", "x", "as", value="yaw"), "/odom.fields.x: as: yaw needs a quaternion"),
        (put("observe", "text", value="x {xx}"), "observe.text: there is no field 'xx'"),
        (put(*CMD, "set", "linear.x", value={"from": "speed"}), "set.linear.x: add `min` and `max`"),
        (put(*CMD, "set", "linear.x", value={"from": "pace", "min": 0, "max": 1}), "there is no parameter 'pace'"),
        (put(*CMD, "set", "linear.x", value="fast"), "set.linear.x: 'fast' does not fit linear.x"),
        (put(*CMD, "set", "linear.x", value="now"), "`now` is for a time stamp"),
        (put(*CMD, "set", "angular.z", "values", value={"left": 1}), "`values` has no entry for 'straight'"),
        (put("tools", "stop", "publish", "/cmd_vel", "type", value="std_msgs/msg/String"), "/cmd_vel has two types"),
        (put("observe", "text", value="x {x:.1f}"), "observe.text: Unknown format code 'f'"),
        (put(*ODOM, "fields", "f", value={"path": "child_frame_id", "digits": 1}), "f: digits: child_frame_id is not"),
        (put("instruction_topic", value="/odom"), "/odom has two types, nav_msgs/msg/Odometry and std_msgs/msg/Str"),
    ],
)
def test_error_in_robot_file_names_file_key_and_hint(change: Any, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        mapper(change)
    assert raised.value.what.startswith("robot.yaml: ") and says in raised.value.what, raised.value.what
    assert raised.value.remedy.endswith(".")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file: Input should be a valid dictionary"),
        ("instruction: 2024-13-45", "month must be in 1..12"),
        ("a: " + "[" * 3000, "maximum recursion depth"),
        ("hz: 16\nhz: 20\n", "the key 'hz' occurs twice"),
    ],
)
def test_invalid_config_text_is_an_error(text: str, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        config.parse(text, "robot.yaml")
    assert raised.value.what.startswith("robot.yaml: ") and says in raised.value.what, raised.value.what


def test_binary_config_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "robot.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(Ros2BridgeError, match=r"cannot be read \(.*utf-8.*\)\. Copy .*examples/robot.yaml"):
        config.load(tmp_path / "robot.yaml")


@pytest.mark.parametrize(
    ("kind", "field", "limit", "says"),
    [
        ("ackermann_msgs/msg/AckermannDrive", "speed", 1e300, "max: 1e.300 is not between -3.40282e.38 and"),
        ("std_msgs/msg/UInt8", "data", 256, "max: 256.0 is not between 0 and 255"),
    ],
)
def test_limit_beyond_the_field_type_is_an_error(kind: str, field: str, limit: float, says: str) -> None:
    with pytest.raises(Ros2BridgeError, match=says):
        publishes(kind, {field: {"from": "v", "min": 0, "max": limit}}, {"v": 1}, NUMBER)


# When there is an observation, and which reason is given if there is none.


class Heard:
    """A topic whose newest message is set by the test."""

    def __init__(self) -> None:
        self.next: Any = None
        self.age_ms = 0

    def poll(self) -> tuple[Any, int] | None:
        if isinstance(self.next, Exception):
            raise self.next
        message, self.next = self.next, None
        return None if message is None else (message, time.monotonic_ns() - self.age_ms * 1_000_000)


def observer(**required: bool) -> tuple[Observer, dict[str, Heard]]:
    kind = {"type": "std_msgs/msg/Float64", "max_age_ms": 60_000}
    topics = {f"/{n}": {**kind, "required": r, "fields": {n: "data"}} for n, r in required.items()}
    inputs = {f"/{name}": Heard() for name in required}
    return Observer(mapper(put("observe", value={"topics": topics})), inputs), inputs


def test_only_required_topics_must_have_messages() -> None:
    silent, _ = observer(a=False, b=False)  # without any message there is no observation, although no topic is required
    assert silent.observe() is None and set(silent.waiting) == {"/a", "/b"}
    looking, heard = observer(a=True, b=False)
    assert looking.observe() is None and looking.waiting == {"/a": "no message yet"}
    heard["/a"].next = std_msgs.Float64(data=1.5)
    look = looking.observe()
    assert look is not None and look.data == {"a": 1.5, "b": None} and looking.waiting == {}


def test_old_or_unreadable_message_prevents_the_observation() -> None:
    looking, heard = observer(a=True)
    heard["/a"].next = Unmappable("it cannot be read (out of resources)")
    assert looking.observe() is None and looking.waiting == {"/a": "it cannot be read (out of resources)"}
    heard["/a"].next, heard["/a"].age_ms = std_msgs.Float64(data=1.0), 60_001
    assert looking.observe() is None
    assert looking.waiting == {"/a": "the last message is older than 60000 ms (60 s)"}
    heard["/a"].next, heard["/a"].age_ms = std_msgs.Float64(data=1.0), 59_000
    look = looking.observe()
    assert look is not None and look.t_ns < time.monotonic_ns() - 58_000_000_000


# Services and actions in the file.


def test_call_sends_goals_requests_and_cancellations() -> None:
    made = linked()
    (goal,) = made.publications("count", {"to": 5}, 7)
    assert goal.topic == "/count" and goal.message.goal.order == 5 and not goal.repeat
    assert goal.message.key == made.publications("count", {"to": 5}, 8)[0].message.key
    assert goal.message.key != made.publications("count", {"to": 6}, 7)[0].message.key
    (request,) = made.publications("lamp", {"on": True}, 0)
    assert request.message.data is True
    none, off = made.publications("stop", {}, 0)
    assert (none.topic, none.message, off.topic, off.message.data) == ("/count", GoalOrder(), "/lamp", False)
    assert made.publications("wait", {}, 0) == []
    for name, why in (("count", "to: it is missing"), ("fly", "fly is not a tool of this robot")):
        with pytest.raises(Unmappable, match=why):
            made.publications(name, {}, 0)


def test_goals_that_differ_only_in_time_stamp_are_equal() -> None:
    goal = {"/to": {"type": "nav2_msgs/NavigateToPose", "set": {"pose.header.stamp": "now"}}}
    made = linked(put("tools", "go", value={"description": "", "goal": goal}))
    first, second = (made.publications("go", {}, stamp)[0].message for stamp in (10**9, 2 * 10**9))
    assert first.key == second.key and (first.goal.pose.header.stamp.sec, second.goal.pose.header.stamp.sec) == (1, 2)


GOAL = ("tools", "count", "goal", "/count")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put(*GOAL, "type", value="test_msgs/Fibonaci"), "unknown type 'test_msgs/Fibonaci'"),
        (put(*GOAL, "set", "order", value={"from": "to"}), "goal./count.set.order: add `min` and `max`"),
        (put(*GOAL, "set", "orders", value=1), "goal./count.set.orders: there is no 'orders' in Fibonacci_Goal"),
        (put("tools", "wait", "cancel", value=["/other"]), "tools.wait.cancel: no other tool has a goal for /other."),
        (put("tools", "count", "cancel", value=["/count"]), "tools.count.cancel: no other tool has a goal for /count."),
        (put("observe", "actions", "/count", "fields", "at", value="result.massage"), "fields.at: path: there is no"),
        (
            put("observe", "topics", "/lamp", value={"type": "std_msgs/Bool", "fields": {"b": "data"}}),
            "/lamp has two types, std_msgs/msg/Bool and std_srvs/srv/SetBool",
        ),
        (
            put("tools", "knock", "request", value={"/lamp": {"type": "std_srvs/Trigger"}}),
            "/lamp has two types, std_srvs/srv/",
        ),
    ],
)
def test_error_in_service_or_action_names_key_and_hint(change: Any, says: str) -> None:
    with pytest.raises(Ros2BridgeError) as raised:
        linked(change)
    assert says in raised.value.what and raised.value.remedy, raised.value.what


# The age of messages from a sender with another clock.

MS = 1_000_000
WALL = 1_790_000_000_000 * MS


@given(st.integers(-(10**9), 10**9).map(lambda ms: ms * MS), st.lists(st.integers(0, 200), min_size=2, max_size=50))
def test_delays_are_relative_to_the_smallest_delay(skew: int, delays_ms: list[int]) -> None:
    delays = DelayEstimator()
    least = 10**9
    for i, delay_ms in enumerate(delays_ms):
        now = i * 50 * MS
        captured = delays.captured_ns(WALL + now - delay_ms * MS + skew, WALL + now, now)
        least = min(least, delay_ms)
        assert now - captured == (delay_ms - least) * MS


def ages_ms(sources: Iterable[int]) -> list[int]:
    """Return the ages of messages that arrive every 50 ms."""
    delays = DelayEstimator()
    return [(i * 50 * MS - delays.captured_ns(s, WALL + i * 50 * MS, i * 50 * MS)) // MS for i, s in enumerate(sources)]


def test_sender_clock_set_back_slightly_recovers_within_a_minute() -> None:
    ages = ages_ms(WALL + i * 50 * MS - (150 * MS if i >= 20 else 0) for i in range(1300))
    assert ages[:20] == [0] * 20 and ages[20] == 150 and ages[-1] == 0


def test_setting_our_wall_clock_does_not_change_ages() -> None:
    delays = DelayEstimator()
    for i in range(100):
        now = i * 50 * MS
        wall = WALL + now + (3_600_000 * MS if i >= 50 else 0)
        source = wall - 2 * MS
        assert delays.captured_ns(source, wall, now) == now
    for i in range(100, 200):
        now = i * 50 * MS
        assert delays.captured_ns(WALL + now - 2 * MS, WALL + now, now) == now


def test_repeated_stamp_becomes_older_without_end() -> None:
    ages = ages_ms(WALL + min(i, 20) * 50 * MS for i in range(2000))
    assert ages[:21] == [0] * 21 and ages[-1] == (1999 - 20) * 50


@pytest.mark.parametrize("remote", [False, True])
def test_slewed_wall_clock_does_not_make_messages_late(remote: bool) -> None:
    delays = DelayEstimator()
    for i in range(1000):
        now = i * 50 * MS
        wall = WALL + now + now // 20  # our wall clock runs 5 % fast
        source = WALL + now if remote else wall  # by the sender's own clock, or by ours
        assert now - delays.captured_ns(source - 2 * MS, wall, now) == 0
