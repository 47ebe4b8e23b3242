"""Messages of sensor_msgs. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from dataclasses import dataclass, field

from cyclonedds.idl import IdlStruct, annotations, types

from rtcontrol.bridges.ros2.msgs import geometry_msgs, std_msgs


@dataclass
@annotations.final
@annotations.autoid("sequential")
class LaserScan(IdlStruct, typename="sensor_msgs::msg::dds_::LaserScan_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    angle_min: types.float32 = 0.0
    angle_max: types.float32 = 0.0
    angle_increment: types.float32 = 0.0
    time_increment: types.float32 = 0.0
    scan_time: types.float32 = 0.0
    range_min: types.float32 = 0.0
    range_max: types.float32 = 0.0
    ranges: types.sequence[types.float32] = field(default_factory=list)
    intensities: types.sequence[types.float32] = field(default_factory=list)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Imu(IdlStruct, typename="sensor_msgs::msg::dds_::Imu_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    orientation: geometry_msgs.Quaternion = field(default_factory=geometry_msgs.Quaternion)
    orientation_covariance: types.array[types.float64, 9] = field(default_factory=lambda: [0.0] * 9)
    angular_velocity: geometry_msgs.Vector3 = field(default_factory=geometry_msgs.Vector3)
    angular_velocity_covariance: types.array[types.float64, 9] = field(default_factory=lambda: [0.0] * 9)
    linear_acceleration: geometry_msgs.Vector3 = field(default_factory=geometry_msgs.Vector3)
    linear_acceleration_covariance: types.array[types.float64, 9] = field(default_factory=lambda: [0.0] * 9)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class JointState(IdlStruct, typename="sensor_msgs::msg::dds_::JointState_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    name: types.sequence[str] = field(default_factory=list)
    position: types.sequence[types.float64] = field(default_factory=list)
    velocity: types.sequence[types.float64] = field(default_factory=list)
    effort: types.sequence[types.float64] = field(default_factory=list)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class BatteryState(IdlStruct, typename="sensor_msgs::msg::dds_::BatteryState_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    voltage: types.float32 = 0.0
    temperature: types.float32 = 0.0
    current: types.float32 = 0.0
    charge: types.float32 = 0.0
    capacity: types.float32 = 0.0
    design_capacity: types.float32 = 0.0
    percentage: types.float32 = 0.0
    power_supply_status: types.uint8 = 0
    power_supply_health: types.uint8 = 0
    power_supply_technology: types.uint8 = 0
    present: bool = False
    cell_voltage: types.sequence[types.float32] = field(default_factory=list)
    cell_temperature: types.sequence[types.float32] = field(default_factory=list)
    location: str = ""
    serial_number: str = ""


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Range(IdlStruct, typename="sensor_msgs::msg::dds_::Range_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    radiation_type: types.uint8 = 0
    field_of_view: types.float32 = 0.0
    min_range: types.float32 = 0.0
    max_range: types.float32 = 0.0
    range: types.float32 = 0.0
    variance: types.float32 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Temperature(IdlStruct, typename="sensor_msgs::msg::dds_::Temperature_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    temperature: types.float64 = 0.0
    variance: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class RelativeHumidity(IdlStruct, typename="sensor_msgs::msg::dds_::RelativeHumidity_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    relative_humidity: types.float64 = 0.0
    variance: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class FluidPressure(IdlStruct, typename="sensor_msgs::msg::dds_::FluidPressure_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    fluid_pressure: types.float64 = 0.0
    variance: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Illuminance(IdlStruct, typename="sensor_msgs::msg::dds_::Illuminance_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    illuminance: types.float64 = 0.0
    variance: types.float64 = 0.0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class MagneticField(IdlStruct, typename="sensor_msgs::msg::dds_::MagneticField_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    magnetic_field: geometry_msgs.Vector3 = field(default_factory=geometry_msgs.Vector3)
    magnetic_field_covariance: types.array[types.float64, 9] = field(default_factory=lambda: [0.0] * 9)


@dataclass
@annotations.final
@annotations.autoid("sequential")
class NavSatStatus(IdlStruct, typename="sensor_msgs::msg::dds_::NavSatStatus_"):
    status: types.int8 = 0
    service: types.uint16 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class NavSatFix(IdlStruct, typename="sensor_msgs::msg::dds_::NavSatFix_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    status: NavSatStatus = field(default_factory=NavSatStatus)
    latitude: types.float64 = 0.0
    longitude: types.float64 = 0.0
    altitude: types.float64 = 0.0
    position_covariance: types.array[types.float64, 9] = field(default_factory=lambda: [0.0] * 9)
    position_covariance_type: types.uint8 = 0


@dataclass
@annotations.final
@annotations.autoid("sequential")
class Joy(IdlStruct, typename="sensor_msgs::msg::dds_::Joy_"):
    header: std_msgs.Header = field(default_factory=std_msgs.Header)
    axes: types.sequence[types.float32] = field(default_factory=list)
    buttons: types.sequence[types.int32] = field(default_factory=list)
