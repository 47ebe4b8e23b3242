"""Writes `bridges/ros2/definitions.msg` from the `rosbags` package (a development dependency).

python -m tests.bridges.ros2.definitions > bridges/ros2/definitions.msg
"""

from __future__ import annotations

from typing import Any

TYPES = """
builtin_interfaces: Time Duration
rosgraph_msgs: Clock
std_msgs: Header Empty String Bool Int8 UInt8 Int16 UInt16 Int32 UInt32 Int64 UInt64 Float32 Float64 ColorRGBA
std_msgs: MultiArrayDimension MultiArrayLayout Int32MultiArray Float32MultiArray Float64MultiArray
geometry_msgs: Vector3 Vector3Stamped Point PointStamped Quaternion Pose PoseStamped PoseWithCovariance
geometry_msgs: PoseWithCovarianceStamped PoseArray Pose2D Twist TwistStamped TwistWithCovariance
geometry_msgs: TwistWithCovarianceStamped Accel AccelStamped AccelWithCovariance AccelWithCovarianceStamped Wrench
geometry_msgs: WrenchStamped Transform TransformStamped QuaternionStamped
sensor_msgs: LaserScan Imu JointState BatteryState Range Temperature RelativeHumidity FluidPressure Illuminance
sensor_msgs: MagneticField NavSatStatus NavSatFix TimeReference Joy
nav_msgs: Odometry Path
ackermann_msgs: AckermannDrive AckermannDriveStamped
trajectory_msgs: JointTrajectoryPoint JointTrajectory
diagnostic_msgs: KeyValue DiagnosticStatus DiagnosticArray
"""
# Not in rosbags' stores; field for field as in the ROS package ackermann_msgs 2.
EXTRA = {
    "ackermann_msgs/msg/AckermannDrive": """
        float32 steering_angle
        float32 steering_angle_velocity
        float32 speed
        float32 acceleration
        float32 jerk""",
    "ackermann_msgs/msg/AckermannDriveStamped": """
        std_msgs/Header header
        ackermann_msgs/AckermannDrive drive""",
}
HEAD = """\
# Message definitions of ROS 2 (Jazzy; the same in Humble and later): full name and RIHS01 type hash, then a line a
# field as in a .msg file. Written by tests/bridges/ros2/definitions.py from the `rosbags` package: change that.
"""


def wanted() -> list[str]:
    """The full names of the messages that the package ships, each after those that it holds."""
    lines = [line.split(": ") for line in TYPES.split("\n") if line]
    return [f"{package}/msg/{name}" for package, names in lines for name in names.split()]


def store() -> Any:
    """rosbags' typestore of ROS 2 Jazzy with the extra definitions."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    found = get_typestore(Stores.ROS2_JAZZY)
    for name, text in EXTRA.items():
        found.register(get_types_from_msg("\n".join(line.strip() for line in text.split("\n")), name))
    return found


def text(types: Any) -> str:
    """The whole file."""
    lines = []
    for name in wanted():
        lines.append(f"{name} {types.hash_rihs01(name)}")
        lines += [f"  {_type(kind.name, what)} {field}" for field, (kind, what) in types.get_msgdef(name).fields]
    return HEAD + "\n".join(lines) + "\n"


def _type(kind: str, what: Any) -> str:
    if kind == "BASE":
        base, bound = what
        if bound:
            raise ValueError(f"bounded {base}<={bound} is not handled")
        return str(base)
    if kind == "NAME":
        return str(what)
    (inner_kind, inner), length = what
    if kind != "ARRAY" and length:
        raise ValueError(f"a bounded sequence of {inner} is not handled")
    return _type(inner_kind.name, inner) + (f"[{length}]" if kind == "ARRAY" else "[]")


if __name__ == "__main__":
    print(text(store()), end="")
