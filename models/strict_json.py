"""JSON alone: Python takes NaN for a number, reads 1e400 as infinity, and of two values of one key takes the last."""

from __future__ import annotations

import json
import math
from typing import Any


def strict_json(text: str) -> Any:
    """Its value. Raises ValueError for what JSON does not have, and for a key that stands twice in one object."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=each_once)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these. Raises ValueError for a key that stands twice: others take the first value, or the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text} is no JSON number, or too large")
    return found
