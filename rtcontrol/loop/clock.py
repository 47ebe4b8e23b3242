"""When the next tick begins: on an absolute grid in wall-clock time, or as a world that waits moves on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rtcontrol.hosts.protocol import DecisionReply, Host

# The kernel wakes a sleeper up to about 0.1 ms late (timer slack 50 us, a context switch); the rest is polled.
SPIN_NS = 200_000
# From the start of the clock to release 0.
LEAD_NS = 1_000_000
# The longest single sleep, so that a signal's flag is seen soon even at 0.1 Hz.
MAX_SLEEP_NS = 50_000_000


class RateClock:
    """Absolute grid of releases r_k = t0 + k * period on CLOCK_MONOTONIC.

    Late by whole periods, it skips those releases and keeps the phase; it never bursts to catch up.
    """

    def __init__(self, period_ns: int) -> None:
        if period_ns <= 0:
            raise ValueError(f"period_ns={period_ns} must be > 0")
        self.period_ns = period_ns
        self.begin(0)

    def begin(self, t0_ns: int) -> None:
        """Release 0 is at `t0_ns`."""
        self._t0_ns, self._next, self.next_release_ns = t0_ns, 0, t0_ns

    def take(self, now_ns: int) -> tuple[int, int, int]:
        """Start the release that is due: (its index k, r_k, how many releases before it were skipped).

        The invariant afterwards: r_k <= now < r_k + period, unless no release is due (ValueError).
        """
        late_ns = now_ns - self.next_release_ns
        if late_ns < 0:
            raise ValueError(f"release {self._next} is {-late_ns} ns ahead")
        skipped = late_ns // self.period_ns
        k = self._next + skipped
        release_ns = self._t0_ns + k * self.period_ns
        self._next, self.next_release_ns = k + 1, release_ns + self.period_ns
        return k, release_ns, skipped


class LoopClock(Protocol):
    """What the control loop asks of a clock; times are CLOCK_MONOTONIC nanoseconds.

    `enforced` says whether releases come at a fixed rate of real time and a deadline ends a tick (wall), or a deadline
    is only compared with it afterwards (lockstep).
    `effective_ns` is the world's time, which limits how long a call is held.
    """

    enforced: bool

    def start(self) -> tuple[int, int]:
        """Set the first release; gives its instant, and the world's time (`effective_ns`) then."""

    def wait(self, event_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        """Until `event_ns`, the next release or a reply, whichever is first (or a little while: call it again)."""

    def due(self, now_ns: int) -> bool: ...

    def take(self, now_ns: int) -> tuple[int, int, int]: ...

    def effective_ns(self) -> int: ...

    def slack_ns(self) -> int:
        """How long nothing is due when no decision is in flight."""


class WallClock(RateClock):
    """The world runs on whatever the controller does: releases on an absolute grid, deadlines enforced."""

    enforced = True

    def __init__(self, period_ns: int, spin_ns: int = SPIN_NS) -> None:
        """Polls the last `spin_ns` before a release; 0 where many loops share one process."""
        super().__init__(period_ns)
        self._spin_ns = spin_ns

    def start(self) -> tuple[int, int]:
        t0_ns = time.monotonic_ns() + min(LEAD_NS, self.period_ns)
        self.begin(t0_ns)
        return t0_ns, t0_ns

    def wait(self, event_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        until = self.next_release_ns if event_ns is None else min(event_ns, self.next_release_ns)
        while (left := until - time.monotonic_ns()) > 0:
            if left > self._spin_ns:
                # Sleeping in the host's wait: a reply, or what came of a call, ends the sleep.
                return host.wait(min(left - self._spin_ns, MAX_SLEEP_NS))
            if in_flight and (reply := host.wait(0)) is not None:
                return reply
        return None

    def due(self, now_ns: int) -> bool:
        return now_ns >= self.next_release_ns

    def effective_ns(self) -> int:
        return time.monotonic_ns()

    def slack_ns(self) -> int:
        return self.next_release_ns - time.monotonic_ns()


class StepClock:
    """Each release comes when the one before is settled; deadlines are counted, not enforced. Holds are measured in
    periods."""

    enforced = False

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._k = -1
        self._due_ns: int | None = None  # when the next release came, which is due

    def start(self) -> tuple[int, int]:
        now_ns = time.monotonic_ns()
        self._k, self._due_ns = -1, None
        return now_ns, 0

    def due(self, now_ns: int) -> bool:
        return self._due_ns is not None

    def take(self, now_ns: int) -> tuple[int, int, int]:
        release_ns = now_ns if self._due_ns is None else self._due_ns
        self._due_ns = None
        self._k += 1
        return self._k, release_ns, 0

    def effective_ns(self) -> int:
        return (self._k + 1) * self._period_ns


class LockstepClock(StepClock):
    """The world waits: it is moved on by a period before each release.

    Decisions are measured in real time all the same, so a decision that took longer than the deadline counts as a
    miss; its call is executed, because nothing happened meanwhile and the run must not depend on the machine.
    """

    def __init__(self, period_ns: int, advance: Callable[[int], None]) -> None:
        super().__init__(period_ns)
        self._advance = advance

    def start(self) -> tuple[int, int]:
        started = super().start()
        self._due_ns = started[0]
        return started

    def wait(self, event_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        if in_flight or not host.alive():  # the world waits for the decoder's return, too
            return host.wait(MAX_SLEEP_NS)
        if self._due_ns is None:
            self._advance(self._period_ns)
            self._due_ns = time.monotonic_ns()
        return None

    def take(self, now_ns: int) -> tuple[int, int, int]:
        self._due_ns = None
        return super().take(now_ns)

    def slack_ns(self) -> int:
        # Time costs nothing here.
        return 1_000_000_000


class ArrivalClock(StepClock):
    """Each observation that arrives is a release, in order: one decision for each, however long it takes.

    Whoever sends observations at its own pace waits for the answer. `arrival` waits at most so many nanoseconds for the
    next one and gives its instant, or None.
    """

    def __init__(self, period_ns: int, arrival: Callable[[int], int | None]) -> None:
        super().__init__(period_ns)
        self._arrival = arrival

    def wait(self, event_ns: int | None, host: Host, in_flight: bool) -> DecisionReply | None:
        if in_flight:
            return host.wait(MAX_SLEEP_NS)
        if self._due_ns is None:
            self._due_ns = self._arrival(MAX_SLEEP_NS)
        return None

    def slack_ns(self) -> int:
        # The next one may be there already.
        return 0
