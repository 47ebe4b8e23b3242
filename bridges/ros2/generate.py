"""Writes the message classes in `msgs/` from the definitions in the `rosbags` package (a development dependency).

    python -m rtcontrol.bridges.ros2.generate bridges/ros2/msgs

One module a ROS package, a class a message, and `__init__.py` with the table of names, classes and RIHS01 type hashes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TYPES = """
builtin_interfaces: Time Duration
std_msgs: Header Empty String Bool UInt8 Int32 Int64 Float32 Float64 MultiArrayDimension MultiArrayLayout
std_msgs: Float32MultiArray Float64MultiArray
geometry_msgs: Vector3 Vector3Stamped Point PointStamped Quaternion Pose PoseStamped PoseWithCovariance
geometry_msgs: PoseWithCovarianceStamped Twist TwistStamped TwistWithCovariance Accel Wrench WrenchStamped Transform
geometry_msgs: TransformStamped
sensor_msgs: LaserScan Imu JointState BatteryState Range Temperature RelativeHumidity FluidPressure Illuminance
sensor_msgs: MagneticField NavSatStatus NavSatFix Joy
nav_msgs: Odometry
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
BASE = {
    "bool": ("bool", "False"),
    "string": ("str", '""'),
    "byte": ("types.byte", "0"),
    "char": ("types.uint8", "0"),
    **{f"{sign}int{bits}": (f"types.{sign}int{bits}", "0") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (f"types.float{bits}", "0.0") for bits in (32, 64)},
}
HEAD = '"""{what}. Written by rtcontrol.bridges.ros2.generate: change that, not this."""\n'


def wanted() -> list[str]:
    """The full names of the messages that the package ships."""
    lines = [line.split(": ") for line in TYPES.split("\n") if line]
    return [f"{package}/msg/{name}" for package, names in lines for name in names.split()]


def store() -> Any:
    """rosbags' typestore of ROS 2 Jazzy with the extra definitions."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    found = get_typestore(Stores.ROS2_JAZZY)
    for name, text in EXTRA.items():
        found.register(get_types_from_msg("\n".join(line.strip() for line in text.split("\n")), name))
    return found


def sources(types: Any, names: Iterable[str]) -> dict[str, str]:
    """Module name -> source, `__init__` among them."""
    packages: dict[str, list[str]] = {}
    for name in names:
        packages.setdefault(name.split("/")[0], []).append(name)
    modules = {package: _module(types, package, members) for package, members in packages.items()}
    return {**modules, "__init__": _table(types, packages)}


def _module(types: Any, package: str, names: list[str]) -> str:
    bodies = [_class(types, name, package) for name in names]
    text = "\n\n\n".join(bodies)
    others = sorted({n.split("/")[0] for name in names for n in _uses(types, name)} - {package})
    outside = "from cyclonedds.idl import IdlStruct, annotations, types"
    if "types." not in text:
        outside = "from cyclonedds.idl import IdlStruct, annotations"
    own = f"\nfrom rtcontrol.bridges.ros2.msgs import {', '.join(others)}\n" if others else ""
    fields = "dataclass, field" if "field(" in text else "dataclass"
    head = HEAD.format(what=f"Messages of {package}")
    return f"{head}\nfrom dataclasses import {fields}\n\n{outside}\n{own}\n\n{text}\n"


def _class(types: Any, name: str, package: str) -> str:
    short = name.rsplit("/", 1)[1]
    lines = ["@dataclass", "@annotations.final", '@annotations.autoid("sequential")']
    lines.append(f'class {short}(IdlStruct, typename="{package}::msg::dds_::{short}_"):')
    for field, (kind, what) in types.get_msgdef(name).fields:
        annotation, default = _type(kind.name, what, package)
        lines.append(f"    {field}: {annotation} = {default}")
    return "\n".join(lines)


def _type(kind: str, what: Any, package: str) -> tuple[str, str]:
    """Annotation and default of a field."""
    if kind == "BASE":
        base, bound = what
        if bound:
            raise ValueError(f"bounded {base}<={bound} is not handled")
        return BASE[base]
    if kind == "NAME":
        other, _, short = what.split("/")
        name = short if other == package else f"{other}.{short}"
        return name, f"field(default_factory={name})"
    (inner_kind, inner), length = what
    annotation, default = _type(inner_kind.name, inner, package)
    if kind == "ARRAY":
        made = f"[{default}] * {length}" if inner_kind.name == "BASE" else f"[{annotation}() for _ in range({length})]"
        return f"types.array[{annotation}, {length}]", f"field(default_factory=lambda: {made})"
    if length:
        raise ValueError(f"a bounded sequence of {annotation} is not handled")
    return f"types.sequence[{annotation}]", "field(default_factory=list)"


def _uses(types: Any, name: str) -> set[str]:
    used = set()
    for _, (kind, what) in types.get_msgdef(name).fields:
        inner_kind, inner = what[0] if kind.name in ("ARRAY", "SEQUENCE") else (kind, what)
        if inner_kind.name == "NAME":
            used.add(inner)
    return used


def _table(types: Any, packages: dict[str, list[str]]) -> str:
    lines = [HEAD.format(what="ROS 2 messages as cyclonedds types"), "from typing import Any\n"]
    lines += ["from rtcontrol.bridges.ros2.msgs import (", *(f"    {p}," for p in sorted(packages)), ")\n"]
    lines.append("# Full name -> class and RIHS01 type hash (the same in Humble, Jazzy and later).")
    lines.append("MESSAGES: dict[str, tuple[type[Any], str]] = {")
    for package, names in packages.items():
        for name in names:
            lines.append(f'    "{name}": (\n        {package}.{name.rsplit("/", 1)[1]},')
            lines.append(f'        "{types.hash_rihs01(name)}",\n    ),')
    return "\n".join([*lines, "}", ""])


def main() -> int:
    """Write the modules into the folder given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for module, source in sources(store(), wanted()).items():
        (folder / f"{module}.py").write_text(source, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
