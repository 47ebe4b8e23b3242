"""How sure a share is, and how well confidence agrees with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Z_95 = 1.96
BINS = 15


def wilson(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval for a share (E. B. Wilson, 1927), by default at 95 %; (0, 1) for nothing counted."""
    if count == 0:
        return 0.0, 1.0
    share, spread = successes / count, z * z / count
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def share(right: int, count: int) -> dict[str, Any]:
    """Counts, the share and its 95 % interval, as documents have them; the share of nothing is None."""
    return {
        "right": right,
        "count": count,
        "share": round(right / count, 4) if count else None,
        "wilson_95": [round(edge, 4) for edge in wilson(right, count)],
    }


def calibration(confidence: Sequence[float], right: Sequence[int]) -> dict[str, Any]:
    """Expected calibration error over 15 bins of equal mass, and of each bin (count, mean confidence, share right).

    The bins hold as many decisions each (they differ by one at most), least confident first: Nixon et al., Measuring
    Calibration in Deep Learning (CVPR Workshops 2019). Fewer decisions than bins make a bin each.
    """
    order = np.argsort(np.asarray(confidence), kind="stable")
    sure, hits = np.asarray(confidence, float)[order], np.asarray(right, float)[order]
    bins = [
        (len(a), float(a.mean()), float(b.mean()))
        for a, b in zip(np.array_split(sure, BINS), np.array_split(hits, BINS), strict=True)
        if len(a)
    ]
    total = sum(count for count, _, _ in bins)
    error = sum(count * abs(mean - share) for count, mean, share in bins) / total if total else 0.0
    return {
        "decisions": total,
        "ece": round(error, 4),
        "bins": [[count, round(mean, 4), round(share, 4)] for count, mean, share in bins],
    }
