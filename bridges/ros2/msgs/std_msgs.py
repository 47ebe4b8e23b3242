"""Messages of std_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import builtin_interfaces


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: builtin_interfaces.Time = field(default_factory=builtin_interfaces.Time)
    frame_id: str = ""


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Empty(IdlStruct, typename="std_msgs::msg::dds_::Empty_"):
    structure_needs_at_least_one_member: types.uint8 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class String(IdlStruct, typename="std_msgs::msg::dds_::String_"):
    data: str = ""


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Bool(IdlStruct, typename="std_msgs::msg::dds_::Bool_"):
    data: bool = False


@dataclass
@annotations.final
@annotations.autoid("sequential")
class UInt8(IdlStruct, typename="std_msgs::msg::dds_::UInt8_"):
    data: types.uint8 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Int32(IdlStruct, typename="std_msgs::msg::dds_::Int32_"):
    data: types.int32 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Int64(IdlStruct, typename="std_msgs::msg::dds_::Int64_"):
    data: types.int64 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Float32(IdlStruct, typename="std_msgs::msg::dds_::Float32_"):
    data: types.float32 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Float64(IdlStruct, typename="std_msgs::msg::dds_::Float64_"):
    data: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class MultiArrayDimension(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayDimension_"):
    label: str = ""
    size: types.uint32 = 0
    stride: types.uint32 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class MultiArrayLayout(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayLayout_"):
    dim: types.sequence[MultiArrayDimension] = field(default_factory=list)
    data_offset: types.uint32 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Float32MultiArray(IdlStruct, typename="std_msgs::msg::dds_::Float32MultiArray_"):
    layout: MultiArrayLayout = field(default_factory=MultiArrayLayout)
    data: types.sequence[types.float32] = field(default_factory=list)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Float64MultiArray(IdlStruct, typename="std_msgs::msg::dds_::Float64MultiArray_"):
    layout: MultiArrayLayout = field(default_factory=MultiArrayLayout)
    data: types.sequence[types.float64] = field(default_factory=list)
