"""Encode messages as bytes and decode them: msgpack with raw buffers (ZeroMQ), JSON with base64 (WebSocket).

ZeroMQ: `[header][buffer...]`, where the header is a msgpack map; `arrays[i].part` (for a picture: `image.part`) is the
index of the array's buffer among the parts (the header is part 0). JSON: one text with `arrays[i].base64`. Pickle and
extension types are not used. The error for any other input says what to write instead, in the protocol's terms.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from pydantic import ValidationError

from rtcontrol_client.wire.errors import Code, WireError, refusal_of
from rtcontrol_client.wire.limits import LIMITS, PLAIN, Limits, check_size, check_value, large
from rtcontrol_client.wire.messages import (
    ANY,
    MODELS,
    PROTOCOL,
    WITH_PARTS,
    Message,
    Observe,
    Picture,
    check_parts,
    count_of,
    spoken,
    whole,
)

HERE = ".".join(map(str, PROTOCOL))
LENGTHS = {"max_str_len": "max_string_bytes", "max_array_len": "max_items", "max_map_len": "max_items"}


def encode_msgpack(message: Message) -> list[bytes]:
    """Return the message's parts: the header, then one buffer per array. Raises WireError if a value cannot be sent."""
    header, buffers = _plain(message)
    for i, (_, entry) in enumerate(_holders(header)):
        entry["part"] = i + 1
    return [_sendable(header, msgpack.packb), *buffers]


def encode_json(message: Message) -> str:
    """Return the message as one JSON text. Raises WireError if a value cannot be sent."""
    header, buffers = _plain(message)
    for (_, entry), buffer in zip(_holders(header), buffers, strict=True):
        entry["base64"] = base64.b64encode(buffer).decode("ascii")
    return str(_sendable(header, _dumps))


def _dumps(header: dict[str, Any]) -> str:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.isascii() or text.encode()  # a lone surrogate has no UTF-8
    return text


def _sendable(header: dict[str, Any], encode: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return encode(header)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        check_value(header, LIMITS)  # raises an error that names the value, if possible
        raise WireError(Code.INVALID, f"This cannot be sent ({_line(error)}).", PLAIN) from None


def _plain(message: Message) -> tuple[dict[str, Any], list[bytes]]:
    if isinstance(message, Observe) and message.arrays:
        header = message.model_dump(exclude_none=True, exclude={"arrays": {"__all__": {"data"}}})
        return header, [a.data for a in message.arrays]
    if isinstance(message, Picture):
        return message.model_dump(exclude_none=True, exclude={"image": {"data"}}), [message.image.data]
    return message.model_dump(exclude_none=True), []


def decode_msgpack(parts: Sequence[bytes], limits: Limits = LIMITS) -> Message:
    """Return the message in the parts. Raises WireError if they are no valid message, or too large."""
    if not parts:
        raise WireError(Code.MALFORMED, "The message has no parts.", "Send [msgpack header][buffers...].")
    check_size([len(p) for p in parts], limits)
    most = {name: getattr(limits, limit) for name, limit in LENGTHS.items()} | {"max_bin_len": 0, "max_ext_len": 0}
    try:
        header = msgpack.unpackb(parts[0], raw=False, strict_map_key=True, object_pairs_hook=_map, **most)
    except WireError:
        raise
    except Exception as error:  # msgpack raises many kinds, which all mean that this is not a header
        limit = next((limit for name, limit in LENGTHS.items() if f"exceeds {name}" in str(error)), None)
        if limit is not None or isinstance(error, msgpack.StackError):
            raise large("the header", limit or "max_depth", limits) from None
        hint = "Send one msgpack map with string keys; strings as UTF-8, the bytes of arrays in separate parts."
        raise WireError(Code.MALFORMED, f"The header is not a msgpack map ({_line(error)}).", hint) from None
    used: set[int] = set()
    for place, entry in _holders(_checked(header, limits)):
        part = whole(entry.pop("part", None))
        if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part < len(parts) or part in used:
            field, remedy = f"{place}.part", f"Give the index of its buffer, 1 to {len(parts) - 1}."
            text = f"{field} is {part!r}, which is not a part, or is used twice."
            raise WireError(Code.INVALID, text, remedy, field=field)
        used.add(part)
        entry["data"] = bytes(parts[part])
    if len(used) != len(parts) - 1:
        raise WireError(Code.MALFORMED, "A part belongs to no array.", "Name every buffer in `arrays` or `image`.")
    return _validated(header)


def decode_json(text: str | bytes, limits: Limits = LIMITS) -> Message:
    """Return the message in a JSON text. Raises WireError if it is not a valid message, or too large."""
    check_size([len(text)], limits)
    if isinstance(text, str) and not text.isascii():
        check_size([len(text.encode("utf-8", "replace"))], limits)
    try:
        # Python's parser accepts NaN and Infinity, which are refused with their path below.
        header = json.loads(text if isinstance(text, str) else text.decode(), parse_int=_int, object_pairs_hook=_map)
    except RecursionError:
        raise large("the message", "max_depth", limits) from None
    except ValueError as error:
        hint = "Send one JSON object per WebSocket message."
        raise WireError(Code.MALFORMED, f"This is not JSON ({_line(error)}).", hint) from None
    # The limits on strings are for text; the size of a buffer is limited by that of the message.
    arrays, image = (header.get("arrays"), header.get("image")) if isinstance(header, dict) else (None, None)
    entries = [*(arrays if isinstance(arrays, list) else []), image]
    encoded = {id(entry): entry.pop("base64", None) for entry in entries if isinstance(entry, dict)}
    for place, entry in _holders(_checked(header, limits)):
        try:
            entry["data"] = base64.b64decode(encoded[id(entry)], validate=True)
        except (TypeError, ValueError):
            field, remedy = f"{place}.base64", "Give the bytes as base64 (RFC 4648, padded, no line breaks)."
            raise WireError(Code.INVALID, f"{field} is not base64.", remedy, field=field) from None
    return _validated(header)


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise WireError(Code.MALFORMED, f"The key {str(twice)[:64]!r} occurs twice in one map.", "Write each key once.")
    return unique


def _int(digits: str) -> int:
    # Longer integers do not fit 64 bits: return any that does not, which is then refused with its path.
    return int(digits) if len(digits) <= 20 else 1 << 64


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _checked(header: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise WireError(Code.MALFORMED, f"The header is a {type(header).__name__}, not a map.", "Send a map.")
    kind = header.get("type")
    try:
        check_value(header, limits)
    except WireError:
        parts = WITH_PARTS.get(kind) if isinstance(kind, str) else None
        if parts is None or not isinstance(header.get(parts), list):
            raise
        check_parts(header, parts, limits)
    if header.get("type") not in tuple(MODELS):  # the type may be unhashable
        what = f"type is {str(header.get('type'))[:40]!r}, which is not a message of protocol {HERE}."
        raise WireError(Code.INVALID, what, f"Use one of {', '.join(MODELS)}.", field="type")
    return header


def _holders(header: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the maps whose bytes travel outside of the header, each with its place in the header."""
    image = header.get("image") if header["type"] == "picture" else None
    if isinstance(image, dict):
        return [("image", image)]
    arrays = header.get("arrays") or [] if header["type"] == "observe" else []
    if not isinstance(arrays, list) or not all(isinstance(array, dict) for array in arrays):
        remedy = "Give a list of maps, each with name, dtype, shape and its bytes."
        raise WireError(Code.INVALID, "observe.arrays is not a list of maps.", remedy, field="arrays")
    return [(f"arrays[{i}]", array) for i, array in enumerate(arrays)]


def _validated(header: dict[str, Any]) -> Message:
    version = header.get("protocol")
    numbers = [count_of(number) for number in version] if isinstance(version, list) else []
    greets = header["type"] == "hello"
    stamp_ns = count_of(header.get("t_client_ns"), 1 << 63) if greets else None
    try:
        # Another version may have another hello, so read only the version number.
        if greets and numbers and None not in numbers and not spoken(numbers):
            what = f"protocol: the version is {'.'.join(map(str, numbers))}, but this program speaks {HERE}."
            remedy = f"Use a client of protocol {HERE}."
            raise WireError(Code.VERSION, what, remedy, field="protocol", fatal=True)
        return ANY.validate_python(header)
    except ValidationError as error:
        refusal = explain(error, header["type"])
    except WireError as error:
        refusal = error
    refusal.seq, refusal.t_client_ns = count_of(header.get("seq")), stamp_ns
    raise refusal


def explain(error: ValidationError, kind: str) -> WireError:
    """Return the error to refuse a message of type `kind` with, which names the first wrong field."""
    first = error.errors(include_url=False)[0]
    # In the union of all messages the first step is the message type.
    steps = first["loc"][1:] if first["loc"][:1] == (kind,) else first["loc"]
    return refusal_of(first, steps, kind)
