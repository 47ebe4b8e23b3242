"""Convert a caller's values (also numpy and torch arrays and pydantic models) to types that messages can contain.

An unsupported value raises an error with the path of the value, on the caller's thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from rtcontrol_client import clock
from rtcontrol_client.client.errors import ClientError, wrap_errors
from rtcontrol_client.wire import LIMITS, Code, WireError, encode_msgpack
from rtcontrol_client.wire.limits import SUPPORTED_TYPES, check_size, check_value, size_error
from rtcontrol_client.wire.messages import DTYPES, Observe

BYTES = (bytes, bytearray, memoryview)
NATIVE = ("", "@", "=", "<") if sys.byteorder == "little" else ("<",)
ENVELOPE_BYTES = 256  # the session's token and numbers add at most 256 bytes to a message
KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BcHILQN", "u"), **dict.fromkeys("efd", "f")}
Data = Mapping[str, Any] | None


def to_plain(value: Any, name: str) -> Any:
    """Copy a value to None, bool, int, float, str, list and dict, and check the size limits.

    Raises WireError with the path of the invalid value, which starts with `name`.
    """
    copied = _convert_value(value, name, 1)
    check_value({name: copied}, LIMITS)
    return copied


def _convert_value(value: Any, path: str, depth: int) -> Any:
    if depth > LIMITS.max_depth + 1:  # stop here, because the value may contain itself
        path = path[:200]
        raise size_error(f"{path}: nesting deeper than {LIMITS.max_depth}", "max_depth", LIMITS, (None, path))
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    # For numpy's dates and durations, `tolist` would return an integer.
    if hasattr(value, "tolist") and getattr(getattr(value, "dtype", None), "kind", "") not in ("m", "M"):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Mapping):
        keys = {key: str.__str__(key) if isinstance(key, str) else key for key in value}
        return {keys[key]: _convert_value(inner, f"{path}.{str(key)[:40]}", depth + 1) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, BYTES):
        return [_convert_value(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(value)]
    raise WireError(
        Code.INVALID, f"{path} has the type {_type_name(value)}, which cannot be sent.", SUPPORTED_TYPES, field=path
    )


def _type_name(value: Any) -> str:
    return type(value).__name__ + (f" of {value.dtype}" if hasattr(value, "dtype") else "")


def capture_ns(t_ns: Any) -> Any:
    """Return the capture time `t_ns`, or now if it is None. Raises ClientError for a time in the future."""
    now_ns = time.monotonic_ns()
    captured_ns = now_ns if t_ns is None else to_plain(t_ns, "t_ns")
    if isinstance(captured_ns, int | float) and captured_ns > now_ns:
        raise ClientError(f"t_ns={captured_ns!r:.40} lies in the future.", "Use time.monotonic_ns() at the capture.")
    return clock.from_monotonic(captured_ns) if isinstance(captured_ns, int) else captured_ns


def to_observe(text: str | None, data: Data, arrays: Data, t_ns: int | None) -> Observe:
    """Return an observe message; the core sets its session, seq and epoch later. Raises ClientError."""
    with wrap_errors("observe"):
        fields = {"text": to_plain(text, "text"), "data": to_plain(data, "data"), "arrays": to_arrays(arrays or {})}
        fields |= {"session": "-" * 16, "seq": 0, "epoch": 0, "t_ns": capture_ns(t_ns)}
        look = Observe.model_validate(fields)
        # Encode the message here, so that the caller gets an error if it is too large.
        header, *buffers = map(len, encode_msgpack(look))
        check_size([header + ENVELOPE_BYTES, *buffers], LIMITS)
        return look


def to_arrays(named: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert named buffers to the arrays of a message (copies, C order, little endian). Raises ClientError."""
    if not isinstance(named, Mapping):
        raise ClientError(f"arrays is a {type(named).__name__}.", "Pass a mapping of names to arrays.")
    return [_array_fields(name, value) for name, value in named.items()]


def _array_fields(name: str, value: Any) -> dict[str, Any]:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):  # ValueError for numpy's times, for example
        text = f"arrays[{name!r}] is a {_type_name(value)}, which is not a buffer."
        raise ClientError(text, "Give a numpy array of numbers, an array.array or bytes.") from None
    order, code = view.format[:-1], view.format[-1]
    dtype = f"{KINDS.get(code, '')}{view.itemsize}"
    if dtype not in DTYPES or order not in NATIVE:
        text = f"arrays[{name!r}] has items of the format {view.format!r}."
        raise ClientError(text, f"Convert it to one of {', '.join(DTYPES)}.")
    # tobytes() returns the items in C order, whatever the strides are.
    return {"name": name, "dtype": dtype, "shape": list(view.shape or ()), "data": view.tobytes()}
