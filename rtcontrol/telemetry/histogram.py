"""Count durations in a histogram of fixed size, for reports and /metrics."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable

# The buckets range from 0.1 microseconds to 1,000 seconds. Each bound is 0.5 % above the previous bound.
LEAST_MS, MOST_MS = 1e-4, 1e6
STEP = math.log(1.005)
BUCKETS = math.ceil(math.log(MOST_MS / LEAST_MS) / STEP) + 1
# Bounds in seconds of the buckets that /metrics exports for Prometheus.
BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_BOUNDS_MS = tuple(1e3 * bound for bound in BOUNDS_S)
PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}


class Histogram:
    """A histogram of durations in ms. Its percentiles are accurate to 0.25 %; `count`, `total`, `maximum` are exact."""

    __slots__ = ("_buckets", "bins", "count", "maximum", "total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._buckets = array("I", bytes(4 * BUCKETS))
        self.bins = [0] * (len(BOUNDS_S) + 1)  # one count per bound of BOUNDS_S, and one for larger values
        self.count, self.total, self.maximum = 0, 0.0, 0.0
        for value in values:
            self.add(value)

    def add(self, ms: float) -> None:
        self.count += 1
        self.total += ms
        self.maximum = max(self.maximum, ms)
        i = 0 if ms <= LEAST_MS else round(math.log(ms / LEAST_MS) / STEP)
        self._buckets[min(i, BUCKETS - 1)] += 1
        self.bins[bisect_left(_BOUNDS_MS, ms)] += 1

    def percentile(self, percent: float) -> float:
        """Return a percentile in ms, such as the median for `percent` 50. Raises ValueError if there are no values."""
        if not self.count:
            raise ValueError("no values")
        rank, below = math.ceil(self.count * percent / 100.0), 0
        for i, n in enumerate(self._buckets):
            below += n
            if below >= rank:
                return min(self.maximum, 0.0 if i == 0 else LEAST_MS * math.exp(i * STEP))
        raise AssertionError("unreachable: every value is in a bucket")

    def summary(self) -> dict[str, float | None]:
        """Return a dict with p50, p90, p99, p99_9, max and mean in ms; all are None if there are no values."""
        if not self.count:
            return dict.fromkeys((*PERCENTS, "max", "mean"))
        percentiles = {name: round(self.percentile(percent), 4) for name, percent in PERCENTS.items()}
        return {**percentiles, "max": round(self.maximum, 4), "mean": round(self.total / self.count, 4)}
