"""Arrays of the observation, from anything that shows its memory: numpy, array.array, bytes, ctypes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rtcontrol.bridges.client.errors import ClientError
from rtcontrol.bridges.wire.messages import DTYPES, Array

KINDS = {"?": "b", "b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "B": "u", "c": "u", "H": "u", "I": "u", "L": "u"}
KINDS |= {"Q": "u", "n": "i", "N": "u", "e": "f", "f": "f", "d": "f"}


def to_arrays(given: Mapping[str, Any]) -> list[Array]:
    """Copies of the buffers as the wire's arrays (C order, little endian). Raises ClientError naming the array."""
    return [_array(name, value) for name, value in given.items()]


def _array(name: str, value: Any) -> Array:
    try:
        view = memoryview(value)
    except TypeError:
        raise ClientError(
            f"arrays[{name!r}] is a {type(value).__name__}, which shows no buffer.",
            "Give a numpy array, an array.array or bytes.",
        ) from None
    form = view.format
    native = form[0] in "@=" or form[0].isalnum() or form[0] == "?" or form[0] == ("<" if _LITTLE else ">")
    kind = f"{KINDS.get(form[-1], '')}{view.itemsize}"
    if kind not in DTYPES or not native or not _LITTLE or len(form.lstrip("@=<")) != 1:
        raise ClientError(
            f"arrays[{name!r}] has items of the format {form!r}.", f"Convert it to one of {', '.join(DTYPES)}."
        )
    # tobytes() lays any strides out in C order.
    try:
        return Array(name=name, dtype=kind, shape=list(view.shape), data=view.tobytes())  # type: ignore[arg-type]
    except ValueError as error:
        raise ClientError(f"arrays[{name!r}] does not fit the wire ({error}).", "See `observe`.") from None


_LITTLE = sys.byteorder == "little"
