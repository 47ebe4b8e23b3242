"""Messages of ackermann_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class AckermannDrive(IdlStruct, typename="ackermann_msgs::msg::dds_::AckermannDrive_"):
    steering_angle: types.float32 = 0.0
    steering_angle_velocity: types.float32 = 0.0
    speed: types.float32 = 0.0
    acceleration: types.float32 = 0.0
    jerk: types.float32 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class AckermannDriveStamped(IdlStruct, typename="ackermann_msgs::msg::dds_::AckermannDriveStamped_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    drive: AckermannDrive = field(default_factory=AckermannDrive)
