"""From a call's arguments to the fields of a message. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        with _mistake():
            path.set(trial := cls(), _convert(path, constant))
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
            with _mistake("values: "):
                _convert(path, value)
    elif path.kind in ("real", "integer", "time"):
        if spec.min is None or spec.max is None:
            raise ValueError("add `min` and `max`: what is published is clamped to them, whatever the model says")
        for key, limit in (("min", spec.min), ("max", spec.max)):
            with _mistake(f"{key}: "):
                _convert(path, limit)
    if spec.min is not None and spec.max is not None and spec.min > spec.max:
        raise ValueError("min is above max")
    if path.kind in ("message", "quaternion", "vector", "list"):
        raise ValueError(f"{path.text} is a {path.kind}, not a single value: name a field in it")
    if spec.default is not None:
        with _mistake("default: "):
            _convert(path, _argument(spec.default, spec, path, None))

    def set_argument(message: Any, arguments: Mapping[str, Any], _: int) -> None:
        try:
            path.set(message, _convert(path, _argument(arguments.get(name, spec.default), spec, path, listed)))
        except Unmappable as error:
            raise Unmappable(f"{name}: {error}") from None

    return set_argument


@contextlib.contextmanager
def _mistake(key: str = "") -> Iterator[None]:
    try:
        yield
    except Unmappable as error:
        raise ValueError(f"{key}{error}") from None


def _argument(value: Any, spec: SetSpec, path: Path, listed: Sequence[Any] | None) -> Any:
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise Unmappable(f"{value!r} is no finite number")
    assert spec.min is not None and spec.max is not None
    return min(max(value * spec.scale + spec.offset, spec.min), spec.max)


def _same(one: Any, other: Any) -> bool:
    # True is 1 to Python, and not to a schema.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _convert(path: Path, value: Any) -> Any:
    """The value as the field wants it. Raises Unmappable."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    if path.kind in ("real", "integer") and number:
        low, high = path.bounds or (0, 0)
        fitting = float(value) if path.kind == "real" else round(value)
        if low <= fitting <= high:
            return fitting
        raise Unmappable(f"{value!r} is not between {low:g} and {high:g}")
    if path.kind == "time" and number and -(2**31) <= value < 2**31:
        return _time(path, round(value * 1e9))
    if path.kind == "text" and isinstance(value, str):
        # A string of CDR ends at its first NUL.
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise Unmappable(f"{value!r} is no text that ROS can carry")
        return value
    if path.kind == "bool" and isinstance(value, bool):
        return value
    if path.kind == "list" and isinstance(value, list):
        return list(value)
    raise Unmappable(f"{value!r} does not fit {path.text}, which is of the kind {path.kind}")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond doubles
        return False


def _time(path: Path, total_ns: int) -> Any:
    return path.cls(sec=total_ns // 1_000_000_000, nanosec=total_ns % 1_000_000_000)
