"""What a caller shows, as a message: text, data, and arrays of anything that shows its memory (numpy, array.array,
bytes, ctypes)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rtcontrol.bridges.client.errors import ClientError, checked
from rtcontrol.bridges.client.plain import plain
from rtcontrol.bridges.wire import LIMITS, encode_msgpack
from rtcontrol.bridges.wire.limits import check_size
from rtcontrol.bridges.wire.messages import DTYPES, Observe

Some = Mapping[str, Any] | None
NATIVE = ("", "@", "=", "<") if sys.byteorder == "little" else ("<",)
ENVELOPE_BYTES = 256  # what the session's token and numbers may add
KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BcHILQN", "u"), **dict.fromkeys("efd", "f")}


def observation(text: str | None, data: Some, arrays: Some, t_ns: int | None) -> Observe:
    """One look at the world; session, seq and epoch are the core's to fill in. Raises ClientError."""
    now_ns = time.monotonic_ns()
    with checked("observe"):
        fields = {"session": "-" * 16, "seq": 0, "epoch": 0, "text": plain(text, "text"), "data": plain(data, "data")}
        fields["t_ns"] = captured_ns = now_ns if t_ns is None else plain(t_ns, "t_ns")
        if isinstance(captured_ns, int | float) and captured_ns > now_ns:
            raise ClientError(f"t_ns={captured_ns} lies in the future.", "Use time.monotonic_ns() at the capture.")
        look = Observe.model_validate({**fields, "arrays": to_arrays(arrays or {})})
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
        kind = type(value).__name__ + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
        what = f"arrays[{name!r}] is a {kind}, which shows no buffer."
        raise ClientError(what, "Give a numpy array of numbers, an array.array or bytes.") from None
    if getattr(value, "mask", None) is not None and getattr(value.mask, "any", bool)():
        what = f"arrays[{name!r}] hides some of its numbers, and a buffer would show them."
        raise ClientError(what, "Say what stands in their place: value.filled(0).")
    order, code = view.format[:-1], view.format[-1]
    dtype = f"{KINDS.get(code, '')}{view.itemsize}"
    if dtype not in DTYPES or order not in NATIVE:
        what = f"arrays[{name!r}] has items of the format {view.format!r}."
        raise ClientError(what, f"Convert it to one of {', '.join(DTYPES)}.")
    # tobytes() lays any strides out in C order
    return {"name": name, "dtype": dtype, "shape": list(view.shape or ()), "data": view.tobytes()}
