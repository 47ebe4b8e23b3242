"""Messages of the bridge's classes with another value in each field, and what is in them. It needs no pytest."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

from rtcontrol_client.ros2.msgs import MESSAGES
from rtcontrol_client.ros2.paths import fields

# Packages without wheels (the bytes of their messages are compared in test_msgs.py).
NOT_THERE = {"ackermann_msgs"}
TYPES = [name for name in MESSAGES if name.split("/")[0] not in NOT_THERE]

# Elements, and numbers, of a long list: what has two of them, or a message an element, exceeds 64 kB. SHORTER keeps
# each message to 128 kB: of 192 kB, sent as best effort, a socket's usual 208 kB do not hold all.
LONG, SHORTER = (1000, 6000), (600, 4000)
_RANGES: dict[str, tuple[float, float]] = {
    **{f"int{n}": (-(1 << (n - 1)), (1 << (n - 1)) - 1) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (0, (1 << n) - 1) for n in (8, 16, 32, 64)},
    "byte": (0, 255),
    "float32": (-(2.0**-149), 3.4028234663852886e38),
    "float64": (-5e-324, sys.float_info.max),
}


def messages_of(name: str, count: int) -> list[Any]:
    """So many messages of the type, no two alike, with numbers that float32 holds exactly."""
    value = _ordinary()
    return [_filled(MESSAGES[name][0], value) for _ in range(count)]


def edges_of(name: str, long_list: tuple[int, int] = LONG) -> list[Any]:
    """Four messages of the type: the least in each field and empty lists; the greatest; infinities; long lists."""
    cls = MESSAGES[name][0]
    value = _ordinary()
    long = _filled(cls, value)
    for field, hint in fields(cls).items():
        if (listed := _listed(hint)) and not hasattr(listed, "length"):
            count = long_list[_kind(listed.subtype) in _RANGES]
            setattr(long, field, [_filled(listed.subtype, value) for _ in range(count)])
    infinite = _filled(cls, lambda kind: -math.inf if "float" in kind else _extreme(kind, 1))
    return [
        _filled(cls, lambda kind: _extreme(kind, 0), 0),
        _filled(cls, lambda kind: _extreme(kind, 1)),
        infinite,
        long,
    ]


def _ordinary() -> Callable[[str], Any]:
    """Values by their type, each another one."""
    number = itertools.count(1)

    def value(kind: str) -> Any:
        n = next(number)
        if kind == "bool":
            return bool(n % 2)
        if kind == "str":
            return f"n\u00e4me {n} \u65e5"
        return n / 4 - 100.0 if "float" in kind else n % 100

    return value


def _extreme(kind: str, end: int) -> Any:
    return {"bool": (False, True), "str": ("", "\U0001f916" * 99)}.get(kind, _RANGES.get(kind))[end]


def _kind(hint: Any) -> str:
    """`float32`, `int8`, `bool`, `str`."""
    return str(getattr(hint, "__metadata__", (getattr(hint, "__name__", ""),))[0])


def _listed(hint: Any) -> Any:
    """What a list's type says of its elements."""
    return next((m for m in getattr(hint, "__metadata__", ()) if hasattr(m, "subtype")), None)


def _filled(hint: Any, value: Callable[[str], Any], length: int = 3) -> Any:
    """A value of the type; lists that may have any length have this one."""
    if inner := fields(hint):
        return hint(**{name: _filled(of, value, length) for name, of in inner.items()})
    if (listed := _listed(hint)) is not None:
        return [_filled(listed.subtype, value, length) for _ in range(getattr(listed, "length", None) or length)]
    return value(_kind(hint))


def values(message: Any) -> Any:
    """A message of ours as maps, lists and numbers; ROS's Empty is empty."""
    if isinstance(message, list | bytes):
        return [values(one) for one in message]
    inner = fields(type(message))
    return {n: values(getattr(message, n)) for n in inner if not n.startswith("structure_needs")} if inner else message
