"""From a message's field to what the model reads, and from a call's arguments to the fields of a message. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.config import UNITS, FieldSpec, Scalar, SetSpec, ToolSpec
from rtcontrol_client.ros2.types import FieldType, Path, bounds_of, compile_path, kind_of

Reader = Callable[[Any], Scalar]
BESIDE = math.radians(3)  # how far beside a sector without an echo is looked


def reader(cls: Any, spec: FieldSpec) -> Reader:
    """A function from a message of the class to the field's value. It raises Unmappable where there is none now.

    Raises ValueError, starting with the key, for what does not fit the class.
    """
    try:
        path = compile_path(cls, spec.path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None
    raw = _raw(path, spec)
    if spec.values is not None:
        choices = spec.values
        return lambda message: _choice(choices, raw(message))
    if path.kind in ("text", "bool") and spec.kind == "value":
        if given := spec.model_fields_set & {"unit", "scale", "offset", "min", "max", "digits"}:
            raise ValueError(f"{min(given)}: {path.text} is no number")
        return raw
    return lambda message: _number(raw(message), spec)


def _raw(path: Path, spec: FieldSpec) -> Callable[[Any], Any]:
    if spec.kind == "sector":
        return _sector(path, spec)
    if spec.from_deg is not None or spec.to_deg is not None:
        raise ValueError("from_deg: only a field `as: sector` has directions")
    if spec.kind != "value":
        of, convert = AS[spec.kind]
        if path.kind != of:
            raise ValueError(f"as: {spec.kind} is of a {of}, and {path.text or 'the message'} is none")
        return lambda message: convert(path.get(message))
    if path.kind == "time":
        return lambda message: _seconds(path.get(message))
    if path.kind in ("quaternion", "vector", "message", "list"):
        hint = {"quaternion": "add `as: yaw`", "list": "add [index] or [name]"}.get(path.kind, "name a field in it")
        raise ValueError(f"path: {path.text or 'the message'} is a {path.kind}, not a single value: {hint}")
    return path.get


def _choice(choices: dict[Scalar, Scalar], value: Any) -> Scalar:
    if value not in choices:
        raise Unmappable(f"no word is given for {value!r}")
    return choices[value]


def _number(value: Any, spec: FieldSpec) -> Scalar:
    number = float(value) * (UNITS[spec.unit] if spec.unit else 1.0) * spec.scale + spec.offset
    if math.isnan(number):
        raise Unmappable("it is not a number (NaN)")
    if spec.min is not None:
        number = max(number, spec.min)
    if spec.max is not None:
        number = min(number, spec.max)
    if math.isinf(number):
        raise Unmappable("it is infinite, and no min or max is given")
    # No minus zero, and no point where there are no digits after it.
    return round(number) if spec.digits == 0 else round(number, spec.digits) + 0.0


def _seconds(time: Any) -> float:
    return float(time.sec + time.nanosec / 1e9)


def _norm(vector: Any) -> float:
    return math.hypot(vector.x, vector.y, vector.z)


def _unit(q: Any) -> tuple[float, float, float, float]:
    length = math.hypot(q.x, q.y, q.z, q.w)
    # A quaternion of zeros is what drivers send before they know.
    if not 0.5 < length < 2.0:
        raise Unmappable(f"the quaternion has the length {length:g}, not 1")
    return q.x / length, q.y / length, q.z / length, q.w / length


def yaw(q: Any) -> float:
    """Rotation about the vertical axis, counterclockwise, in radians (-pi to pi)."""
    x, y, z, w = _unit(q)
    return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def pitch(q: Any) -> float:
    """Rotation about the lateral axis, nose down positive (REP 103), in radians (-pi/2 to pi/2)."""
    x, y, z, w = _unit(q)
    return math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))


def roll(q: Any) -> float:
    """Rotation about the forward axis, in radians (-pi to pi)."""
    x, y, z, w = _unit(q)
    return math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))


# `as`: the kind of value that it is of, and what it makes of it.
AS: dict[str, tuple[str, Callable[[Any], float]]] = {
    "yaw": ("quaternion", yaw),
    "pitch": ("quaternion", pitch),
    "roll": ("quaternion", roll),
    "norm": ("vector", _norm),
}


def _sector(path: Path, spec: FieldSpec) -> Callable[[Any], float]:
    if path.type.short != "LaserScan":
        raise ValueError("as: sector is of a LaserScan; leave path empty")
    if spec.from_deg is None or spec.to_deg is None:
        raise ValueError("from_deg: a sector needs from_deg and to_deg, counterclockwise, 0 is ahead")
    start, width = math.radians(spec.from_deg), math.radians((spec.to_deg - spec.from_deg) % 360 or 360)

    def nearest(message: Any) -> float:
        scan = path.get(message)
        shape = (scan.angle_min, scan.angle_increment, len(scan.ranges))
        beams = _beams(shape, start, width)
        return _nearest(scan, beams, _beams(shape, start - BESIDE, width + 2 * BESIDE))

    return nearest


@lru_cache(256)
def _beams(shape: tuple[float, float, int], start: float, width: float) -> list[int]:
    first, step, count = shape
    if not math.isfinite(first) or (count > 1 and (step == 0 or not math.isfinite(step))):
        raise Unmappable(f"the scan says no directions (angle_min {first:g}, angle_increment {step:g})")
    slack = 1e-4  # the message's float32, summed over a thousand beams
    return [i for i in range(count) if (first + i * step - start + slack) % math.tau <= width + 2 * slack]


def _nearest(scan: Any, beams: list[int], wider: list[int]) -> float:
    """The smallest range of the sector's beams in metres; in one that is all without an echo (0, in an open corridor)
    that of `wider`, which has the beams just beside it, too."""
    if not beams:
        raise Unmappable("the scan has no beam in this direction")
    nearest = _smallest(scan, beams)
    if nearest is None and all(math.isfinite(scan.ranges[i]) for i in beams):
        nearest = _smallest(scan, wider)
    if nearest is None:
        raise Unmappable("no beam in this direction gave a range")
    return min(nearest, scan.range_max) if scan.range_max > 0 else nearest


def _smallest(scan: Any, beams: list[int]) -> float | None:
    """None where no beam says anything. By REP 117 +inf is free, and -inf alone too near to measure: NaN, 0 and what is
    below `range_min` are drivers' codes for an error or no echo, and say nothing. A bound that is none counts as 0."""
    low = float(scan.range_min) if 0 < scan.range_min < math.inf else 0.0
    near = (low if scan.ranges[i] == -math.inf else float(scan.ranges[i]) for i in beams if _says(scan.ranges[i], low))
    return min(near, default=None)


def _says(value: float, low: float) -> bool:
    return value == -math.inf or (value > 0 and value >= low)


Setter = Callable[[Any, Mapping[str, Any], int], None]


def setter(cls: Any, path: Path, spec: SetSpec, tool: ToolSpec) -> Setter:
    """A function that sets the field at the path of a message of the class from (message, arguments, the clock's
    nanoseconds). It raises Unmappable for arguments that do not fit; raises ValueError here for what never can."""
    name = spec.source
    if name is None:
        return _constant(cls, path, spec.value)
    if name not in tool.parameters:
        known = ", ".join(tool.parameters) or "none"
        raise ValueError(f"there is no parameter {name!r}; the tool's are {known}")
    if name not in tool.needs() and spec.default is None:
        raise ValueError(f"{name} may be left out of a call: add `default`")
    if path.kind in ("message", "quaternion", "vector", "list"):
        raise ValueError(f"{path.text} is a {path.kind}, not a single value: name a field in it")
    listed = tool.parameters[name].get("enum")
    if not isinstance(listed, list | None):
        raise ValueError(f"the enum of {name} is no list of values")
    _check_limits(path, spec, listed)

    def set_argument(message: Any, arguments: Mapping[str, Any], _: int) -> None:
        try:
            path.set(message, _fitted(path.text, path.type, _argument(arguments.get(name), spec, path, listed)))
        except Unmappable as error:
            raise Unmappable(f"{name}: {error}") from None

    return set_argument


def _constant(cls: Any, path: Path, value: Any) -> Setter:
    if value == "now":
        if path.kind != "time":
            raise ValueError("`now` is for a time stamp")
        return lambda message, _, stamp_ns: path.set(message, _time(path.type, stamp_ns))
    if value == "now_us" and path.kind == "integer":
        if bounds_of(path.type)[1] < 2**62:
            raise ValueError("`now_us` does not fit a number of less than 64 bits")
        return lambda message, _, stamp_ns: path.set(message, stamp_ns // 1000)

    def set_constant(message: Any, *_: Any) -> None:
        path.set(message, _fitted(path.text, path.type, value, of_file=True))

    set_constant(cls())
    return set_constant


def _check_limits(path: Path, spec: SetSpec, listed: Sequence[Any] | None) -> None:
    """Raises ValueError, starting with the key, for what no argument can be made to fit by."""
    if spec.values is not None:
        for value in listed or []:
            if value not in spec.values:
                raise ValueError(f"values has nothing for {value!r}")
        for value in spec.values.values():
            _check_fits("values", path, value)
    elif path.kind in ("real", "integer", "time"):
        if spec.min is None or spec.max is None:
            raise ValueError("add `min` and `max`: what is published is clamped to them, whatever the model says")
        if spec.min > spec.max:
            raise ValueError("min is above max")
        _check_fits("min", path, spec.min)
        _check_fits("max", path, spec.max)


def _check_fits(key: str, path: Path, value: Any) -> None:
    try:
        _fitted(path.text, path.type, value)
    except Unmappable as error:
        raise ValueError(f"{key}: {error}") from None


def _argument(value: Any, spec: SetSpec, path: Path, listed: Sequence[Any] | None) -> Any:
    value = spec.default if value is None else value
    if value is None:
        raise Unmappable("it is missing")
    if spec.values is not None:
        for key, mapped in spec.values.items():
            if _same(key, value):
                return mapped
        raise Unmappable(f"nothing is given for {value!r}")
    # A server is not believed: what the tool's schema does not list is none of its arguments.
    if listed is not None and not any(_same(one, value) for one in [*listed, spec.default]):
        raise Unmappable(f"{value!r} is none of {', '.join(map(str, listed))}")
    if path.kind in ("text", "bool"):
        return value
    if not _is_finite(value):
        raise Unmappable(f"{value!r} is no finite number")
    assert spec.min is not None and spec.max is not None
    return min(max(value * spec.scale + spec.offset, spec.min), spec.max)


def _same(one: Any, other: Any) -> bool:
    # True is 1 to Python, and not to a schema.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _fitted(text: str, of: FieldType, value: Any, of_file: bool = False) -> Any:
    """The value as a field of the type wants it: ROS checks nothing. A file may say that a number is none (`of_file`):
    PX4 does not control what is not a number. Raises Unmappable."""
    kind = kind_of(of)
    if kind in ("real", "integer") and _is_finite(value):
        low, high = bounds_of(of)
        fitting = float(value) if kind == "real" else round(value)
        if low <= fitting <= high:
            return fitting
        raise Unmappable(f"{value!r} is not between {low:g} and {high:g}")
    if kind == "real" and of_file and isinstance(value, float) and math.isnan(value):
        return value
    if kind == "time" and _is_finite(value) and -(2**31) <= value < 2**31:
        return _time(of, round(value * 1e9))
    if kind == "text" and isinstance(value, str):
        # A string of ROS ends at its first NUL.
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise Unmappable(f"{value!r} is no text that ROS can carry")
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "list" and isinstance(value, list) and of.takes(len(value)):
        made = [_fitted(text, of.one, one, of_file) for one in value]
        return [bytes([one]) for one in made] if of.name == "octet" else made
    raise Unmappable(f"{value!r} does not fit {text}, which is of the kind {kind}")


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond doubles
        return False


def _time(of: FieldType, total_ns: int) -> Any:
    return of.message()(sec=total_ns // 1_000_000_000, nanosec=total_ns % 1_000_000_000)
