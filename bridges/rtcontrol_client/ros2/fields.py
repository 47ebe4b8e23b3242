"""Fields of ROS 2 messages: their types and paths, how to read them, and how to set them from arguments.

Types come from the installed message packages. A path such as `pose.pose.position.x`, `points[0].positions[1]` or
`position[elbow]` is checked against these types when the file is read.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.config import UNITS, FieldSpec, Scalar, SetSpec, ToolSpec

FLOAT32, FLOAT64 = 3.4028234663852886e38, sys.float_info.max
MAX_INDEX = 1023
Kind = Literal["bool", "integer", "real", "text", "time", "quaternion", "vector", "message", "list"]
_LIST_TYPE = re.compile(r"sequence<(.+?)(?:, (\d+))?>|(.+)\[(\d+)\]")
_PATH = re.compile(r"([A-Za-z_]\w*(\[[\w/.:-]+\])*(\.|$))*(?<!\.)")
_PATH_STEP = re.compile(r"\[([^\]]+)\]|([A-Za-z_]\w*)")
_STAMP_KINDS: dict[str, Kind] = dict.fromkeys(("Time", "Duration"), "time")
_MESSAGE_KINDS: dict[str, Kind] = {**_STAMP_KINDS, "Quaternion": "quaternion", "Vector3": "vector", "Point": "vector"}
_BASIC: dict[str, Kind] = {"boolean": "bool", "string": "text", "wstring": "text", "float": "real", "double": "real"}
_EMPTY_VALUES: dict[Kind, Any] = {"bool": False, "text": "", "integer": 0, "real": 0.0}


def find_type(name: str, form: str) -> tuple[str, Any]:
    """Return the full name and the class of a ROS type such as `geometry_msgs/msg/Twist` or `geometry_msgs/Twist`.

    `form` is `msg`, `srv` or `action`. Raises ValueError with a hint for a type that is not installed.
    """
    full = name if name.count("/") != 1 else name.replace("/", f"/{form}/")
    if not re.fullmatch(rf"[A-Za-z]\w*/{form}/[A-Za-z]\w*", full):
        raise ValueError(f"{name!r} is not the name of a type, such as package/{form}/Name")
    package, _, short = full.split("/")
    try:
        return full, getattr(import_module(f"{package}.{form}"), short)
    except (ImportError, AttributeError) as error:
        hint = f"source the ROS set-up or the workspace that has {package}, or install the package's wheel"
        raise ValueError(f"unknown type {name!r} in this Python ({error}); {hint}") from None


@dataclass(frozen=True)
class FieldType:
    """The type of a message field: `name` as in ROS (`double`, `geometry_msgs/Vector3`), or a message class `cls`.

    If `many`, the field is a list of this type. `length` is the exact number of elements, `most` the maximum number.
    """

    name: str = ""
    cls: Any = None
    many: bool = False
    length: int | None = None
    most: int | None = None

    @classmethod
    def parse(cls, described: Any) -> FieldType:
        """Parse a type name such as `double[36]` or `sequence<geometry_msgs/Point>`, or wrap a message class."""
        if not isinstance(described, str):
            return cls(cls=described)
        match = _LIST_TYPE.fullmatch(described)
        if match is None:
            return cls(described.partition("<")[0])
        length, maximum = (int(number) if number else None for number in (match[4], match[2]))
        return cls((match[1] or match[3]).partition("<")[0], many=True, length=length, most=maximum)

    @property
    def short(self) -> str:
        return self.cls.__name__ if self.cls is not None else self.name.rsplit("/", 1)[-1]

    @property
    def kind(self) -> Kind:
        """Return the kind of the field's value."""
        if self.many:
            return "list"
        if self.cls is not None or "/" in self.name:
            return _MESSAGE_KINDS.get(self.short, "message")
        return _BASIC.get(self.name, "integer")

    @property
    def element(self) -> FieldType:
        """Return the type of the list's elements."""
        return replace(self, many=False, length=None, most=None)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest number of a numeric type."""
        if self.kind == "real":
            largest = FLOAT32 if self.name == "float" else FLOAT64
            return -largest, largest
        bits = int(re.sub(r"\D", "", self.name) or 8)  # an octet has 8 bits
        low = -(1 << (bits - 1)) if self.name.startswith("int") else 0
        return low, low + (1 << bits) - 1

    def create_value(self) -> Any:
        """Create an empty value of this type."""
        if self.name == "octet":
            return bytes(1)
        return _EMPTY_VALUES[self.kind] if self.kind in _EMPTY_VALUES else self.message_class()()

    def message_class(self) -> Any:
        """Return the Python class of a message type."""
        return self.cls if self.cls is not None else find_type(self.name, "msg")[1]

    def fields(self) -> dict[str, FieldType]:
        """Return the types of the message's fields by field name, or an empty dict for a type without fields."""
        if self.many or self.kind in _EMPTY_VALUES:
            return {}
        described: dict[str, Any] = getattr(self.message_class(), "get_fields_and_field_types", dict)()
        return {name: FieldType.parse(kind) for name, kind in described.items()}


@dataclass(frozen=True)
class Path:
    """A compiled path. `steps` are attributes and indices, each with the type of its value. If `named` is set, the path
    ends at a list element whose index is the index of `named` in the message's list `names`."""

    text: str
    type: FieldType
    steps: tuple[tuple[str | int, FieldType], ...]
    named: str | None = None
    names: str = ""

    def get(self, message: Any) -> Any:
        """Return the value at this path of a message. Raises Unmappable if the message has no such element."""
        value = message
        try:
            for step, _ in self.steps:
                value = getattr(value, step) if isinstance(step, str) else value[step]
            if self.named is not None:
                known = list(getattr(message, self.names))
                if self.named not in known:
                    raise Unmappable(f"no {self.named!r} among {', '.join(known) or 'no names'}")
                value = value[known.index(self.named)]
        except IndexError:
            raise Unmappable(f"the list has only {len(value)} elements") from None
        return value[0] if isinstance(value, bytes) else value

    def set(self, message: Any, value: Any) -> None:
        """Set the value at this path of a message; extend lists if necessary."""
        *inner, (last, last_type) = self.steps
        for step, kind in inner:
            message = getattr(message, step) if isinstance(step, str) else _extend_list(message, step, kind)[step]
        if isinstance(last, str):
            setattr(message, last, value)
        else:
            _extend_list(message, last, last_type)[last] = value


def compile_path(cls: Any, text: str) -> Path:
    """Compile a path for messages of a class; an empty path is the message itself. Raises ValueError if invalid."""
    if not _PATH.fullmatch(text):
        raise ValueError(f"{text!r} is not a field path; write for instance linear.x or points[0].positions[1]")
    current = FieldType(cls=cls)
    steps: list[tuple[str | int, FieldType]] = []
    parts = _PATH_STEP.findall(text)
    for i, (element, attribute) in enumerate(parts):
        if attribute:
            known = current.fields()
            if attribute not in known:
                raise ValueError(
                    f"there is no {attribute!r} in {current.short}, which has {', '.join(known) or 'no fields'}"
                )
            current = known[attribute]
            steps.append((attribute, current))
            continue
        if not current.many:
            raise ValueError(f"{steps[-1][0]} is not a list")
        if not element.isdecimal():
            names = next((name for name in ("name", "joint_names") if name in FieldType(cls=cls).fields()), None)
            if names is None or (i, len(parts)) != (1, 2):
                raise ValueError(f"[{element}] can only follow a field of a message with a list of names")
            return Path(text, current.element, tuple(steps), element, names)
        index = int(element)
        if index >= (current.length or current.most or MAX_INDEX + 1):
            raise ValueError(f"[{index}] is beyond the list's end")
        current = current.element
        steps.append((index, current))
    return Path(text, current, tuple(steps))


def _extend_list(elements: Any, index: int, element_type: FieldType) -> Any:
    while len(elements) <= index:
        elements.append(element_type.create_value())
    return elements


# The functions below read fields.

Reader = Callable[[Any], Scalar]
SECTOR_MARGIN = math.radians(3)  # if a sector has no echo, this much on both sides of it is searched as well


def make_reader(cls: Any, spec: FieldSpec) -> Reader:
    """Return a function that reads a field from a message; the function raises Unmappable without a value.

    Raises ValueError if `spec` does not fit the message class; its text starts with the key.
    """
    try:
        path = compile_path(cls, spec.path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None
    raw = _create_raw_reader(path, spec)
    choices = spec.values
    if choices is not None:
        return lambda message: _mapped_choice(choices, raw(message))
    if path.type.kind in ("text", "bool") and spec.kind == "value":
        if numeric := spec.model_fields_set & {"unit", "scale", "offset", "min", "max", "digits"}:
            raise ValueError(f"{min(numeric)}: {path.text} is not a number")
        return raw
    return lambda message: _scaled_number(raw(message), spec)


def _create_raw_reader(path: Path, spec: FieldSpec) -> Callable[[Any], Any]:
    kind = path.type.kind
    if spec.kind == "sector":
        return _sector_reader(path, spec)
    if spec.from_deg is not None or spec.to_deg is not None:
        raise ValueError("from_deg: only a field with `as: sector` has directions")
    if spec.kind != "value":
        of, convert = CONVERSIONS[spec.kind]
        if kind != of:
            raise ValueError(f"as: {spec.kind} needs a {of}, but {path.text or 'the message'} is a {kind}")
        return lambda message: convert(path.get(message))
    if kind == "time":
        return lambda message: _to_seconds(path.get(message))
    if kind in ("quaternion", "vector", "message", "list"):
        hint = "name a field or an [index] in it, or say `as`"
        raise ValueError(f"path: {path.text or 'the message'} is a {kind}, not a single value: {hint}")
    return path.get


def _mapped_choice(choices: dict[Scalar, Scalar], value: Any) -> Scalar:
    if value not in choices:
        raise Unmappable(f"`values` has no entry for {value!r}")
    return choices[value]


def _scaled_number(value: Any, spec: FieldSpec) -> Scalar:
    number = float(value) * (UNITS[spec.unit] if spec.unit else 1.0) * spec.scale + spec.offset
    if math.isnan(number):
        raise Unmappable("it is not a number (NaN)")
    if spec.min is not None:
        number = max(number, spec.min)
    if spec.max is not None:
        number = min(number, spec.max)
    if math.isinf(number):
        raise Unmappable("it is infinite, and the field has no min or max")
    # Adding 0.0 turns -0.0 into 0.0. With `digits: 0`, the result is an integer.
    return round(number) if spec.digits == 0 else round(number, spec.digits) + 0.0


def _to_seconds(time: Any) -> float:
    return float(time.sec + time.nanosec / 1e9)


def _vector_norm(vector: Any) -> float:
    return math.hypot(vector.x, vector.y, vector.z)


def _normalized(q: Any) -> tuple[float, float, float, float]:
    length = math.hypot(q.x, q.y, q.z, q.w)
    # Some drivers send a quaternion of zeros until they know the orientation.
    if not 0.5 < length < 2.0:
        raise Unmappable(f"the quaternion has the length {length:g}, not 1")
    return q.x / length, q.y / length, q.z / length, q.w / length


def yaw(q: Any) -> float:
    """Return the rotation about the vertical axis, counterclockwise, in radians (-pi to pi)."""
    x, y, z, w = _normalized(q)
    return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def pitch(q: Any) -> float:
    """Return the rotation about the lateral axis, nose down positive (REP 103), in radians (-pi/2 to pi/2)."""
    x, y, z, w = _normalized(q)
    return math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))


def roll(q: Any) -> float:
    """Return the rotation about the forward axis, in radians (-pi to pi)."""
    x, y, z, w = _normalized(q)
    return math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))


# By value of the key `as`: (kind of the field, conversion function).
CONVERSIONS: dict[str, tuple[Kind, Callable[[Any], float]]] = {
    "yaw": ("quaternion", yaw),
    "pitch": ("quaternion", pitch),
    "roll": ("quaternion", roll),
    "norm": ("vector", _vector_norm),
}


def _sector_reader(path: Path, spec: FieldSpec) -> Callable[[Any], float]:
    if path.type.short != "LaserScan":
        raise ValueError("as: sector needs a LaserScan; leave path empty")
    if spec.from_deg is None or spec.to_deg is None:
        raise ValueError("from_deg: a sector needs from_deg and to_deg, counterclockwise, 0 is ahead")
    start, width = math.radians(spec.from_deg), math.radians((spec.to_deg - spec.from_deg) % 360 or 360)

    def nearest(message: Any) -> float:
        scan = path.get(message)
        shape = (scan.angle_min, scan.angle_increment, len(scan.ranges))
        beams = _sector_beams(shape, start, width)
        range_m = _nearest_range(scan, beams)
        if range_m is None and all(math.isfinite(scan.ranges[i]) for i in beams):
            # If no beam of the sector has an echo, as in an open corridor, also use the beams next to the sector.
            range_m = _nearest_range(scan, _sector_beams(shape, start - SECTOR_MARGIN, width + 2 * SECTOR_MARGIN))
        if not beams or range_m is None:
            raise Unmappable("no beam in this direction measured a range")
        return min(range_m, scan.range_max) if scan.range_max > 0 else range_m

    return nearest


@lru_cache(256)
def _sector_beams(shape: tuple[float, float, int], start: float, width: float) -> list[int]:
    first, step, count = shape
    if not math.isfinite(first) or (count > 1 and (step == 0 or not math.isfinite(step))):
        raise Unmappable(f"the scan has no valid directions (angle_min {first:g}, angle_increment {step:g})")
    slack = 1e-4  # rounding error of the message's float32 angles, accumulated over a thousand beams
    return [i for i in range(count) if (first + i * step - start + slack) % math.tau <= width + 2 * slack]


def _nearest_range(scan: Any, beams: list[int]) -> float | None:
    """Return the smallest range of the beams in metres, or None if no beam has a valid range.

    By REP 117, +inf means free and -inf means too near to measure (`range_min` is used). NaN, 0 and other values below
    `range_min` are ignored, since drivers use them for errors. An invalid `range_min` counts as 0.
    """
    low = float(scan.range_min) if 0 < scan.range_min < math.inf else 0.0
    ranges = [float(scan.ranges[i]) for i in beams]
    valid = [low if value == -math.inf else value for value in ranges if value == -math.inf or value >= max(low, 1e-9)]
    return min(valid, default=None)


# The functions below set fields.

Setter = Callable[[Any, Mapping[str, Any], int], None]


def make_setter(cls: Any, text: str, spec: SetSpec, tool: ToolSpec) -> Setter:
    """Return a function (message, arguments of a call, time in nanoseconds) that sets the field at the path `text`.

    The function raises Unmappable if the arguments do not fit. Raises ValueError if `spec` can never work.
    """
    path, name = compile_path(cls, text), spec.source
    if path.named is not None:
        raise ValueError("a named element cannot be set; use its index")
    if name is None:
        return _constant_setter(cls, path, spec.value)
    if name not in tool.parameters:
        known = ", ".join(tool.parameters) or "none"
        raise ValueError(f"there is no parameter {name!r}; the tool has {known}")
    if path.type.kind in ("message", "quaternion", "vector", "list"):
        raise ValueError(f"{path.text} is a {path.type.kind}, not a single value: name a field in it")
    listed = tool.parameters[name].get("enum")
    _check_limits(path, spec, listed)

    def set_argument(message: Any, arguments: Mapping[str, Any], _: int) -> None:
        try:
            path.set(message, _convert_value(path.text, path.type, _map_value(arguments.get(name), spec, path, listed)))
        except Unmappable as error:
            raise Unmappable(f"{name}: {error}") from None

    return set_argument


def _constant_setter(cls: Any, path: Path, value: Any) -> Setter:
    if value == "now":
        if path.type.kind != "time":
            raise ValueError("`now` is for a time stamp")
        return lambda message, _, stamp_ns: path.set(message, _time_message(path.type, stamp_ns))

    def set_constant(message: Any, *_: Any) -> None:
        path.set(message, _convert_value(path.text, path.type, value))

    set_constant(cls())
    return set_constant


def _check_limits(path: Path, spec: SetSpec, listed: Sequence[Any] | None) -> None:
    """Raise ValueError if `spec` may produce values that do not fit the field; its text starts with the key."""
    limits: list[tuple[str, Any]] = []
    if spec.values is not None:
        for value in listed or []:
            if value not in spec.values:
                raise ValueError(f"`values` has no entry for {value!r}")
        limits = [("values", value) for value in spec.values.values()]
    elif path.type.kind in ("real", "integer", "time"):
        if spec.min is None or spec.max is None:
            raise ValueError("add `min` and `max`, to which the model's values are clamped before they are published")
        if spec.min > spec.max:
            raise ValueError("min is above max")
        limits = [("min", spec.min), ("max", spec.max)]
    for key, value in limits:
        try:
            _convert_value(path.text, path.type, value)
        except Unmappable as error:
            raise ValueError(f"{key}: {error}") from None


def _map_value(value: Any, spec: SetSpec, path: Path, listed: Sequence[Any] | None) -> Any:
    if value is None:
        raise Unmappable("it is missing")
    if spec.values is not None:
        for key, mapped in spec.values.items():
            if _is_same(key, value):
                return mapped
        raise Unmappable(f"`values` has no entry for {value!r}")
    # Refuse values outside the tool's enum, because the server is not trusted.
    if listed is not None and not any(_is_same(allowed, value) for allowed in listed):
        raise Unmappable(f"{value!r} is none of {', '.join(map(str, listed))}")
    if path.type.kind in ("text", "bool"):
        return value
    if not _is_finite(value):
        raise Unmappable(f"{value!r} is not a finite number")
    assert spec.min is not None and spec.max is not None
    return min(max(value * spec.scale + spec.offset, spec.min), spec.max)


def _is_same(first: Any, second: Any) -> bool:
    # In Python True equals 1, but a JSON schema distinguishes them.
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def _convert_value(text: str, field_type: FieldType, value: Any) -> Any:
    """Convert a value to a field's type, since ROS does not check values. Raises Unmappable if it does not fit."""
    kind = field_type.kind
    if kind in ("real", "integer") and _is_finite(value):
        low, high = field_type.bounds
        fitting = float(value) if kind == "real" else round(value)
        if not low <= fitting <= high:
            raise Unmappable(f"{value!r} is not between {low:g} and {high:g}")
        return bytes([int(fitting)]) if field_type.name == "octet" else fitting
    if kind == "time" and _is_finite(value) and -(2**31) <= value < 2**31:
        return _time_message(field_type, round(value * 1e9))
    if kind == "text" and isinstance(value, str):
        # ROS ends a string at its first NUL.
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise Unmappable(f"{value!r} is not a text that ROS can carry")
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "list" and isinstance(value, list) and _accepts_length(field_type, len(value)):
        return [_convert_value(text, field_type.element, each) for each in value]
    raise Unmappable(f"{value!r} does not fit {text}, which is a {kind}")


def _accepts_length(field_type: FieldType, count: int) -> bool:
    return count == field_type.length if field_type.length is not None else count <= (field_type.most or count)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that is too large for a double
        return False


def _time_message(field_type: FieldType, total_ns: int) -> Any:
    stamp = field_type.create_value()
    stamp.sec, stamp.nanosec = divmod(total_ns, 1_000_000_000)
    return stamp
