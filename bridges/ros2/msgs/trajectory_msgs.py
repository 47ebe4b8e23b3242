"""Messages of trajectory_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import builtin_interfaces, std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class JointTrajectoryPoint(IdlStruct, typename="trajectory_msgs::msg::dds_::JointTrajectoryPoint_"):
    positions: types.sequence[types.float64] = field(default_factory=list)
    velocities: types.sequence[types.float64] = field(default_factory=list)
    accelerations: types.sequence[types.float64] = field(default_factory=list)
    effort: types.sequence[types.float64] = field(default_factory=list)
    time_from_start: builtin_interfaces.Duration = field(default_factory=builtin_interfaces.Duration)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class JointTrajectory(IdlStruct, typename="trajectory_msgs::msg::dds_::JointTrajectory_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    joint_names: types.sequence[str] = field(default_factory=list)
    points: types.sequence[JointTrajectoryPoint] = field(default_factory=list)
