"""What an account has counted, as JSON, so that another one goes on from there."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

# The header stands in each part of a record; what people look on is short, and fills again; the rest is of a reading.
LEFT_OUT = ("header", "end", "ticks_from", "recent_calls", "recent_ms")


def kept(value: Any) -> Any:
    """A value of an account's, or the account itself, as JSON: objects by their attributes, dictionaries as pairs."""
    if isinstance(value, dict):
        return [[key, _entry(one)] for key, one in value.items()]
    if isinstance(value, array):
        return [[i, one] for i, one in enumerate(value) if one]
    if isinstance(value, list | tuple | deque):
        return [_entry(one) for one in value]
    if names := _attributes(value):
        return {name: kept(getattr(value, name)) for name in names if name not in LEFT_OUT}
    return value


def _entry(one: Any) -> Any:
    # What is listed stands as it is; a copy, for it is counted on meanwhile.
    return dict(one) if isinstance(one, dict) else kept(one)


def restore(value: Any, told: dict[str, Any]) -> None:
    """Give an object the attributes that `kept` told of it; those it does not tell of stay as they are. Raises
    LookupError, TypeError or ValueError for what is no such thing."""
    for name in _attributes(value):
        if name in told and name not in LEFT_OUT:
            setattr(value, name, _restored(getattr(value, name), told[name]))


def _restored(before: Any, told: Any) -> Any:
    if isinstance(before, dict):
        return _pairs(before, told)
    if isinstance(before, array):
        for i in range(len(before)):
            before[i] = 0
        for i, one in told:
            before[i] = one
        return before
    if isinstance(before, list | deque):
        before.clear()
        before.extend(told)
        return before
    if _attributes(before):
        restore(before, told)
        return before
    if isinstance(before, int | float) and not isinstance(told, int | float):
        raise TypeError(f"{told!r} is no {type(before).__name__}")
    return told


def _pairs(before: dict[Any, Any], told: Any) -> dict[Any, Any]:
    objects = {key: one for key, one in before.items() if _attributes(one)}
    for key in [key for key in before if key not in objects]:
        del before[key]
    for key, one in told:
        key = tuple(key) if isinstance(key, list) else key
        before[key] = _restored(objects[key], one) if key in objects else one
    return before


def _attributes(value: Any) -> tuple[str, ...]:
    slots = getattr(type(value), "__slots__", None)
    return tuple(slots) if slots else tuple(getattr(value, "__dict__", ()))
