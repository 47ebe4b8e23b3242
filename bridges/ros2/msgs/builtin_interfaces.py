"""Messages of builtin_interfaces. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass

from cyclonedds.idl import IdlStruct, annotations, types


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: types.int32 = 0
    nanosec: types.uint32 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Duration(IdlStruct, typename="builtin_interfaces::msg::dds_::Duration_"):
    sec: types.int32 = 0
    nanosec: types.uint32 = 0
