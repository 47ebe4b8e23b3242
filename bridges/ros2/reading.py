"""From a message's field to the number or word that the model reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rtcontrol.bridges.ros2.config import UNITS, FieldSpec, Scalar
from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.ros2.paths import Path, compile_path

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
    if spec.kind != "sector" and (spec.from_deg is not None or spec.to_deg is not None):
        raise ValueError("from_deg: only a field `as: sector` has directions")
    if spec.kind == "sector":
        return _sector(path, spec)
    if spec.kind in ("yaw", "pitch", "roll"):
        if path.kind != "quaternion":
            raise ValueError(f"as: {spec.kind} is of a quaternion, and {path.text or 'the message'} is none")
        angle = {"yaw": yaw, "pitch": pitch, "roll": roll}[spec.kind]
        return lambda message: angle(path.get(message))
    if spec.kind == "norm":
        if path.kind != "vector":
            raise ValueError(f"as: norm is of a vector, and {path.text or 'the message'} is none")
        return lambda message: _norm(path.get(message))
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


def _sector(path: Path, spec: FieldSpec) -> Callable[[Any], float]:
    if getattr(path.cls, "__name__", "") != "LaserScan":
        raise ValueError("as: sector is of a LaserScan; leave path empty")
    if spec.from_deg is None or spec.to_deg is None:
        raise ValueError("from_deg: a sector needs from_deg and to_deg, counterclockwise, 0 is ahead")
    start, width = math.radians(spec.from_deg), math.radians((spec.to_deg - spec.from_deg) % 360 or 360)
    known: dict[tuple[float, float, int], tuple[list[int], list[int]]] = {}

    def nearest(message: Any) -> float:
        scan = path.get(message)
        shape = (scan.angle_min, scan.angle_increment, len(scan.ranges))
        beams = known.get(shape)
        if beams is None:
            known.clear()
            beams = known[shape] = _beams(shape, start, width), _beams(shape, start - BESIDE, width + 2 * BESIDE)
        return _nearest(scan, *beams)

    return nearest


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
