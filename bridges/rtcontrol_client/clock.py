"""The clock for ages and times-to-live. Unlike CLOCK_MONOTONIC, it also runs while the machine is suspended.

Users pass and get times of `time.monotonic_ns()`, which are converted to and from this clock.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # macOS has no CLOCK_BOOTTIME


def now_ns() -> int:
    """Return the time in nanoseconds since the machine started; on Windows, `time.monotonic_ns()`."""
    return time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)


def now_s() -> float:
    """Return the time of this clock in seconds."""
    return now_ns() / 1e9


def from_monotonic(t_ns: int) -> int:
    """Convert a time of `time.monotonic_ns()` to this clock, so that its age is the same by both clocks."""
    age_ns = time.monotonic_ns() - t_ns
    return now_ns() - age_ns


def to_monotonic(t_ns: int) -> int:
    """Convert a time of this clock to `time.monotonic_ns()`, so that its age is the same by both clocks."""
    age_ns = now_ns() - t_ns
    return time.monotonic_ns() - age_ns
