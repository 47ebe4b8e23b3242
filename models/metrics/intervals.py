"""How sure a share is, and the difference of two shares of the same samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLED = 10_000
Z_95 = 1.96


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


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the same samples: right in `both`, in one `only_a`, `only_b`, in `neither`. `difference` is the share
    of b less that of a, `low` and `high` its 95 % interval, `p` of McNemar's exact test."""

    both: int
    only_a: int
    only_b: int
    neither: int
    difference: float
    low: float
    high: float
    p: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(a: Sequence[bool], b: Sequence[bool], seed: int = 0) -> Paired:
    """Of outcomes of the same samples in the same order: the interval by the bootstrap over samples (percentiles of
    10,000 resamples), the test by the samples that one alone got right (Q. McNemar, 1947; exact, two-sided)."""
    assert len(a) == len(b), f"{len(a)} outcomes and {len(b)}"
    both, only_a, only_b, neither = _counts(a, b)
    total = len(a)
    if not total:
        return Paired(0, 0, 0, 0, 0.0, -1.0, 1.0, 1.0)
    # A resample of samples is a multinomial draw of the four kinds.
    shares = np.array([both, only_a, only_b, neither]) / total
    drawn = np.random.default_rng(seed).multinomial(total, shares, RESAMPLED)
    low, high = np.percentile((drawn[:, 2] - drawn[:, 1]) / total, [2.5, 97.5])
    difference = (only_b - only_a) / total
    return Paired(both, only_a, only_b, neither, difference, float(low), float(high), mcnemar(only_a, only_b))


def mcnemar(only_a: int, only_b: int) -> float:
    """How likely so uneven a split is where either run is as likely to be the one that is right."""
    total, least = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(total, k) for k in range(least + 1))
    return min(1.0, 2 * tail / 2**total)


def _counts(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int, int, int]:
    """Of samples right in both, in a alone, in b alone, in neither."""
    found = Counter((bool(x), bool(y)) for x, y in zip(a, b, strict=True))
    return found[True, True], found[True, False], found[False, True], found[False, False]


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
