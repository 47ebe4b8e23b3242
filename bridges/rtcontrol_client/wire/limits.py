"""The size limits of a message, which are checked before the message is parsed further."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rtcontrol_client.wire.errors import Code, WireError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one message, as sent in the welcome. Lengths of strings are in bytes of UTF-8.

    Numbers must be finite, integers must fit 64 bits, and map keys must be strings.
    """

    max_parts: int = 8
    max_message_bytes: int = 1 << 20
    max_depth: int = 16
    max_string_bytes: int = 1 << 16
    max_items: int = 4096
    max_total_items: int = 16_384

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


LIMITS = Limits()
PLAIN = "Send null, booleans, numbers, strings, lists and maps; raw bytes go into separate parts."


def check_size(sizes: list[int], limits: Limits) -> None:
    """Check the parts' sizes in bytes, header first. Raises WireError TOO_LARGE."""
    if len(sizes) > limits.max_parts:
        raise large(f"a message of {len(sizes)} parts", "max_parts", limits)
    if sum(sizes) > limits.max_message_bytes:
        raise large(f"a message of {sum(sizes)} bytes", "max_message_bytes", limits)


def check_value(root: Any, limits: Limits) -> int:
    """Check depth, lengths, item counts, finite numbers and key types of a decoded value, without recursion.

    Returns the number of items. Raises WireError that names the path.
    """
    stack: list[tuple[Any, str, int]] = [(root, "", 1)]
    total = 0
    while stack:
        value, path, depth = stack.pop()
        if isinstance(value, str):
            _check_string(value, path, limits)
        elif isinstance(value, int):  # also a boolean
            if not -(1 << 63) <= value < 1 << 64:
                raise WireError(Code.INVALID, f"{path}: an integer beyond 64 bits.", "Send a smaller one.", field=path)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise WireError(Code.INVALID, f"{path}: {value} is not finite.", "Send a finite number.", field=path)
        elif isinstance(value, (dict, list)):
            total += len(value)
            if depth > limits.max_depth:
                raise large(f"{path}: nesting deeper than {limits.max_depth}", "max_depth", limits, path)
            if len(value) > limits.max_items:
                raise large(f"{path}: {len(value)} items", "max_items", limits, path)
            if total > limits.max_total_items:
                raise large("the message's items together", "max_total_items", limits)
            if isinstance(value, list):
                stack.extend((v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value) if not _plain(v, limits))
                continue
            for key, inner in value.items():
                if not isinstance(key, str):
                    text = f"{path or 'header'}: a map key is not a string."
                    raise WireError(Code.MALFORMED, text, "Use string keys.")
                if not _plain(key, limits):
                    _check_string(key, path, limits)
                if not _plain(inner, limits):
                    stack.append((inner, f"{path}.{key[:40]}" if path else key[:40], depth + 1))
        elif value is not None:
            raise WireError(Code.MALFORMED, f"{path}: a value of type {type(value).__name__}.", PLAIN, field=path)
    return total


def _plain(value: Any, limits: Limits) -> bool:
    """Return whether a value is valid at any place, so that its path need not be built. Most values are."""
    if isinstance(value, str):
        return 4 * len(value) <= limits.max_string_bytes and value.isascii()
    return value is None or isinstance(value, bool)


def _check_string(text: str, path: str, limits: Limits) -> None:
    # A character has at most four bytes: only strings near the limit need to be encoded.
    if 4 * len(text) > limits.max_string_bytes and len(text.encode("utf-8", "replace")) > limits.max_string_bytes:
        raise large(f"{path}: a string of {len(text)} characters", "max_string_bytes", limits, path)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise WireError(Code.MALFORMED, f"{path}: a lone surrogate.", "Send valid Unicode.", field=path)


def large(what: str, name: str, limits: Limits, path: str | None = None) -> WireError:
    """Return the refusal of a message in which `what` exceeds the limit `name`."""
    what = f"{what}: above the limit {name} = {getattr(limits, name)}."
    return WireError(Code.TOO_LARGE, what, "Send less.", field=path)
