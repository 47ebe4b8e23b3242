"""The classes of ROS 2's messages, services and actions, from the installed packages; the types of their fields; field
paths (`pose.pose.position.x`, `points[0].positions[1]`, `position[elbow]`), checked against these types."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from rtcontrol_client.ros2 import Unmappable

KINDS = {"msg": "message", "srv": "service", "action": "action"}
_SEQUENCE = re.compile(r"sequence<(.+?)(?:, (\d+))?>")
_ARRAY = re.compile(r"(.+)\[(\d+)\]")


@dataclass(frozen=True)
class FieldType:
    """The type of a field. `name` is as ROS writes it (`double`, `geometry_msgs/Vector3`), or `cls` is a message class.

    `many`: it is a list of these; `length` of an array, `most` of a bounded sequence.
    """

    name: str
    many: bool = False
    length: int | None = None
    most: int | None = None
    cls: Any = None

    @property
    def one(self) -> FieldType:
        """The type of an element."""
        return FieldType(self.name, cls=self.cls)

    @property
    def short(self) -> str:
        """The name without its package."""
        return str(self.cls.__name__) if self.cls is not None else self.name.rsplit("/", 1)[-1]

    @property
    def is_message(self) -> bool:
        """Whether it has fields."""
        return self.cls is not None or "/" in self.name

    def takes(self, count: int) -> bool:
        """Return whether a list may have so many elements."""
        return count == self.length if self.length is not None else count <= (self.most or count)

    def message(self) -> Any:
        """Its message class."""
        return self.cls if self.cls is not None else find(self.name, "msg")[1]


def fields(cls: Any) -> dict[str, FieldType]:
    """Return field name -> type of a message class; nothing for another class."""
    described: dict[str, Any] = getattr(cls, "get_fields_and_field_types", dict)()
    return {
        name: _parsed(kind) if isinstance(kind, str) else FieldType("", cls=kind) for name, kind in described.items()
    }


def _parsed(text: str) -> FieldType:
    """`double`, `string<22>`, `double[36]`, `sequence<geometry_msgs/Point>`, `sequence<string<22>, 3>`."""
    if match := _SEQUENCE.fullmatch(text):
        return FieldType(match[1].partition("<")[0], True, most=int(match[2]) if match[2] else None)
    if match := _ARRAY.fullmatch(text):
        return FieldType(match[1].partition("<")[0], True, length=int(match[2]))
    return FieldType(text.partition("<")[0])


def find(name: str, form: str) -> tuple[str, Any]:
    """Return the full name and the class of `geometry_msgs/msg/Twist`, also written `geometry_msgs/Twist`.

    `form` is `msg`, `srv` or `action`. Raises ValueError with a hint for a type that is not installed.
    """
    full = name if name.count("/") != 1 else name.replace("/", f"/{form}/")
    kind = KINDS[form]
    if not re.fullmatch(rf"[A-Za-z]\w*/{form}/[A-Za-z]\w*", full):
        raise ValueError(f"{name!r} is not the name of a {kind} type, such as package/{form}/Name")
    package, _, short = full.split("/")
    try:
        module = import_module(f"{package}.{form}")
    except ImportError as error:
        hint = f"source the ROS set-up or the workspace that has {package}, or install its wheel"
        raise ValueError(
            f"unknown {kind} type {name!r}: this Python has no {package}.{form} ({error}); {hint}"
        ) from None
    if not hasattr(module, short):
        known = [
            one for one in vars(module) if one[0].isupper() and not one.endswith(("_Request", "_Response", "_Event"))
        ]
        near = [one for one in known if one.lower() == short.lower()] or known
        raise ValueError(f"unknown {kind} type {name!r}; {package} has {', '.join(near)}")
    return full, getattr(module, short)


# Field paths, compiled when the config is read.


MAX_INDEX = 1023
FLOAT32, FLOAT64 = 3.4028234663852886e38, sys.float_info.max
Kind = Literal["bool", "integer", "real", "text", "time", "quaternion", "vector", "message", "list"]
_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]|\[([A-Za-z_][\w/.:-]*)\]")
_NAMES = ("name", "joint_names")
OCTET = FieldType("octet")  # a byte, which ROS has as bytes of the length 1


@dataclass(frozen=True)
class Path:
    """A compiled path: what kind of value is there, how to get it and how to set it.

    `get` raises Unmappable where the message has no such element; `set` lets lists grow.
    """

    text: str
    type: FieldType
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], None]

    @property
    def kind(self) -> Kind:
        """What kind of value is there."""
        return kind_of(self.type)


def compile_path(cls: Any, text: str) -> Path:
    """The path in messages of a class; an empty one is the message itself. Raises ValueError naming the bad step."""
    steps = _steps(text)
    at = FieldType("", cls=cls)
    walk: list[tuple[str | int, FieldType]] = []  # the step, and the type that it leads to
    by_name: str | None = None
    for i, (attribute, index, name) in enumerate(steps):
        if attribute is not None:
            known = fields(at.message()) if at.is_message and not at.many else {}
            if attribute not in known:
                shown = ", ".join(known) or "none: it is not a message"
                raise ValueError(f"there is no {attribute!r} in {at.short}; its fields are {shown}")
            at = known[attribute]
            walk.append((attribute, at))
            continue
        if not at.many:
            raise ValueError(f"{'.'.join(str(s) for s, _ in walk)} is not a list")
        if index is not None:
            if index >= (at.length or at.most or MAX_INDEX + 1):
                raise ValueError(f"[{index}] is beyond the list's end")
            at = at.one
            walk.append((index, at))
        else:
            if i != len(steps) - 1 or i != 1:
                raise ValueError(f"[{name}] can only follow a field of the message itself, such as position[{name}]")
            at, by_name = at.one, name
    if by_name is not None:
        return Path(text, at, _getter_by_name(cls, steps[0][0], by_name), _no_set)
    get, set_ = _getter(walk), _setter(walk)
    if at == OCTET:
        return Path(text, at, lambda message: get(message)[0], lambda message, value: set_(message, bytes([value])))
    return Path(text, at, get, set_)


def _steps(text: str) -> list[tuple[str | None, int | None, str | None]]:
    found, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        first = match is not None and match[1] is not None and not match[0].startswith(".")
        if match is None or first != (position == 0):
            raise ValueError(f"{text!r} is not a field path; write for instance linear.x or points[0].positions[1]")
        attribute, index, name = match.groups()
        found.append((attribute, int(index) if index is not None else None, name))
        position = match.end()
    return found


def kind_of(of: FieldType) -> Kind:
    """The kind of a field's values."""
    if of.many:
        return "list"
    if of.is_message:
        named: dict[str, Kind] = {"Time": "time", "Duration": "time", "Quaternion": "quaternion"}
        named |= {"Vector3": "vector", "Point": "vector"}
        return named.get(of.short, "message")
    basic: dict[str, Kind] = {"boolean": "bool", "string": "text", "wstring": "text", "float": "real", "double": "real"}
    return basic.get(of.name, "integer")


def bounds_of(of: FieldType) -> tuple[float, float]:
    """The least and the greatest number that the type holds."""
    if of.name in ("float", "double"):
        most = FLOAT32 if of.name == "float" else FLOAT64
        return -most, most
    match = re.fullmatch(r"(u?)int(\d+)", of.name)
    if match is None:
        return 0, 255  # an octet
    bits = int(match[2])
    low = 0 if match[1] else -(1 << (bits - 1))
    return low, low + (1 << bits) - 1


def _getter(walk: list[tuple[str | int, FieldType]]) -> Callable[[Any], Any]:
    steps = [step for step, _ in walk]

    def get(message: Any) -> Any:
        for step in steps:
            try:
                message = getattr(message, step) if isinstance(step, str) else message[step]
            except IndexError:
                raise Unmappable(f"the list has only {len(message)} elements") from None
        return message

    return get


def _getter_by_name(cls: Any, attribute: str | None, name: str) -> Callable[[Any], Any]:
    assert attribute is not None
    names = next((n for n in _NAMES if n in fields(cls)), None)
    if names is None:
        raise ValueError(f"{cls.__name__} has no list of names to find [{name}] in")

    def get(message: Any) -> Any:
        known, listed = list(getattr(message, names)), getattr(message, attribute)
        if name not in known:
            raise Unmappable(f"no {name!r} among {', '.join(known) or 'no names'}")
        if (at := known.index(name)) >= len(listed):
            raise Unmappable(f"{attribute} has only {len(listed)} elements")
        return listed[at]

    return get


def _setter(walk: list[tuple[str | int, FieldType]]) -> Callable[[Any, Any], None]:
    def set_(message: Any, value: Any) -> None:
        *inner, (last, of) = walk
        for step, through in inner:
            message = _step_in(message, step, through)
        if isinstance(last, str):
            setattr(message, last, value)
        else:
            _grow(message, last, of)
            message[last] = value

    return set_


def _step_in(message: Any, step: str | int, of: FieldType) -> Any:
    if isinstance(step, str):
        return getattr(message, step)
    _grow(message, step, of)
    return message[step]


def _grow(elements: Any, index: int, of: FieldType) -> None:
    zero: dict[Kind, Any] = {"bool": False, "text": "", "integer": bytes(1) if of == OCTET else 0, "real": 0.0}
    kind = kind_of(of)
    while len(elements) <= index:
        elements.append(zero[kind] if kind in zero else of.message()())


def _no_set(message: Any, value: Any) -> None:
    raise Unmappable("an element found by name cannot be set; use its index")
