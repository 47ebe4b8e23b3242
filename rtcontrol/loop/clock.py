"""Wait in real time for what comes first: a reply, the core's next instant, or a world that waits to be moved on."""

from __future__ import annotations

import time
from collections.abc import Callable

from rtcontrol.hosts.protocol import DecisionReply, Host
from rtcontrol.loop.grid import StepGrid, WallGrid

# The kernel wakes a sleeper up to about 0.1 ms late (timer slack 50 us, a context switch); the rest is polled.
SPIN_NS = 200_000
# The longest single sleep, so that a signal's flag is seen soon even at 0.1 Hz.
MAX_SLEEP_NS = 50_000_000


class WallClock:
    """The world runs on whatever the controller does. Polls the last `spin_ns`; 0 where many loops share a process."""

    def __init__(self, period_ns: int, spin_ns: int = SPIN_NS) -> None:
        self.grid = WallGrid(period_ns)
        self._spin_ns = spin_ns

    def wait(self, until_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        """Wait until `until_ns` or for a reply, whichever is first. It may return early."""
        assert until_ns is not None, "the next release has its instant"
        while (left := until_ns - time.monotonic_ns()) > 0:
            if left > self._spin_ns:
                # Sleeping in the host's wait: a reply, or what came of a call, ends the sleep.
                return host.wait(min(left - self._spin_ns, MAX_SLEEP_NS))
            if in_flight and (reply := host.wait(0)) is not None:
                return reply
        return host.wait(0)

    def advance(self, dt_ns: int) -> int | None:
        raise AssertionError("the world runs by itself")


class StepClock:
    """The world, or its observations, wait for the controller: `move` lets it run (or waits for the next arrival) for
    so many nanoseconds, and returns since when a release is due, or None."""

    def __init__(self, grid: StepGrid, move: Callable[[int], int | None]) -> None:
        self.grid = grid
        self._move = move

    def wait(self, until_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        return host.wait(MAX_SLEEP_NS if until_ns is None else 0)

    def advance(self, dt_ns: int) -> int | None:
        return self._move(dt_ns)


LoopClock = WallClock | StepClock


def lockstep_clock(period_ns: int, advance: Callable[[int], None]) -> StepClock:
    """Return the clock of a world that is moved on by a period before each release.

    Decisions are measured in real time all the same, so a decision that took longer than the deadline counts as a
    miss; its call is executed, because nothing happened meanwhile and the run must not depend on the machine.
    """

    def move(dt_ns: int) -> int:
        advance(dt_ns)
        return time.monotonic_ns()

    return StepClock(StepGrid(period_ns, "lockstep"), move)


def arrival_clock(period_ns: int, arrival: Callable[[int], int | None]) -> StepClock:
    """Return the clock by which each observation that arrives is a release, in order: one decision for each, however
    long it takes. `arrival` waits at most so many nanoseconds for the next one and returns its instant, or None.

    Whoever sends observations at its own pace waits for the answer.
    """
    return StepClock(StepGrid(period_ns, "arrival"), lambda dt_ns: arrival(MAX_SLEEP_NS))
