"""How many replicas there should be. Serve's controller gets this module by value: it imports nothing of ours."""

from __future__ import annotations

import math
from typing import Any

# The part of a decoder's time that is planned for: three quarters of the default --busy-max.
TARGET = 0.6


def replicas_for(context: Any) -> tuple[int, dict[str, Any]]:
    """Return as many replicas as keep each decoder's busy share at TARGET. Serve applies bounds and delays."""
    shares = (context.aggregated_metrics or {}).get("busy", {})
    return max(1, math.ceil(sum(shares.values()) / TARGET - 1e-9)), {}
