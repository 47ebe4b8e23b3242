"""When the next tick is due: on an absolute grid of real time, or as a world that waits moves on. No clock.

Where a grid is `enforced`, a deadline ends a tick; otherwise it is compared with afterwards. `waits`: for a decoder
that is away. `world_ns`: the world's time, which limits how long a call is held. Instants are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from typing import Literal

LEAD_NS = 1_000_000  # from the start of the clock to release 0


class WallGrid:
    """The world runs on whatever the controller does: releases r_k = t0 + k * period, deadlines enforced.

    Late by whole periods, it skips those releases and keeps the phase; it never bursts to catch up.
    """

    enforced, waits = True, False

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self._t0_ns = self.next_release_ns = self._next = 0

    def start(self, now_ns: int) -> tuple[int, int]:
        """Set the first release; return its instant, and the world's time then."""
        self._t0_ns = self.next_release_ns = now_ns + min(LEAD_NS, self.period_ns)
        return self._t0_ns, self._t0_ns

    def due(self, now_ns: int) -> bool:
        return now_ns >= self.next_release_ns

    def take(self, now_ns: int) -> tuple[int, int, int]:
        """Start the release that is due; return its index k, r_k, and how many before it were skipped. Afterwards
        r_k <= now < r_k + period. ValueError where no release is due."""
        late_ns = now_ns - self.next_release_ns
        if late_ns < 0:
            raise ValueError(f"release {self._next} is {-late_ns} ns ahead")
        skipped = late_ns // self.period_ns
        k = self._next + skipped
        release_ns = self._t0_ns + k * self.period_ns
        self._next, self.next_release_ns = k + 1, release_ns + self.period_ns
        return k, release_ns, skipped

    def world_ns(self, now_ns: int) -> int:
        return now_ns

    def advanced(self, due_ns: int | None) -> None:
        raise AssertionError("the world runs by itself")


class StepGrid:
    """Each release comes when the tick before is settled and the world has moved on by a period (lockstep), or has made
    an observation (arrival). Deadlines are counted, not enforced; holds are measured in periods."""

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

    def due(self, now_ns: int) -> bool:
        return self.due_ns is not None

    def take(self, now_ns: int) -> tuple[int, int, int]:
        """Start the release that is due: in lockstep it is now, of an arrival when that came."""
        release_ns = now_ns if self.waits or self.due_ns is None else self.due_ns
        self.due_ns = None
        self._k += 1
        return self._k, release_ns, 0

    def world_ns(self, now_ns: int) -> int:
        return (self._k + 1) * self.period_ns

    def advanced(self, due_ns: int | None) -> None:
        """The world moved on: a release is due since then (None: not yet)."""
        self.due_ns = due_ns


ReleaseGrid = WallGrid | StepGrid
