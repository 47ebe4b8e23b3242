"""Messages of diagnostic_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class KeyValue(IdlStruct, typename="diagnostic_msgs::msg::dds_::KeyValue_"):
    key: str = ""
    value: str = ""


@dataclass
@annotations.final
@annotations.autoid("sequential")
class DiagnosticStatus(IdlStruct, typename="diagnostic_msgs::msg::dds_::DiagnosticStatus_"):
    level: types.byte = 0
    name: str = ""
    message: str = ""
    hardware_id: str = ""
    values: types.sequence[KeyValue] = field(default_factory=list)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class DiagnosticArray(IdlStruct, typename="diagnostic_msgs::msg::dds_::DiagnosticArray_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    status: types.sequence[DiagnosticStatus] = field(default_factory=list)
