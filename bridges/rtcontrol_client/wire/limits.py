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
# The position of a value in a message: a pair (path of the map or list that contains it, its key or index).
Path = tuple[Any, str | int] | None
SUPPORTED_TYPES = "Send null, booleans, numbers, strings, lists and maps; raw bytes go into separate parts."


def check_size(sizes: list[int], limits: Limits) -> None:
    """Raise WireError (too_large) if a message with parts of these sizes, in bytes, exceeds the limits."""
    if len(sizes) > limits.max_parts:
        raise size_error(f"a message of {len(sizes)} parts", "max_parts", limits)
    if sum(sizes) > limits.max_message_bytes:
        raise size_error(f"a message of {sum(sizes)} bytes", "max_message_bytes", limits)


def check_value(root: Any, limits: Limits) -> int:
    """Return the number of items in a decoded value. Raises WireError with the path of a value that exceeds a limit,
    is not a finite number, is an integer beyond 64 bits, or has a map key that is not a string."""
    if not isinstance(root, (dict, list)):
        _check_scalar(root, None, limits)
        return 0
    total = 0
    stack: list[tuple[Any, Path, int]] = [(root, None, 1)]
    while stack:
        value, path, depth = stack.pop()
        total += len(value)
        if depth > limits.max_depth:
            raise size_error(f"{_path_text(path)}: nesting deeper than {limits.max_depth}", "max_depth", limits, path)
        if len(value) > limits.max_items:
            raise size_error(f"{_path_text(path)}: {len(value)} items", "max_items", limits, path)
        if total > limits.max_total_items:
            raise size_error("the total number of items in the message", "max_total_items", limits)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    text = f"{_path_text(path) or 'header'}: a map key is not a string."
                    raise WireError(Code.MALFORMED, text, "Use string keys.")
                _check_scalar(key, path, limits)
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(inner, (dict, list)):
                if inner or depth == limits.max_depth:
                    stack.append((inner, (path, step), depth + 1))
            elif inner is not None:
                _check_scalar(inner, (path, step), limits)
    return total


def _check_scalar(value: Any, path: Path, limits: Limits) -> None:
    if isinstance(value, str):
        # A character has at most four bytes, so shorter strings need not be encoded to check their size.
        if 4 * len(value) > limits.max_string_bytes and len(value.encode("utf-8", "replace")) > limits.max_string_bytes:
            problem = f"{_path_text(path)}: a string of {len(value)} characters"
            raise size_error(problem, "max_string_bytes", limits, path)
        if not value.isascii() and not _is_unicode(value):
            raise _refusal(Code.MALFORMED, path, "a lone surrogate", "Send valid Unicode.")
    elif isinstance(value, int):  # a bool is an int, too
        if not -(1 << 63) <= value < 1 << 64:
            raise _refusal(Code.INVALID, path, "an integer beyond 64 bits", "Send a smaller integer.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refusal(Code.INVALID, path, f"{value} is not finite", "Send a finite number.")
    elif value is not None:
        raise _refusal(Code.MALFORMED, path, f"a value of type {type(value).__name__}", SUPPORTED_TYPES)


def _is_unicode(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _path_text(path: Path) -> str:
    """Return a path as text, such as `data.x[1]`."""
    if path is None:
        return ""
    before, step = _path_text(path[0]), path[1]
    return f"{before}[{step}]" if isinstance(step, int) else f"{before}.{step[:200]}".lstrip(".")


def _refusal(code: Code, path: Path, problem: str, hint: str) -> WireError:
    text = _path_text(path)
    return WireError(code, f"{text}: {problem}.", hint, field=text)


def size_error(subject: str, limit: str, limits: Limits, path: Path = None) -> WireError:
    """Return the error for a message in which `subject` exceeds the limit named `limit`."""
    problem = f"{subject}: above the limit {limit} = {getattr(limits, limit)}."
    return WireError(Code.TOO_LARGE, problem, "Send a smaller message.", field=_path_text(path) or None)
