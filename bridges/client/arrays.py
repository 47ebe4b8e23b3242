"""Arrays of the observation, from anything that shows its memory: numpy, array.array, bytes, ctypes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rtcontrol.bridges.client.errors import ClientError, checked
from rtcontrol.bridges.wire.messages import DTYPES, Array

LITTLE = sys.byteorder == "little"
KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BcHILQN", "u"), **dict.fromkeys("efd", "f")}


def to_arrays(given: Mapping[str, Any]) -> list[Array]:
    """Copies of the buffers as the wire's arrays (C order, little endian). Raises ClientError naming the array."""
    return [_array(name, value) for name, value in given.items()]


def _array(name: str, value: Any) -> Array:
    try:
        view = memoryview(value)
    except TypeError:
        what = f"arrays[{name!r}] is a {type(value).__name__}, which shows no buffer."
        raise ClientError(what, "Give a numpy array, an array.array or bytes.") from None
    order, code = view.format[:-1], view.format[-1]
    dtype: Any = f"{KINDS.get(code, '')}{view.itemsize}"
    if dtype not in DTYPES or not LITTLE or order not in ("", "@", "=", "<"):
        what = f"arrays[{name!r}] has items of the format {view.format!r}."
        raise ClientError(what, f"Convert it to one of {', '.join(DTYPES)}.")
    with checked(f"arrays[{name!r}]"):  # tobytes() lays any strides out in C order
        return Array(name=name, dtype=dtype, shape=list(view.shape or ()), data=view.tobytes())
