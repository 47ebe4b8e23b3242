"""Encode and decode messages: msgpack with raw buffers for ZeroMQ, JSON with base64 for WebSocket.

A ZeroMQ message is `[header][buffer...]`. The header is a msgpack map, in which `arrays[i].part` (for a picture:
`image.part`) is the index of the part with the array's bytes; the header itself is part 0. A JSON message is one text
with the bytes in `arrays[i].base64`. Pickle and msgpack's extension types are not used.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from pydantic import ValidationError

from rtcontrol_client.wire.errors import Code, WireError, wire_error_at
from rtcontrol_client.wire.limits import LIMITS, SUPPORTED_TYPES, Limits, check_size, check_value, size_error
from rtcontrol_client.wire.messages import (
    MESSAGE_ADAPTER,
    MODELS,
    PARTS_FIELDS,
    PROTOCOL,
    Message,
    Observe,
    Picture,
    check_parts,
    is_supported,
    to_count,
    to_integer,
)

OUR_VERSION = ".".join(map(str, PROTOCOL))
MSGPACK_LIMITS = {"max_str_len": "max_string_bytes", "max_array_len": "max_items", "max_map_len": "max_items"}


def encode_msgpack(message: Message) -> list[bytes]:
    """Return the message's parts: the header, then a buffer for each array. Raises WireError for unsupported values."""
    header, buffers = _split_buffers(message)
    for i, (_, entry) in enumerate(_buffer_entries(header)):
        entry["part"] = i + 1
    return [_encode_header(header, msgpack.packb), *buffers]


def encode_json(message: Message) -> str:
    """Return the message as one JSON text. Raises WireError for unsupported values."""
    header, buffers = _split_buffers(message)
    for (_, entry), buffer in zip(_buffer_entries(header), buffers, strict=True):
        entry["base64"] = base64.b64encode(buffer).decode("ascii")
    return str(_encode_header(header, _json_text))


def _json_text(header: dict[str, Any]) -> str:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.isascii() or text.encode()  # raises an error for a lone surrogate, which UTF-8 cannot represent
    return text


def _encode_header(header: dict[str, Any], encode: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return encode(header)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        check_value(header, LIMITS)  # usually raises an error that names the invalid value
        raise WireError(Code.INVALID, f"Encoding failed ({_first_line(error)}).", SUPPORTED_TYPES) from None


def _split_buffers(message: Message) -> tuple[dict[str, Any], list[bytes]]:
    if isinstance(message, Observe) and message.arrays:
        header = message.model_dump(exclude_none=True, exclude={"arrays": {"__all__": {"data"}}})
        return header, [a.data for a in message.arrays]
    if isinstance(message, Picture):
        return message.model_dump(exclude_none=True, exclude={"image": {"data"}}), [message.image.data]
    return message.model_dump(exclude_none=True), []


def decode_msgpack(parts: Sequence[bytes], limits: Limits = LIMITS) -> Message:
    """Decode the parts of a ZeroMQ message. Raises WireError if the message is not valid or too large."""
    if not parts:
        raise WireError(Code.MALFORMED, "The message has no parts.", "Send [msgpack header][buffers...].")
    check_size([len(p) for p in parts], limits)
    sizes = {key: getattr(limits, limit) for key, limit in MSGPACK_LIMITS.items()} | {
        "max_bin_len": 0,
        "max_ext_len": 0,
    }
    try:
        header = msgpack.unpackb(parts[0], raw=False, strict_map_key=True, object_pairs_hook=_to_map, **sizes)
    except WireError:
        raise
    except Exception as error:  # msgpack raises various exceptions for bytes that are not valid
        limit = next((limit for name, limit in MSGPACK_LIMITS.items() if f"exceeds {name}" in str(error)), None)
        if limit is not None or isinstance(error, msgpack.StackError):
            raise size_error("the header", limit or "max_depth", limits) from None
        hint = "Send one msgpack map with string keys, strings as UTF-8, and the bytes of arrays in separate parts."
        raise WireError(Code.MALFORMED, f"The header is not a msgpack map ({_first_line(error)}).", hint) from None
    used: set[int] = set()
    for place, entry in _buffer_entries(_check_header(header, limits)):
        part = to_integer(entry.pop("part", None))
        if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part < len(parts) or part in used:
            field, hint = f"{place}.part", f"Use the index of the part with its bytes, 1 to {len(parts) - 1}."
            problem = f"{field} is {part!r}, which is not the index of a part or is used twice."
            raise WireError(Code.INVALID, problem, hint, field=field)
        used.add(part)
        entry["data"] = bytes(parts[part])
    if len(used) != len(parts) - 1:
        raise WireError(Code.MALFORMED, "No array uses one of the parts.", "List each part in `arrays` or `image`.")
    return _validate_header(header)


def decode_json(text: str | bytes, limits: Limits = LIMITS) -> Message:
    """Decode a JSON message. Raises WireError if the message is not valid or too large."""
    check_size([len(text)], limits)
    if isinstance(text, str) and not text.isascii():
        check_size([len(text.encode("utf-8", "replace"))], limits)
    try:
        # Python's parser accepts NaN and Infinity; `_check_header` then rejects them and names their path.
        text = text if isinstance(text, str) else text.decode()
        header = json.loads(text, parse_int=_parse_int, object_pairs_hook=_to_map)
    except RecursionError:
        raise size_error("the message", "max_depth", limits) from None
    except ValueError as error:
        hint = "Send one JSON object per WebSocket message."
        raise WireError(Code.MALFORMED, f"The message is not JSON ({_first_line(error)}).", hint) from None
    # Remove the base64 texts before the check, because the limit on string lengths does not apply to them.
    arrays, image = (header.get("arrays"), header.get("image")) if isinstance(header, dict) else (None, None)
    entries = [*(arrays if isinstance(arrays, list) else []), image]
    encoded = {id(entry): entry.pop("base64", None) for entry in entries if isinstance(entry, dict)}
    for place, entry in _buffer_entries(_check_header(header, limits)):
        try:
            entry["data"] = base64.b64decode(encoded[id(entry)], validate=True)
        except (TypeError, ValueError):
            field, hint = f"{place}.base64", "Send the bytes as base64 (RFC 4648, padded, no line breaks)."
            raise WireError(Code.INVALID, f"{field} is not base64.", hint, field=field) from None
    return _validate_header(header)


def _to_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise WireError(Code.MALFORMED, f"The key {str(key)[:64]!r} occurs twice in one map.", "Write each key once.")
    return unique


def _parse_int(digits: str) -> int:
    # Replace integers with more than 20 digits by 2^64, which `check_value` rejects with the path of the value.
    return int(digits) if len(digits) <= 20 else 1 << 64


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _check_header(header: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise WireError(Code.MALFORMED, f"The header is a {type(header).__name__}, not a map.", "Send a map.")
    kind = header.get("type")
    try:
        check_value(header, limits)
    except WireError:
        parts_field = PARTS_FIELDS.get(kind) if isinstance(kind, str) else None
        if parts_field is None or not isinstance(header.get(parts_field), list):
            raise
        check_parts(header, parts_field, limits)
    if header.get("type") not in tuple(MODELS):  # a tuple, because the type may not be hashable
        problem = f"type is {str(header.get('type'))[:40]!r}, which is not a message of protocol {OUR_VERSION}."
        raise WireError(Code.INVALID, problem, f"Use one of {', '.join(MODELS)}.", field="type")
    return header


def _buffer_entries(header: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and the map of each header entry whose bytes are sent outside the header."""
    image = header.get("image") if header["type"] == "picture" else None
    if isinstance(image, dict):
        return [("image", image)]
    arrays = header.get("arrays") or [] if header["type"] == "observe" else []
    if not isinstance(arrays, list) or not all(isinstance(array, dict) for array in arrays):
        hint = "Send a list of maps, each with name, dtype, shape and the bytes."
        raise WireError(Code.INVALID, "observe.arrays is not a list of maps.", hint, field="arrays")
    return [(f"arrays[{i}]", array) for i, array in enumerate(arrays)]


def _validate_header(header: dict[str, Any]) -> Message:
    version = header.get("protocol")
    numbers = [to_count(number) for number in version] if isinstance(version, list) else []
    is_hello = header["type"] == "hello"
    stamp_ns = to_count(header.get("t_client_ns"), 1 << 63) if is_hello else None
    try:
        # Check the version before the other fields, because hello may have other fields in another version.
        if is_hello and numbers and None not in numbers and not is_supported(numbers):
            problem = f"protocol: the version is {'.'.join(map(str, numbers))}, but this program uses {OUR_VERSION}."
            hint = f"Use a client of protocol {OUR_VERSION}."
            raise WireError(Code.VERSION, problem, hint, field="protocol", fatal=True)
        return MESSAGE_ADAPTER.validate_python(header)
    except ValidationError as error:
        refusal = to_wire_error(error, header["type"])
    except WireError as error:
        refusal = error
    refusal.seq, refusal.t_client_ns = to_count(header.get("seq")), stamp_ns
    raise refusal


def to_wire_error(error: ValidationError, kind: str) -> WireError:
    """Convert pydantic's error for a message of type `kind` to a WireError, which names the first invalid field."""
    first = error.errors(include_url=False)[0]
    # If pydantic validated the union of all messages, the path starts with the message type, which is removed here.
    steps = first["loc"][1:] if first["loc"][:1] == (kind,) else first["loc"]
    return wire_error_at(first, steps, kind)
