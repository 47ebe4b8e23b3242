"""Messages to bytes and back: msgpack with raw buffers (ZeroMQ), JSON with base64 (WebSocket).

ZeroMQ: `[header][buffer...]`, the header a msgpack map; `arrays[i].part` is the index of its buffer among the parts
(the header is part 0). JSON: one text, `arrays[i].base64`. No pickle, no extension types.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import msgpack
from pydantic import ValidationError

from rtcontrol.bridges.wire.errors import Code, WireError
from rtcontrol.bridges.wire.limits import LIMITS, Limits, check_size, check_value
from rtcontrol.bridges.wire.messages import ANY, TYPES, Message, Observe


def encode_msgpack(message: Message) -> list[bytes]:
    """The message's parts: header, then one buffer an array."""
    header, buffers = _plain(message)
    for i, entry in enumerate(header.get("arrays", ())):
        entry["part"] = i + 1
    return [msgpack.packb(header), *buffers]


def encode_json(message: Message) -> str:
    """The message as one JSON text."""
    header, buffers = _plain(message)
    for entry, buffer in zip(header.get("arrays", ()), buffers, strict=False):
        entry["base64"] = base64.b64encode(buffer).decode("ascii")
    return json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(message: Message) -> tuple[dict[str, Any], list[bytes]]:
    buffers: list[bytes] = []
    if isinstance(message, Observe) and message.arrays:
        header = message.model_dump(exclude_none=True, exclude={"arrays": {"__all__": {"data"}}})
        buffers = [a.data for a in message.arrays]
    else:
        header = message.model_dump(exclude_none=True)
    return header, buffers


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
            max_str_len=limits.max_string_bytes,
            max_bin_len=0,
            max_array_len=limits.max_items,
            max_map_len=limits.max_items,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises many kinds: all mean that this is no header
        raise WireError(
            Code.MALFORMED,
            f"The header is no msgpack map ({_line(error)}).",
            "Send one msgpack map with string keys; strings as UTF-8, arrays' bytes in parts of their own.",
        ) from None
    header = _envelope(header, limits)
    used: set[int] = set()
    for i, entry in enumerate(_arrays(header)):
        part = entry.pop("part", None)
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
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "replace"))
    check_size([size], limits)
    try:
        header = json.loads(text, parse_constant=_constant)
    except WireError:
        raise
    except (ValueError, RecursionError) as error:
        raise WireError(
            Code.MALFORMED, f"This is no JSON ({_line(error)}).", "Send one JSON object a WebSocket message."
        ) from None
    arrays = header.get("arrays") if isinstance(header, dict) else None
    # The caps on strings are for text; a buffer's size is bounded by the message's.
    encoded = (
        [e.pop("base64", None) if isinstance(e, dict) else None for e in arrays] if isinstance(arrays, list) else []
    )
    header = _envelope(header, limits)
    for i, (entry, data) in enumerate(zip(_arrays(header), encoded, strict=True)):
        try:
            entry["data"] = base64.b64decode(data, validate=True)
        except (TypeError, ValueError, binascii.Error):
            field = f"arrays[{i}].base64"
            raise WireError(Code.INVALID, f"{field} is no base64.", "Use RFC 4648, padded.", field=field) from None
    return _validate(header)


def _constant(name: str) -> NoReturn:
    raise WireError(Code.INVALID, f"{name} is not finite.", "Send a finite number.")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _envelope(header: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise WireError(Code.MALFORMED, f"The header is a {type(header).__name__}, no map.", "Send a map.")
    check_value(header, limits)
    if header.get("type") not in TYPES:
        raise WireError(
            Code.INVALID,
            f"type is {str(header.get('type'))[:40]!r}: no message of protocol 1.0.",
            f"Use one of {', '.join(TYPES)}.",
            field="type",
        )
    return header


def _arrays(header: dict[str, Any]) -> list[dict[str, Any]]:
    arrays = header.get("arrays") or []
    if header["type"] != "observe":
        return []
    if not isinstance(arrays, list) or not all(isinstance(a, dict) for a in arrays):
        raise WireError(Code.INVALID, "arrays is no list of maps.", "See `observe`.", field="arrays")
    return arrays


def _validate(header: dict[str, Any]) -> Message:
    kind = header["type"]
    # Null is absent.
    present = {k: v for k, v in header.items() if v is not None}
    try:
        return ANY.validate_python(present)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = [str(p) for p in first["loc"] if p != kind]
        field = ".".join(where) or "type"
        seq = header.get("seq")
        known = isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq < 1 << 53
        raise WireError(
            Code.INVALID,
            f"{kind}.{field}: {first['msg']}.",
            f"See `{kind}` in docs/protocol.md.",
            field=field[:200],
            seq=seq if known else None,
        ) from None
