"""From a call's arguments to the fields of a message. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.bridges.ros2.config import SetSpec, ToolSpec
from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.ros2.paths import Path

Setter = Callable[[Any, Mapping[str, Any], int], None]


def setter(cls: Any, path: Path, spec: SetSpec, tool: ToolSpec) -> Setter:
    """A function that sets the field at the path of a message of the class from (message, arguments, wall clock's
    nanoseconds). It raises Unmappable for arguments that do not fit; raises ValueError here for what never can."""
    if spec.source is None:
        if spec.value == "now":
            if path.kind != "time":
                raise ValueError("`now` is for a time stamp")
            return lambda message, _, stamp_ns: path.set(message, _time(path, stamp_ns))
        constant = spec.value
        assert constant is not None
        try:
            path.set(trial := cls(), _convert(path, constant))
        except Unmappable as error:
            raise ValueError(str(error)) from None
        try:
            trial.serialize()
        except Exception:  # whatever cyclonedds makes of, say, words in a list of numbers
            raise ValueError(f"{constant!r} does not fit {path.text}") from None
        return lambda message, *_: path.set(message, _convert(path, constant))
    name = spec.source
    if name not in tool.parameters:
        known = ", ".join(tool.parameters) or "none"
        raise ValueError(f"there is no parameter {name!r}; the tool's are {known}")
    if name not in tool.needs() and spec.default is None:
        raise ValueError(f"{name} may be left out of a call: add `default`")
    listed = tool.parameters[name].get("enum")
    if spec.values is not None:
        for value in listed or []:
            if value not in spec.values:
                raise ValueError(f"values has nothing for {value!r}")
        for value in spec.values.values():
            try:
                _convert(path, value)
            except Unmappable as error:
                raise ValueError(f"values: {error}") from None
    elif path.kind in ("real", "integer", "time") and (spec.min is None or spec.max is None):
        raise ValueError("add `min` and `max`: what is published is clamped to them, whatever the model says")
    if spec.min is not None and spec.max is not None and spec.min > spec.max:
        raise ValueError("min is above max")
    if path.kind in ("message", "quaternion", "vector", "list"):
        raise ValueError(f"{path.text} is a {path.kind}, not a single value: name a field in it")

    def set_argument(message: Any, arguments: Mapping[str, Any], _: int) -> None:
        try:
            path.set(message, _convert(path, _argument(arguments.get(name, spec.default), spec, path)))
        except Unmappable as error:
            raise Unmappable(f"{name}: {error}") from None

    return set_argument


def _argument(value: Any, spec: SetSpec, path: Path) -> Any:
    if value is None:
        raise Unmappable("it is missing")
    if spec.values is not None:
        # True is 1 to Python, and not to a schema.
        for key, mapped in spec.values.items():
            if key == value and isinstance(key, bool) == isinstance(value, bool):
                return mapped
        raise Unmappable(f"nothing is given for {value!r}")
    if path.kind in ("text", "bool"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unmappable(f"{value!r} is no finite number")
    assert spec.min is not None and spec.max is not None
    return min(max(value * spec.scale + spec.offset, spec.min), spec.max)


def _convert(path: Path, value: Any) -> Any:
    """The value as the field wants it. Raises Unmappable."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if path.kind == "real" and number:
        return float(value)
    if path.kind == "integer" and number:
        low, high = path.bounds or (0, 0)
        if low <= round(value) <= high:
            return round(value)
        raise Unmappable(f"{value!r} is not between {low} and {high}")
    if path.kind == "time" and number and -(2**31) <= value < 2**31:
        return _time(path, round(value * 1e9))
    if path.kind == "text" and isinstance(value, str):
        return value
    if path.kind == "bool" and isinstance(value, bool):
        return value
    if path.kind == "list" and isinstance(value, list):
        return list(value)
    raise Unmappable(f"{value!r} does not fit {path.text}, which is of the kind {path.kind}")


def _time(path: Path, total_ns: int) -> Any:
    return path.cls(sec=total_ns // 1_000_000_000, nanosec=total_ns % 1_000_000_000)
