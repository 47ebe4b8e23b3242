"""Messages of a policy server: msgpack whose maps may stand for NumPy arrays and numbers, as openpi's client has them.

What comes may be anybody's: its arrays are copied into memory of ours only once their size is known to be right, no
dtype but numbers, truth values and texts is taken, and nothing is unpickled. Before anything is made of a message its
items are counted, by their headers: millions of them would hold Python's one lock for seconds.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgpack
import numpy as np

MOST_BYTES = 1 << 24  # of a message: three pictures of 1280 x 720 and more
MOST_ITEMS = 1 << 12  # of a message, keys and values, within each other or not; what is longer is an array
MOST_AXES = 8
LONGEST_DTYPE = 32  # characters
KINDS = "biufSU"  # of the dtypes that are taken
ARRAY, NUMBER = b"__ndarray__", b"__npgeneric__"


class MalformedMessage(ValueError):
    """Bytes that are no such message."""


def pack_message(value: Any) -> bytes:
    """Raises MalformedMessage for what no message has: objects, complex numbers, numbers of more than 64 bits."""
    try:
        packed: bytes = msgpack.packb(value, default=_fields_of)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedMessage(f"it cannot be packed ({error})") from None
    return packed


def unpack_message(data: bytes) -> Any:
    """The value; its arrays are read-only. Raises MalformedMessage."""
    if len(data) > MOST_BYTES:
        raise MalformedMessage(f"it has {len(data)} bytes, and {MOST_BYTES} is the most")
    _check_items(data)
    try:
        return msgpack.unpackb(data, object_hook=_array_or_number, strict_map_key=True, max_ext_len=0)
    except MalformedMessage:
        raise
    except Exception as error:  # of the library's own there are several, and of keys that are no keys TypeError
        raise MalformedMessage(f"it is no msgpack ({type(error).__name__})") from None


def _check_items(data: bytes) -> None:
    """Raise MalformedMessage where there are too many."""
    reader = msgpack.Unpacker(max_buffer_size=MOST_BYTES)
    left = items = 1
    try:
        reader.feed(data)
        while left and items <= MOST_ITEMS:
            head, more = data[reader.tell()], 0
            if 0x80 <= head <= 0x8F or head in (0xDE, 0xDF):
                more = 2 * reader.read_map_header()
            elif 0x90 <= head <= 0x9F or head in (0xDC, 0xDD):
                more = reader.read_array_header()
            else:
                reader.skip()
            left, items = left - 1 + more, items + more
    except Exception as error:  # of the library there are several
        raise MalformedMessage(f"it is no msgpack ({type(error).__name__})") from None
    if items > MOST_ITEMS:
        raise MalformedMessage(f"it has more than {MOST_ITEMS} items; send numbers as arrays")


def _fields_of(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in KINDS:
        raise TypeError(f"an array of {value.dtype}")
    if isinstance(value, np.ndarray):
        return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {NUMBER: True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__}")


def _array_or_number(found: dict[Any, Any]) -> Any:
    if ARRAY in found:
        return _array(found)
    if NUMBER in found:
        kind, value = _kind(found), found.get(b"data")
        if isinstance(value, str) != (kind.kind == "U") or isinstance(value, bytes) != (kind.kind == "S"):
            raise MalformedMessage(f"a number of it is a {type(value).__name__}")
        try:
            return kind.type(value)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise MalformedMessage(f"a number of it cannot be read ({type(error).__name__})") from None
    return found


def _array(found: dict[Any, Any]) -> np.ndarray[Any, Any]:
    kind, shape, data = _kind(found), found.get(b"shape"), found.get(b"data")
    if not isinstance(shape, list) or len(shape) > MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
        raise MalformedMessage(f"the shape of an array is {str(shape)[:80]}")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
        raise MalformedMessage(f"an array of shape {tuple(shape)} and dtype {kind.str} has not as many bytes")
    made: np.ndarray[Any, Any] = np.frombuffer(data, kind).reshape(shape) if data else np.empty(shape, kind)
    return made


def _kind(found: dict[Any, Any]) -> np.dtype[Any]:
    name = found.get(b"dtype")
    with contextlib.suppress(TypeError, ValueError, SyntaxError):
        kind = np.dtype(name) if isinstance(name, str) and len(name) <= LONGEST_DTYPE else None
        if kind is not None and kind.kind in KINDS and kind.subdtype is None and kind.itemsize:
            return kind
    raise MalformedMessage(f"arrays of the dtype {str(name)[:80]!r} are not taken")
