"""Field paths into messages (`pose.pose.position.x`, `points[0].positions[1]`, `position[elbow]`), checked against the
message's type when the config is read."""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol_client.ros2.errors import Unmappable

MAX_INDEX = 1023
FLOAT32, FLOAT64 = 3.4028234663852886e38, sys.float_info.max
Kind = Literal["bool", "integer", "real", "text", "time", "quaternion", "vector", "message", "list"]
_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]|\[([A-Za-z_][\w/.:-]*)\]")
_NAMES = ("name", "joint_names")


@dataclass(frozen=True)
class Path:
    """A compiled path: what kind of value is there, how to get it and how to set it.

    `bounds`: of a number's type. `get` raises Unmappable where the message has no such element; `set` lets lists grow.
    """

    text: str
    kind: Kind
    cls: Any
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], None]
    bounds: tuple[float, float] | None = None


def compile_path(cls: Any, text: str) -> Path:
    """The path in messages of a class; an empty one is the message itself. Raises ValueError naming the bad step."""
    steps = _steps(text)
    at: Any = cls
    walk: list[tuple[str | int, Any]] = []  # the step, and the type that it leads to
    by_name: str | None = None
    for i, (attribute, index, name) in enumerate(steps):
        if attribute is not None:
            hints = fields(at)
            if attribute not in hints:
                shown = ", ".join(hints) or "none: it is no message"
                raise ValueError(f"there is no {attribute!r} in {_named(at)}; its fields are {shown}")
            at = hints[attribute]
            walk.append((attribute, at))
            continue
        element = _element(at)
        if element is None:
            raise ValueError(f"{'.'.join(str(s) for s, _ in walk)} is no list")
        at = element[0]
        if index is not None:
            if index > (MAX_INDEX if element[1] is None else element[1] - 1):
                raise ValueError(f"[{index}] is beyond the list's end")
            walk.append((index, at))
        else:
            if i != len(steps) - 1 or i != 1:
                raise ValueError(f"[{name}] can only follow a field of the message itself, such as position[{name}]")
            by_name = name
    kind, bounds = _kind(at)
    if by_name is not None:
        return Path(text, kind, at, _getter_by_name(cls, steps[0][0], by_name), _no_set, bounds)
    get = _getter(walk)
    return Path(text, kind, at, _octet(get) if _name(at) == "byte" else get, _setter(walk), bounds)


def fields(cls: Any) -> dict[str, Any]:
    """Field name -> annotated type of a message class; nothing for what is no message."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _steps(text: str) -> list[tuple[str | None, int | None, str | None]]:
    found, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        first = match is not None and match[1] is not None and not match[0].startswith(".")
        if match is None or first != (position == 0):
            raise ValueError(f"{text!r} is no field path; write for instance linear.x or points[0].positions[1]")
        attribute, index, name = match.groups()
        found.append((attribute, int(index) if index is not None else None, name))
        position = match.end()
    return found


def _named(cls: Any) -> str:
    return getattr(cls, "__name__", str(cls))


def _element(hint: Any) -> tuple[Any, int | None] | None:
    """Element type and fixed length of a list type."""
    for extra in getattr(hint, "__metadata__", ()):
        if hasattr(extra, "subtype"):
            return extra.subtype, getattr(extra, "length", None)
    return None


def _name(hint: Any) -> str:
    """`float32`, `byte`; empty for what is no basic type of IDL."""
    return str(getattr(hint, "__metadata__", ("",))[0])


def _kind(hint: Any) -> tuple[Kind, tuple[float, float] | None]:
    if hint is bool:
        return "bool", None
    if hint is str:
        return "text", None
    if _element(hint) is not None:
        return "list", None
    if dataclasses.is_dataclass(hint):
        named: dict[str, Kind] = {"Time": "time", "Duration": "time", "Quaternion": "quaternion"}
        named |= {"Vector3": "vector", "Point": "vector"}
        return named.get(_named(hint), "message"), None
    name = _name(hint)
    if name == "byte":
        return "integer", (0, 255)
    if match := re.fullmatch(r"(u?)int(\d+)", name):
        bits = int(match[2])
        low = 0 if match[1] else -(1 << (bits - 1))
        return "integer", (low, low + (1 << bits) - 1)
    most = FLOAT32 if name == "float32" else FLOAT64
    return "real", (-most, most)


def _getter(walk: list[tuple[str | int, Any]]) -> Callable[[Any], Any]:
    steps = [step for step, _ in walk]

    def get(message: Any) -> Any:
        for step in steps:
            try:
                message = getattr(message, step) if isinstance(step, str) else message[step]
            except IndexError:
                raise Unmappable(f"the list has only {len(message)} elements") from None
        return message

    return get


def _octet(get: Callable[[Any], Any]) -> Callable[[Any], int]:
    def number(message: Any) -> int:
        value = get(message)  # rclpy has bytes of the length 1
        return value[0] if isinstance(value, bytes) else int(value)

    return number


def _getter_by_name(cls: Any, attribute: str | None, name: str) -> Callable[[Any], Any]:
    assert attribute is not None
    names = next((n for n in _NAMES if n in fields(cls)), None)
    if names is None:
        raise ValueError(f"{_named(cls)} has no list of names to find [{name}] in")

    def get(message: Any) -> Any:
        known, listed = getattr(message, names), getattr(message, attribute)
        if name not in known:
            raise Unmappable(f"no {name!r} among {', '.join(known) or 'no names'}")
        if (at := known.index(name)) >= len(listed):
            raise Unmappable(f"{attribute} has only {len(listed)} elements")
        return listed[at]

    return get


def _setter(walk: list[tuple[str | int, Any]]) -> Callable[[Any, Any], None]:
    def set_(message: Any, value: Any) -> None:
        *inner, (last, _) = walk
        for step, hint in inner:
            message = _step_in(message, step, hint)
        if isinstance(last, str):
            setattr(message, last, value)
        else:
            _grow(message, last, walk[-1][1])
            message[last] = value

    return set_


def _step_in(message: Any, step: str | int, hint: Any) -> Any:
    if isinstance(step, str):
        return getattr(message, step)
    _grow(message, step, hint)
    return message[step]


def _grow(elements: list[Any], index: int, hint: Any) -> None:
    zero: dict[Kind, Any] = {"bool": False, "text": "", "integer": 0, "real": 0.0}
    while len(elements) <= index:
        kind = _kind(hint)[0]
        elements.append(zero[kind] if kind in zero else hint())


def _no_set(message: Any, value: Any) -> None:
    raise Unmappable("an element found by name cannot be set; use its index")
