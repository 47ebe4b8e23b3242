"""What each gate threshold would hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)


def sweep(sure: dict[str, Sequence[float]], gate: float = 0.0) -> Iterator[tuple[float, dict[str, int]]]:
    """At each threshold (and at the `gate`) how many of each list of sentences would be held: their confidence in the
    first second is below it."""
    for threshold in sorted({*THRESHOLDS, *([gate] if gate else [])}):
        yield threshold, {name: sum(one < threshold for one in listed) for name, listed in sure.items()}
