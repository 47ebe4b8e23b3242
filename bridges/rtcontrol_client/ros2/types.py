"""The classes of ROS 2's messages, services and actions, from the installed packages, and the types of their fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

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
