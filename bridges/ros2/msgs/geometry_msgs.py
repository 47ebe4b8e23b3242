"""Messages of geometry_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Vector3(IdlStruct, typename="geometry_msgs::msg::dds_::Vector3_"):
    x: types.float64 = 0.0
    y: types.float64 = 0.0
    z: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Vector3Stamped(IdlStruct, typename="geometry_msgs::msg::dds_::Vector3Stamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    vector: Vector3 = field(default_factory=Vector3)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Point(IdlStruct, typename="geometry_msgs::msg::dds_::Point_"):
    x: types.float64 = 0.0
    y: types.float64 = 0.0
    z: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class PointStamped(IdlStruct, typename="geometry_msgs::msg::dds_::PointStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    point: Point = field(default_factory=Point)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Quaternion(IdlStruct, typename="geometry_msgs::msg::dds_::Quaternion_"):
    x: types.float64 = 0.0
    y: types.float64 = 0.0
    z: types.float64 = 0.0
    w: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Pose(IdlStruct, typename="geometry_msgs::msg::dds_::Pose_"):
    position: Point = field(default_factory=Point)
    orientation: Quaternion = field(default_factory=Quaternion)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class PoseStamped(IdlStruct, typename="geometry_msgs::msg::dds_::PoseStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    pose: Pose = field(default_factory=Pose)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class PoseWithCovariance(IdlStruct, typename="geometry_msgs::msg::dds_::PoseWithCovariance_"):
    pose: Pose = field(default_factory=Pose)
    covariance: types.array[types.float64, 36] = field(default_factory=lambda: [0.0] * 36)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class PoseWithCovarianceStamped(IdlStruct, typename="geometry_msgs::msg::dds_::PoseWithCovarianceStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    pose: PoseWithCovariance = field(default_factory=PoseWithCovariance)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Twist(IdlStruct, typename="geometry_msgs::msg::dds_::Twist_"):
    linear: Vector3 = field(default_factory=Vector3)
    angular: Vector3 = field(default_factory=Vector3)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class TwistStamped(IdlStruct, typename="geometry_msgs::msg::dds_::TwistStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    twist: Twist = field(default_factory=Twist)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class TwistWithCovariance(IdlStruct, typename="geometry_msgs::msg::dds_::TwistWithCovariance_"):
    twist: Twist = field(default_factory=Twist)
    covariance: types.array[types.float64, 36] = field(default_factory=lambda: [0.0] * 36)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Accel(IdlStruct, typename="geometry_msgs::msg::dds_::Accel_"):
    linear: Vector3 = field(default_factory=Vector3)
    angular: Vector3 = field(default_factory=Vector3)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Wrench(IdlStruct, typename="geometry_msgs::msg::dds_::Wrench_"):
    force: Vector3 = field(default_factory=Vector3)
    torque: Vector3 = field(default_factory=Vector3)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class WrenchStamped(IdlStruct, typename="geometry_msgs::msg::dds_::WrenchStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    wrench: Wrench = field(default_factory=Wrench)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Transform(IdlStruct, typename="geometry_msgs::msg::dds_::Transform_"):
    translation: Vector3 = field(default_factory=Vector3)
    rotation: Quaternion = field(default_factory=Quaternion)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class TransformStamped(IdlStruct, typename="geometry_msgs::msg::dds_::TransformStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    child_frame_id: str = ""
    transform: Transform = field(default_factory=Transform)
