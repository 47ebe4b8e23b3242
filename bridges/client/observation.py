"""What a caller shows, as a message: text, data, and arrays of anything that shows its memory (numpy, array.array,
bytes, ctypes)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rtcontrol.bridges.client.errors import ClientError, checked
from rtcontrol.bridges.wire import LIMITS
from rtcontrol.bridges.wire.limits import check_value
from rtcontrol.bridges.wire.messages import DTYPES, Observe

Some = Mapping[str, Any] | None
NATIVE = ("", "@", "=", "<") if sys.byteorder == "little" else ("<",)
KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BcHILQN", "u"), **dict.fromkeys("efd", "f")}


def observation(text: str | None, data: Some, arrays: Some, t_ns: int | None) -> Observe:
    """One look at the world; session, seq and epoch are the core's to fill in. Raises ClientError."""
    now_ns = time.monotonic_ns()
    if t_ns is not None and t_ns > now_ns:
        raise ClientError(f"t_ns={t_ns} lies in the future.", "Use time.monotonic_ns() at the capture.")
    shown = {"text": text, "data": None if data is None else dict(data)}
    with checked("observe"):
        check_value(shown, LIMITS)
        fields = {"session": "-" * 16, "seq": 0, "epoch": 0, "t_ns": now_ns if t_ns is None else t_ns}
        return Observe.model_validate({**fields, **shown, "arrays": to_arrays(arrays or {})})


def to_arrays(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Copies of the buffers as the wire's arrays (C order, little endian). Raises ClientError naming the array."""
    return [_array(name, value) for name, value in given.items()]


def _array(name: str, value: Any) -> dict[str, Any]:
    try:
        view = memoryview(value)
    except TypeError:
        what = f"arrays[{name!r}] is a {type(value).__name__}, which shows no buffer."
        raise ClientError(what, "Give a numpy array, an array.array or bytes.") from None
    order, code = view.format[:-1], view.format[-1]
    dtype = f"{KINDS.get(code, '')}{view.itemsize}"
    if dtype not in DTYPES or order not in NATIVE:
        what = f"arrays[{name!r}] has items of the format {view.format!r}."
        raise ClientError(what, f"Convert it to one of {', '.join(DTYPES)}.")
    # tobytes() lays any strides out in C order
    return {"name": name, "dtype": dtype, "shape": list(view.shape or ()), "data": view.tobytes()}
