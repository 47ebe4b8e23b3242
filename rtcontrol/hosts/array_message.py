"""Messages of a policy server: msgpack whose maps may stand for NumPy arrays and numbers, as openpi's client has them.

What comes may be anybody's: its arrays are copied into memory of ours only once their size is known to be right, no
dtype but numbers, truth values and texts is taken, and nothing is unpickled. Before anything is made of a message its
items are counted, by their headers: millions of them would hold Python's one lock for seconds.
"""

from __future__ import annotations

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
        return msgpack.unpackb(
            data,
            object_hook=_array_or_number,
            strict_map_key=True,
            max_array_len=MOST_ITEMS,
            max_map_len=MOST_ITEMS,
            max_ext_len=0,
        )
    except MalformedMessage:
        raise
    except Exception as error:  # of the library's own there are several, and of keys that are no keys TypeError
        raise MalformedMessage(f"it is no msgpack ({type(error).__name__})") from None


# By a header's first byte: how many bytes behind it are a length, and how many it holds itself.
STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
LISTS, MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _check_items(data: bytes) -> None:
    """Raises MalformedMessage where there are too many; what is no msgpack the unpacker says."""
    at, end, left, items = 0, len(data), 1, 1
    while left and at < end:
        head, left, more = data[at], left - 1, 0
        at += 1
        if 0x80 <= head <= 0x9F:
            more = (head & 0x0F) * (2 if head < 0x90 else 1)
        elif 0xA0 <= head <= 0xBF:
            at += head & 0x1F
        elif size := STRINGS.get(head):
            at += size + int.from_bytes(data[at : at + size])
        elif size := LISTS.get(head) or MAPS.get(head):
            more = int.from_bytes(data[at : at + size]) * (2 if head in MAPS else 1)
            at += size
        elif 0xC7 <= head <= 0xC9 or 0xD4 <= head <= 0xD8:
            raise MalformedMessage("it has an extension of msgpack")
        else:
            at += NUMBERS.get(head, 0)
        left, items = left + more, items + more
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
        size = len(data) if isinstance(data, bytes) else None
        raise MalformedMessage(f"an array of shape {tuple(shape)} and dtype {kind.str} has {size} bytes")
    made: np.ndarray[Any, Any] = np.frombuffer(data, kind).reshape(shape) if data else np.empty(shape, kind)
    return made


def _kind(found: dict[Any, Any]) -> np.dtype[Any]:
    name = found.get(b"dtype")
    try:
        kind = np.dtype(name if isinstance(name, str) and len(name) <= LONGEST_DTYPE else None)
    except (TypeError, ValueError, SyntaxError):
        raise MalformedMessage(f"there is no dtype {str(name)[:80]!r}") from None
    if (
        not isinstance(name, str)
        or len(name) > LONGEST_DTYPE
        or kind.kind not in KINDS
        or kind.subdtype is not None
        or not kind.itemsize
    ):
        raise MalformedMessage(f"arrays of the dtype {str(name)[:80]!r} are not taken")
    return kind
