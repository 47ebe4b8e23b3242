"""ROS 2 messages as cyclonedds types, made from `definitions.msg`: a class a message, a namespace a ROS package."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from types import SimpleNamespace, new_class
from typing import Any

from cyclonedds.idl import IdlStruct, types
from cyclonedds.idl.annotations import autoid, final

# .msg type -> IDL type and default. `char` is an octet (REP 9: unsigned 8-bit in ROS 2).
_BASE: dict[str, tuple[Any, Any]] = {
    "bool": (bool, False),
    "string": (str, ""),
    "byte": (types.byte, 0),
    "char": (types.uint8, 0),
    **{name: (getattr(types, name), 0) for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")},
    **{name: (getattr(types, name), 0.0) for name in ("float32", "float64")},
}
# Full name -> class and RIHS01 type hash (the same in Humble, Jazzy and later).
MESSAGES: dict[str, tuple[type[Any], str]] = {}
# Full name -> its fields: type and name of each.
FIELDS: dict[str, list[tuple[str, str]]] = {}


def _field(kind: str, known: Mapping[str, tuple[type[Any], str]]) -> tuple[Any, Any]:
    """IDL type and default of a field."""
    inner, bracket, length = kind.rstrip("]").partition("[")
    inner = inner.partition("<=")[0]  # a bound changes no byte
    if inner in _BASE:
        idl, default = _BASE[inner]
    else:
        idl = known[inner][0]
        default = field(default_factory=idl)
    if not bracket:
        return idl, default
    if not length or length.startswith("<="):
        return types.sequence[idl], field(default_factory=list)
    count = int(length)
    if inner in _BASE:
        return types.array[idl, count], field(default_factory=lambda: [default] * count)
    return types.array[idl, count], field(default_factory=lambda: [idl() for _ in range(count)])


def message_class(
    name: str,
    fields: list[tuple[str, str]],
    known: Mapping[str, tuple[type[Any], str]],
    defaults: Mapping[str, Any] | None = None,
) -> type[Any]:
    """The class of a message (or of a part of a service or an action); `known` has the classes of those that it holds,
    `defaults` the values of fields that are not zero or empty."""
    package, form, short = name.split("/")
    made = {label: _field(kind, known) for kind, label in fields}
    for label, value in (defaults or {}).items():
        made[label] = made[label][0], field(default_factory=partial(copy.copy, value))

    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = __name__
        for label, (idl, default) in made.items():
            namespace["__annotations__"][label] = idl
            namespace[label] = default

    cls = new_class(short, (IdlStruct,), {"typename": f"{package}::{form}::dds_::{short}_"}, body)
    return final(autoid("sequential")(dataclass(cls)))


def _load(text: str) -> None:
    """A line `FULL_NAME HASH`, then a line `TYPE NAME` a field; a message comes after those that it holds."""
    blocks: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in text.splitlines():
        first, _, second = line.strip().partition(" ")
        if line.startswith(" "):
            blocks[-1][2].append((first, second))
        elif not line.startswith("#"):
            blocks.append((first, second, []))
    for name, type_hash, fields in blocks:
        FIELDS[name] = fields
        MESSAGES[name] = message_class(name, fields, MESSAGES), type_hash


_load(resources.files(__package__).joinpath("definitions.msg").read_text("utf-8"))
_PACKAGES: dict[str, SimpleNamespace] = {}
for _name, (_message, _) in MESSAGES.items():
    vars(_PACKAGES.setdefault(_name.split("/")[0], SimpleNamespace()))[_message.__name__] = _message


def __getattr__(package: str) -> Any:
    """A ROS package's messages: `from rtcontrol_client.ros2.msgs import nav_msgs`."""
    if package not in _PACKAGES:
        raise AttributeError(f"no messages of {package!r} in definitions.msg")
    return _PACKAGES[package]
