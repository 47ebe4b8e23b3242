"""What a caller gives, as what the wire carries: numpy's scalars and arrays, enums, decimals, dataclasses and models by
their values. Refused here, on the caller's thread, by its place: what has no such value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from rtcontrol.bridges.wire import LIMITS, Code, WireError
from rtcontrol.bridges.wire.limits import PLAIN, check_value, large

HINTS: dict[Any, str] = {
    Set: "A set has no order: give a list.",
    (bytes, bytearray, memoryview): "Raw bytes go into `arrays` of an observation; text is a str.",
}


def plain(value: Any, name: str) -> Any:
    """The value as None, bool, int, float, str, list and dict, all of them copies, within the wire's limits. Raises
    WireError naming the place, which begins with `name`."""
    found = _plain(value, name, 1)
    check_value({name: found}, LIMITS)
    return found


def _plain(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, depth)
    if isinstance(value, str):
        return str.__str__(value)
    of_time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")  # numpy takes a duration for an integer
    if isinstance(value, (Integral, Real, Decimal)) and not of_time:
        try:
            return int(value) if isinstance(value, Integral) else float(value)
        except (ValueError, OverflowError):  # a signalling NaN; a fraction beyond doubles
            raise WireError(Code.INVALID, f"{path}: it is no finite number.", "Send one.", field=path) from None
    if depth > LIMITS.max_depth:  # or it holds itself
        raise large(f"{path[:200]}: nesting deeper than {LIMITS.max_depth}", "max_depth", LIMITS, path[:200])
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "tolist") and not of_time:
        value = _listed(value, path)
        if not isinstance(value, list):
            return _plain(value, path, depth + 1)
    if isinstance(value, Mapping):
        keys = {key: str.__str__(key) if isinstance(key, str) else key for key in value}
        return {keys[key]: _plain(inner, f"{path}.{str(key)[:40]}", depth + 1) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(value)]
    hint = next((said for kinds, said in HINTS.items() if isinstance(value, kinds)), PLAIN)
    kind = type(value).__name__ + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
    raise WireError(Code.INVALID, f"{path}: a value of the type {kind}.", hint, field=path)


def _listed(array: Any, path: str) -> Any:
    """Of numpy, torch and their like: a scalar, or lists."""
    count = array.numel() if hasattr(array, "numel") else getattr(array, "size", 0)
    if count > LIMITS.max_total_items:  # known before it is built
        raise large(f"{path}: an array of {count} numbers", "max_total_items", LIMITS, path)
    try:
        return array.tolist()
    except Exception as error:  # torch's sparse tensors, and those without values, say
        why = " ".join(str(error).split())[:80]
        what = f"{path}: a {type(array).__name__} that gives no list ({why})."
        raise WireError(Code.INVALID, what, PLAIN, field=path) from None
