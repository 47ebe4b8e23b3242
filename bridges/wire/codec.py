"""Messages to bytes and back: msgpack with raw buffers (ZeroMQ), JSON with base64 (WebSocket).

ZeroMQ: `[header][buffer...]`, the header a msgpack map; `arrays[i].part` is the index of its buffer among the parts
(the header is part 0). JSON: one text, `arrays[i].base64`. No pickle, no extension types.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgpack
from pydantic import ValidationError

from rtcontrol.bridges.wire.errors import Code, WireError
from rtcontrol.bridges.wire.limits import LIMITS, Limits, check_size, check_value, large
from rtcontrol.bridges.wire.messages import ANY, PROTOCOL, TYPES, Message, Observe, whole
from rtcontrol.bridges.wire.wanted import count_of, explain

LENGTHS = {"max_str_len": "max_string_bytes", "max_array_len": "max_items", "max_map_len": "max_items"}


def encode_msgpack(message: Message) -> list[bytes]:
    """The message's parts: header, then one buffer an array. Raises WireError for free values that cannot be sent."""
    header, buffers = _plain(message)
    for i, entry in enumerate(header.get("arrays", ())):
        entry["part"] = i + 1
    try:
        return [msgpack.packb(header), *buffers]
    except (ValueError, TypeError, OverflowError) as error:
        raise _unsendable(header, error) from None


def encode_json(message: Message) -> str:
    """The message as one JSON text. Raises WireError for free values that cannot be sent."""
    header, buffers = _plain(message)
    for entry, buffer in zip(header.get("arrays", ()), buffers, strict=False):
        entry["base64"] = base64.b64encode(buffer).decode("ascii")
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.isascii() or text.encode()  # a lone surrogate has no UTF-8
    except (ValueError, TypeError, RecursionError) as error:
        raise _unsendable(header, error) from None
    return text


def _unsendable(header: dict[str, Any], error: Exception) -> WireError:
    try:
        check_value(header, LIMITS)
    except WireError as named:
        return named
    remedy = "Give null, booleans, finite numbers, strings, lists and maps with string keys."
    return WireError(Code.INVALID, f"This cannot be sent ({_line(error)}).", remedy)


def _plain(message: Message) -> tuple[dict[str, Any], list[bytes]]:
    if isinstance(message, Observe) and message.arrays:
        header = message.model_dump(exclude_none=True, exclude={"arrays": {"__all__": {"data"}}})
        return header, [a.data for a in message.arrays]
    return message.model_dump(exclude_none=True), []


def decode_msgpack(parts: Sequence[bytes], limits: Limits = LIMITS) -> Message:
    """The message of the parts. Raises WireError for whatever is none, or too large."""
    if not parts:
        raise WireError(Code.MALFORMED, "A message without parts.", "Send [msgpack header][buffers...].")
    check_size([len(p) for p in parts], limits)
    try:
        header = msgpack.unpackb(
            parts[0],
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_map,
            max_str_len=limits.max_string_bytes,
            max_bin_len=0,
            max_array_len=limits.max_items,
            max_map_len=limits.max_items,
            max_ext_len=0,
        )
    except WireError:
        raise
    except Exception as error:  # msgpack raises many kinds: all mean that this is no header
        limit = "max_depth" if isinstance(error, msgpack.StackError) else None
        limit = limit or next((name for word, name in LENGTHS.items() if f"exceeds {word}" in str(error)), None)
        if limit is not None:
            raise large("the header", limit, getattr(limits, limit)) from None
        raise WireError(
            Code.MALFORMED,
            f"The header is no msgpack map ({_line(error)}).",
            "Send one msgpack map with string keys; strings as UTF-8, arrays' bytes in parts of their own.",
        ) from None
    header = _envelope(header, limits)
    used: set[int] = set()
    for i, entry in enumerate(_arrays(header)):
        part = whole(entry.pop("part", None))
        if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part < len(parts) or part in used:
            raise WireError(
                Code.INVALID,
                f"arrays[{i}].part is {part!r}: no part, or used twice.",
                f"Give the index of its buffer, 1 to {len(parts) - 1}.",
                field=f"arrays[{i}].part",
            )
        used.add(part)
        entry["data"] = bytes(parts[part])
    if len(used) != len(parts) - 1:
        raise WireError(Code.MALFORMED, "A part belongs to no array.", "Name every buffer in `arrays`.")
    return _validate(header)


def decode_json(text: str | bytes, limits: Limits = LIMITS) -> Message:
    """The message of a JSON text. Raises WireError for whatever is none, or too large."""
    check_size([len(text)], limits)
    if isinstance(text, str) and not text.isascii():
        check_size([len(text.encode("utf-8", "replace"))], limits)
    try:
        # NaN and Infinity, which Python's parser takes, are refused with their path below.
        header = json.loads(text if isinstance(text, str) else text.decode(), parse_int=_int, object_pairs_hook=_map)
    except RecursionError:
        raise large("the message", "max_depth", limits.max_depth) from None
    except ValueError as error:
        raise WireError(
            Code.MALFORMED, f"This is no JSON ({_line(error)}).", "Send one JSON object a WebSocket message."
        ) from None
    # The caps on strings are for text; a buffer's size is bounded by the message's.
    arrays = header.get("arrays") if isinstance(header, dict) else None
    encoded: list[Any] = [
        e.pop("base64", None) if isinstance(e, dict) else None for e in (arrays if isinstance(arrays, list) else [])
    ]
    header = _envelope(header, limits)
    for i, entry in enumerate(_arrays(header)):
        try:
            entry["data"] = base64.b64decode(encoded[i], validate=True)
        except (TypeError, ValueError):
            field = f"arrays[{i}].base64"
            remedy = "Give the array's bytes as base64 (RFC 4648, padded, no line breaks)."
            raise WireError(Code.INVALID, f"{field} is no base64.", remedy, field=field) from None
    return _validate(header)


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise WireError(Code.MALFORMED, f"The key {str(twice)[:64]!r} stands twice in one map.", "Write each key once.")
    return found


def _int(digits: str) -> int:
    # Longer ones do not fit 64 bits: any that does not will do, and is refused with its path.
    return int(digits) if len(digits) <= 20 else 1 << 64


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _envelope(header: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise WireError(Code.MALFORMED, f"The header is a {type(header).__name__}, no map.", "Send a map.")
    check_value(header, limits)
    if header.get("type") not in TYPES:
        raise WireError(
            Code.INVALID,
            f"type is {str(header.get('type'))[:40]!r}: no message of protocol {'.'.join(map(str, PROTOCOL))}.",
            f"Use one of {', '.join(TYPES)}.",
            field="type",
        )
    return header


def _arrays(header: dict[str, Any]) -> list[dict[str, Any]]:
    if header["type"] != "observe":
        return []
    arrays = header.get("arrays") or []
    if not isinstance(arrays, list) or not all(isinstance(a, dict) for a in arrays):
        remedy = "Give a list of maps, each with name, dtype, shape and its bytes."
        raise WireError(Code.INVALID, "observe.arrays is no list of maps.", remedy, field="arrays")
    return arrays


def _validate(header: dict[str, Any]) -> Message:
    version = header.get("protocol")
    major = count_of(version[0]) if isinstance(version, list) and version else None
    # Another major version may have another hello: its number alone is read.
    if header["type"] == "hello" and major is not None and major != PROTOCOL[0]:
        raise WireError(
            Code.VERSION,
            f"protocol: major version {major}, but {'.'.join(map(str, PROTOCOL))} is spoken here.",
            f"Use a client of protocol {PROTOCOL[0]}, or a server of protocol {major}.",
            field="protocol",
            t_client_ns=count_of(header.get("t_client_ns"), 1 << 63),
            fatal=True,
        )
    try:
        return ANY.validate_python(header)
    except ValidationError as error:
        failed = error
    stamp = count_of(header.get("t_client_ns"), 1 << 63)
    raise explain(failed, header["type"], count_of(header.get("seq")), stamp)
