"""What a caller gives, as what the wire carries: numpy's scalars and arrays, enums, decimals, dataclasses and models by
their values. Refused here, on the caller's thread, by its place: what has no such value."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from rtcontrol_client.client.errors import ClientError, checked
from rtcontrol_client.wire import LIMITS, Code, WireError, encode_msgpack
from rtcontrol_client.wire.limits import PLAIN, check_size, check_value, large
from rtcontrol_client.wire.messages import DTYPES, Observe

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
    if depth > LIMITS.max_depth + 1:  # it may hold itself
        raise large(f"{path[:200]}: nesting deeper than {LIMITS.max_depth}", "max_depth", LIMITS, path[:200])
    value = _unwrapped(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (Integral, Real, Decimal)):
        try:
            return int(value) if isinstance(value, Integral) else float(value)
        except (ValueError, OverflowError):  # a signalling NaN; a fraction beyond doubles
            raise WireError(Code.INVALID, f"{path}: it is no finite number.", "Send one.", field=path) from None
    if isinstance(value, Mapping):
        keys = {key: str.__str__(key) if isinstance(key, str) else key for key in value}
        return {keys[key]: _plain(inner, f"{path}.{str(key)[:40]}", depth + 1) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(value)]
    hint = next((said for kinds, said in HINTS.items() if isinstance(value, kinds)), PLAIN)
    raise WireError(Code.INVALID, f"{path}: a value of the type {_kind(value)}.", hint, field=path)


def _unwrapped(value: Any, path: str) -> Any:
    """What an enum, a model, a dataclass or an array of numpy, torch and their like holds; any other value as it is."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not hasattr(value, "tolist"):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):  # numpy makes an integer of a time
        raise WireError(Code.INVALID, f"{path}: a value of the type {_kind(value)}.", PLAIN, field=path)
    try:
        return value.tolist()
    except Exception as error:  # torch's sparse tensors, and those without values, say
        why = " ".join(str(error).split())[:80]
        what = f"{path}: a {type(value).__name__} that gives no list ({why})."
        raise WireError(Code.INVALID, what, PLAIN, field=path) from None


def _kind(value: Any) -> str:
    return type(value).__name__ + (f" of {value.dtype}" if hasattr(value, "dtype") else "")


def instant(t_ns: Any) -> Any:
    """The instant of a capture by `time.monotonic_ns()`, now for None. Raises ClientError for one of the future."""
    now_ns = time.monotonic_ns()
    captured_ns = now_ns if t_ns is None else plain(t_ns, "t_ns")
    if isinstance(captured_ns, int | float) and captured_ns > now_ns:
        raise ClientError(f"t_ns={captured_ns!r:.40} lies in the future.", "Use time.monotonic_ns() at the capture.")
    return captured_ns


Some = Mapping[str, Any] | None
NATIVE = ("", "@", "=", "<") if sys.byteorder == "little" else ("<",)
ENVELOPE_BYTES = 256  # what the session's token and numbers may add
KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BcHILQN", "u"), **dict.fromkeys("efd", "f")}


def observation(text: str | None, data: Some, arrays: Some, t_ns: int | None) -> Observe:
    """One look at the world; session, seq and epoch are the core's to fill in. Raises ClientError."""
    with checked("observe"):
        fields = {"session": "-" * 16, "seq": 0, "epoch": 0, "text": plain(text, "text"), "data": plain(data, "data")}
        look = Observe.model_validate({**fields, "t_ns": instant(t_ns), "arrays": to_arrays(arrays or {})})
        # Encoded here once: what cannot be sent is the caller's to know.
        header, *buffers = map(len, encode_msgpack(look))
        check_size([header + ENVELOPE_BYTES, *buffers], LIMITS)
        return look


def to_arrays(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Copies of the buffers as the wire's arrays (C order, little endian). Raises ClientError naming the array."""
    if not isinstance(given, Mapping):
        raise ClientError(f"arrays is a {type(given).__name__}.", "Give a map of names to arrays.")
    return [_array(name, value) for name, value in given.items()]


def _array(name: str, value: Any) -> dict[str, Any]:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):  # of numpy's kinds of time, say, ValueError
        what = f"arrays[{name!r}] is a {_kind(value)}, which shows no buffer."
        raise ClientError(what, "Give a numpy array of numbers, an array.array or bytes.") from None
    order, code = view.format[:-1], view.format[-1]
    dtype = f"{KINDS.get(code, '')}{view.itemsize}"
    if dtype not in DTYPES or order not in NATIVE:
        what = f"arrays[{name!r}] has items of the format {view.format!r}."
        raise ClientError(what, f"Convert it to one of {', '.join(DTYPES)}.")
    # tobytes() lays any strides out in C order
    return {"name": name, "dtype": dtype, "shape": list(view.shape or ()), "data": view.tobytes()}
