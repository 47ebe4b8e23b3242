"""How long answers took, by the paper's protocol: so many requests first whose times are not kept, then one after the
other, each from its request to the whole answer (appendix "Latency Measurement Methodology")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

WARM_UP = 5
PERCENTS = (50, 90, 95, 99)


def latency(ms: Sequence[float]) -> dict[str, Any]:
    """Percentiles (each a time that was measured: the least that so many per cent are not above), mean and greatest, in
    milliseconds; `hz` is the rate that the median allows. All None of nothing."""
    names = [f"p{percent}" for percent in PERCENTS]
    if not len(ms):
        return {"count": 0, **dict.fromkeys((*names, "mean", "max", "hz"))}
    found = np.percentile(np.asarray(ms, float), PERCENTS, method="inverted_cdf")
    return {
        "count": len(ms),
        **{name: round(float(value), 3) for name, value in zip(names, found, strict=True)},
        "mean": round(float(np.mean(ms)), 3),
        "max": round(float(np.max(ms)), 3),
        "hz": round(1e3 / float(found[0]), 2) if found[0] > 0 else None,
    }


def curve(ms: Sequence[float]) -> list[list[float]]:
    """[per cent, milliseconds] at every per cent, for a chart; empty of nothing."""
    percents = range(1, 101)
    found = np.percentile(np.asarray(ms, float), percents, method="inverted_cdf") if len(ms) else ()
    return [[percent, round(float(value), 3)] for percent, value in zip(percents, found, strict=False)]
