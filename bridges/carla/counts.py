"""What a driver did, in numbers that only grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Counts:
    """`emergencies`, `bends` and `beyond_limits` count beginnings, not steps.

    `bends`: slowed because the call's speed was too much for the way ahead. `beyond_limits`: the lateral acceleration
    passed what the steering keeps to. `lights`: emergencies before a stop line. `unfit`: steps whose figures were not
    numbers, answered by braking.
    `fallbacks`: junctions where the lane did not allow the turn that was called.
    """

    steps: int = 0
    calls: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    emergencies: int = 0
    lights: int = 0
    bends: int = 0
    lane_changes: int = 0
    lane_changes_given_up: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    fallbacks: int = 0
    distance_m: float = 0.0
    top_kmh: float = 0.0
    beyond_limits: int = 0
    unfit: int = 0

    def report(self) -> dict[str, Any]:
        """As plain values."""
        values = asdict(self)
        return values | {"refused": dict(self.refused), "ways": dict(self.ways)}
