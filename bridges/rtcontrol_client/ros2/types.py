"""The classes of ROS 2's messages, services and actions, from the installed packages; the types of their fields; field
paths (`pose.pose.position.x`, `points[0].positions[1]`, `position[elbow]`), checked against these types."""

from __future__ import annotations

import re
import sys
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


OCTET = FieldType("octet")  # a byte, which ROS has as bytes of the length 1


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
        return full, getattr(import_module(f"{package}.{form}"), short)
    except (ImportError, AttributeError) as error:
        hint = f"source the ROS set-up or the workspace that has {package}, or install its wheel"
        raise ValueError(f"unknown {kind} type {name!r} in this Python ({error}); {hint}") from None


# Field paths, compiled when the config is read.


MAX_INDEX = 1023
FLOAT32, FLOAT64 = 3.4028234663852886e38, sys.float_info.max
Kind = Literal["bool", "integer", "real", "text", "time", "quaternion", "vector", "message", "list"]
_PATH = re.compile(r"([A-Za-z_]\w*(\[[\w/.:-]+\])*(\.|$))*(?<!\.)")
_STEP = re.compile(r"\[([^\]]+)\]|([A-Za-z_]\w*)")
_NAMES = ("name", "joint_names")
_MESSAGES: dict[str, Kind] = {
    "Time": "time",
    "Duration": "time",
    "Quaternion": "quaternion",
    "Vector3": "vector",
    "Point": "vector",
}
_BASIC: dict[str, Kind] = {"boolean": "bool", "string": "text", "wstring": "text", "float": "real", "double": "real"}
_ZERO: dict[Kind, Any] = {"bool": False, "text": "", "integer": 0, "real": 0.0}


@dataclass(frozen=True)
class Path:
    """A compiled path. `steps` are attributes and indices, each with the type that it leads to; `named`: the last step
    is the element of this name, by the message's list `names`."""

    text: str
    type: FieldType
    steps: tuple[tuple[str | int, FieldType], ...]
    named: str | None = None
    names: str = ""

    @property
    def kind(self) -> Kind:
        """What kind of value is there."""
        return kind_of(self.type)

    def get(self, message: Any) -> Any:
        """The value. Raises Unmappable where the message has no such element."""
        value = message
        try:
            for step, _ in self.steps:
                value = getattr(value, step) if isinstance(step, str) else value[step]
            if self.named is not None:
                value = value[self._index(message)]
        except IndexError:
            raise Unmappable(f"the list has only {len(value)} elements") from None
        return value[0] if self.type == OCTET else value

    def _index(self, message: Any) -> int:
        known = list(getattr(message, self.names))
        if self.named not in known:
            raise Unmappable(f"no {self.named!r} among {', '.join(known) or 'no names'}")
        return known.index(self.named)

    def set(self, message: Any, value: Any) -> None:
        """Set the value; lists grow. Raises Unmappable."""
        if self.named is not None:
            raise Unmappable("an element that is named cannot be set; use its index")
        *inner, (last, of) = self.steps
        for step, through in inner:
            message = getattr(message, step) if isinstance(step, str) else _grown(message, step, through)[step]
        value = bytes([value]) if of == OCTET else value
        if isinstance(last, str):
            setattr(message, last, value)
        else:
            _grown(message, last, of)[last] = value


def compile_path(cls: Any, text: str) -> Path:
    """The path in messages of a class; an empty one is the message itself. Raises ValueError naming the bad step."""
    if not _PATH.fullmatch(text):
        raise ValueError(f"{text!r} is not a field path; write for instance linear.x or points[0].positions[1]")
    at = FieldType("", cls=cls)
    steps: list[tuple[str | int, FieldType]] = []
    parts = _STEP.findall(text)
    for i, (element, attribute) in enumerate(parts):
        if attribute:
            at = _field_of(at, attribute)
            steps.append((attribute, at))
            continue
        if not at.many:
            raise ValueError(f"{steps[-1][0]} is not a list")
        if not element.isdecimal():
            if (i, len(parts)) != (1, 2):
                raise ValueError(
                    f"[{element}] can only follow a field of the message itself, such as position[{element}]"
                )
            return Path(text, at.one, tuple(steps), element, _names_of(cls, element))
        index = int(element)
        if index >= (at.length or at.most or MAX_INDEX + 1):
            raise ValueError(f"[{index}] is beyond the list's end")
        at = at.one
        steps.append((index, at))
    return Path(text, at, tuple(steps))


def _field_of(at: FieldType, attribute: str) -> FieldType:
    known = fields(at.message()) if at.is_message and not at.many else {}
    if attribute not in known:
        shown = ", ".join(known) or "none: it is not a message"
        raise ValueError(f"there is no {attribute!r} in {at.short}; its fields are {shown}")
    return known[attribute]


def _names_of(cls: Any, element: str) -> str:
    names = next((name for name in _NAMES if name in fields(cls)), None)
    if names is None:
        raise ValueError(f"{cls.__name__} has no list of names to look up [{element}] in")
    return names


def _grown(elements: Any, index: int, of: FieldType) -> Any:
    """The list, long enough for the index."""
    while len(elements) <= index:
        kind = kind_of(of)
        elements.append(bytes(1) if of == OCTET else _ZERO[kind] if kind in _ZERO else of.message()())
    return elements


def kind_of(of: FieldType) -> Kind:
    """The kind of a field's values."""
    if of.many:
        return "list"
    return _MESSAGES.get(of.short, "message") if of.is_message else _BASIC.get(of.name, "integer")


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
