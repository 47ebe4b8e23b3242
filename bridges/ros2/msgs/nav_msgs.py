"""Messages of nav_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations

from rtcontrol.bridges.ros2.msgs import geometry_msgs, std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Odometry(IdlStruct, typename="nav_msgs::msg::dds_::Odometry_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    child_frame_id: str = ""
    pose: geometry_msgs.PoseWithCovariance = field(default_factory=geometry_msgs.PoseWithCovariance)
    twist: geometry_msgs.TwistWithCovariance = field(default_factory=geometry_msgs.TwistWithCovariance)
