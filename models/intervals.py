"""Compute confidence intervals of proportions."""

from __future__ import annotations

import math
from typing import Any

Z_95 = 1.96


def wilson_interval(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's score interval of successes / count (E. B. Wilson, 1927), by default at 95 %; (0, 1) if `count`
    is 0."""
    if count == 0:
        return 0.0, 1.0
    share, spread = successes / count, z * z / count
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def share_of_right(right: int, count: int) -> dict[str, Any]:
    """Return a dict for JSON with the counts, the share of right results and its 95 % interval. The share is None if
    `count` is 0."""
    return {
        "right": right,
        "count": count,
        "share": round(right / count, 4) if count else None,
        "wilson_95": [round(edge, 4) for edge in wilson_interval(right, count)],
    }
