"""Whether confidence means anything: how often what was decided with so much of it was right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BINS = 15


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
