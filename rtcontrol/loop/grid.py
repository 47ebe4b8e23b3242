"""Compute the release (scheduled start) of the next tick, in real time (WallGrid) or after a world step (StepGrid).

If a grid is `enforced`, a tick ends at its deadline; otherwise a late tick is counted as a miss, but continues.
`waits`: no release is due while the decoder restarts. `world_ns` returns the world's time, in which the hold limit of a
call is measured. Instants are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from typing import Literal

LEAD_NS = 1_000_000  # time from `start` to the first release (number 0)


class WallGrid:
    """A grid for a world that does not wait for the controller: releases r_k = t0 + k * period, deadlines enforced.

    If the loop is late by whole periods, the grid skips the missed releases, and keeps the phase of later releases.
    """

    enforced, waits = True, False

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self._t0_ns = self.next_release_ns = self._next = 0

    def start(self, now_ns: int) -> tuple[int, int]:
        """Set the first release. Return its instant, and the world's time at that instant."""
        self._t0_ns = self.next_release_ns = now_ns + min(LEAD_NS, self.period_ns)
        return self._t0_ns, self._t0_ns

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self.next_release_ns

    def start_release(self, now_ns: int) -> tuple[int, int, int]:
        """Start the newest due release (r_k <= now < r_k + period). Return its index k, its instant r_k, and the number
        of skipped releases before it. Raises ValueError if no release is due."""
        late_ns = now_ns - self.next_release_ns
        if late_ns < 0:
            raise ValueError(f"release {self._next} is due only in {-late_ns} ns")
        skipped = late_ns // self.period_ns
        k = self._next + skipped
        release_ns = self._t0_ns + k * self.period_ns
        self._next, self.next_release_ns = k + 1, release_ns + self.period_ns
        return k, release_ns, skipped

    def world_ns(self, now_ns: int) -> int:
        return now_ns

    def record_advance(self, due_ns: int | None) -> None:
        raise AssertionError("the world runs by itself")


class StepGrid:
    """A grid for a world that waits for the controller. A release is due when the previous tick has its result, and the
    world has advanced by a period (lockstep) or an observation has arrived (arrival). A late decision counts as a miss,
    but its call still acts. The world's time is the number of releases times the period."""

    enforced = False
    next_release_ns = 0

    def __init__(self, period_ns: int, by: Literal["lockstep", "arrival"]) -> None:
        self.period_ns = period_ns
        self.waits = by == "lockstep"
        self._k = -1
        self.due_ns: int | None = None

    def start(self, now_ns: int) -> tuple[int, int]:
        self._k = -1
        self.due_ns = now_ns if self.waits else None
        return now_ns, 0

    def is_due(self, now_ns: int) -> bool:
        return self.due_ns is not None

    def start_release(self, now_ns: int) -> tuple[int, int, int]:
        """Start the due release. Return its index, its instant (`now_ns` in lockstep, else the arrival), and 0."""
        release_ns = now_ns if self.waits or self.due_ns is None else self.due_ns
        self.due_ns = None
        self._k += 1
        return self._k, release_ns, 0

    def world_ns(self, now_ns: int) -> int:
        return (self._k + 1) * self.period_ns

    def record_advance(self, due_ns: int | None) -> None:
        """Record that the world has advanced. `due_ns`: since when a release is due, or None if no release is due."""
        self.due_ns = due_ns


ReleaseGrid = WallGrid | StepGrid
