"""Check that a received message is within the size limits, before its fields are validated."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rtcontrol_client.wire.errors import Code, WireError


@dataclass(frozen=True, slots=True)
class Limits:
    """The size limits for one message, which the welcome message announces. String lengths are in bytes of UTF-8."""

    max_parts: int = 8
    max_message_bytes: int = 1 << 20
    max_depth: int = 16
    max_string_bytes: int = 1 << 16
    max_items: int = 4096
    max_total_items: int = 16_384

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


LIMITS = Limits()
SUPPORTED_TYPES = "Send null, booleans, numbers, strings, lists and maps; raw bytes go into separate parts."


def check_size(sizes: list[int], limits: Limits) -> None:
    """Raise WireError (too_large) if a message with parts of these sizes, in bytes, exceeds the limits."""
    if len(sizes) > limits.max_parts:
        raise too_large(f"a message of {len(sizes)} parts", "max_parts", limits)
    if sum(sizes) > limits.max_message_bytes:
        raise too_large(f"a message of {sum(sizes)} bytes", "max_message_bytes", limits)


def check_value(root: Any, limits: Limits) -> int:
    """Return the number of items in a decoded value. Raises WireError, with the path of the value, if the value exceeds
    a limit, a number is not finite, an integer does not fit 64 bits, or a map key is not a string."""
    stack: list[tuple[Any, str, int]] = [(root, "", 1)]
    total = 0
    while stack:
        value, path, depth = stack.pop()
        if isinstance(value, str):
            _check_string(value, path, limits)
        elif isinstance(value, int):  # also a boolean
            if not -(1 << 63) <= value < 1 << 64:
                problem = f"{path}: an integer beyond 64 bits."
                raise WireError(Code.INVALID, problem, "Send a smaller integer.", field=path)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise WireError(Code.INVALID, f"{path}: {value} is not finite.", "Send a finite number.", field=path)
        elif isinstance(value, (dict, list)):
            total += len(value)
            if depth > limits.max_depth:
                raise too_large(f"{path}: nesting deeper than {limits.max_depth}", "max_depth", limits, path)
            if len(value) > limits.max_items:
                raise too_large(f"{path}: {len(value)} items", "max_items", limits, path)
            if total > limits.max_total_items:
                raise too_large("the total number of items in the message", "max_total_items", limits)
            if isinstance(value, list):
                stack.extend((v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value) if not _is_valid(v, limits))
                continue
            for key, inner in value.items():
                if not isinstance(key, str):
                    text = f"{path or 'header'}: a map key is not a string."
                    raise WireError(Code.MALFORMED, text, "Use string keys.")
                if not _is_valid(key, limits):
                    _check_string(key, path, limits)
                if not _is_valid(inner, limits):
                    stack.append((inner, f"{path}.{key[:40]}" if path else key[:40], depth + 1))
        elif value is not None:
            problem = f"{path}: a value of type {type(value).__name__}."
            raise WireError(Code.MALFORMED, problem, SUPPORTED_TYPES, field=path)
    return total


def _is_valid(value: Any, limits: Limits) -> bool:
    """Return whether a value is certainly valid, so that `check_value` can skip the slower checks."""
    if isinstance(value, str):
        return 4 * len(value) <= limits.max_string_bytes and value.isascii()
    return value is None or isinstance(value, bool)


def _check_string(text: str, path: str, limits: Limits) -> None:
    # A character has at most four bytes, so only long strings need to be encoded to get their size.
    if 4 * len(text) > limits.max_string_bytes and len(text.encode("utf-8", "replace")) > limits.max_string_bytes:
        raise too_large(f"{path}: a string of {len(text)} characters", "max_string_bytes", limits, path)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise WireError(Code.MALFORMED, f"{path}: a lone surrogate.", "Send valid Unicode.", field=path)


def too_large(subject: str, limit: str, limits: Limits, path: str | None = None) -> WireError:
    """Return the error for a message in which `subject` exceeds the limit with the name `limit`."""
    problem = f"{subject}: above the limit {limit} = {getattr(limits, limit)}."
    return WireError(Code.TOO_LARGE, problem, "Send a smaller message.", field=path)
