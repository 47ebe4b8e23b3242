"""The clock of ages, lifetimes and holds. It counts on while the machine is suspended, which CLOCK_MONOTONIC does not.

Users' instants are by `time.monotonic_ns()`; they are converted where they are passed in or out.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # macOS counts in CLOCK_MONOTONIC


def now_ns() -> int:
    """Return the nanoseconds since the machine started, or on Windows by `time.monotonic_ns()`."""
    return time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)


def now_s() -> float:
    """Return `now_ns` in seconds."""
    return now_ns() / 1e9


def from_monotonic(t_ns: int) -> int:
    """Convert an instant of `time.monotonic_ns()` to this clock, by its age."""
    age_ns = time.monotonic_ns() - t_ns
    return now_ns() - age_ns


def to_monotonic(t_ns: int) -> int:
    """Convert an instant of this clock to `time.monotonic_ns()`, by its age."""
    age_ns = now_ns() - t_ns
    return time.monotonic_ns() - age_ns
