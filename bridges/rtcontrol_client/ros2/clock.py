"""The time by which a robot's messages age and what it is told is stamped: this machine's, or that of a simulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol_client.ros2 import Unmappable

CLOCK = "/clock"
STILL_MS = 1000.0  # a simulator's clock that has not gone on for so long stands still
AFTER_S = 1.0  # behind a jump back messages of before it may still come
AHEAD_NS = 500_000_000  # a message stamped so far ahead of the clock is one of them


class RobotClock:
    """This machine's clock, or that of `ticking`, where it is given. Thread-safe; `now_ns` is the monotonic clock."""

    def __init__(
        self,
        ticking: Any = None,
        still_ms: float = STILL_MS,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._ticking, self._still_ms, self._now_ns = ticking, min(still_ms, STILL_MS), now_ns
        self._lock = threading.Lock()
        self._time_ns: int | None = None  # the simulator's
        self._went_on_ns = 0  # when it was last another one
        self._back_ns = 0
        self._jumped_ns: int | None = None

    def read(self) -> None:
        """Look at the simulator's clock."""
        if self._ticking is None:
            return
        with self._lock:
            try:
                polled = self._ticking.poll()
            except Unmappable:
                return  # it is found to stand still
            if polled is None:
                return
            told = polled[0].clock
            time_ns, now = told.sec * 1_000_000_000 + told.nanosec, self._now_ns()
            if self._time_ns is not None and time_ns < self._time_ns:
                self._back_ns += self._time_ns - time_ns
                self._jumped_ns = now
            if time_ns != self._time_ns:
                self._time_ns, self._went_on_ns = time_ns, now

    @property
    def jumped(self) -> bool:
        """Whether it has jumped back, and nobody has asked `back` since."""
        return self._back_ns > 0

    def back(self) -> float:
        """By how many seconds it has jumped back since the last time; mostly 0."""
        with self._lock:
            back_ns, self._back_ns = self._back_ns, 0
            return back_ns / 1e9

    def stamp_ns(self) -> int:
        """What is written into a message that is stamped now. As in every ROS node a simulator's time is 0 until it is
        told."""
        if self._ticking is None:
            return time.time_ns()
        self.read()
        return self._time_ns or 0

    def age_ms(self, made_ns: int, read_ns: int) -> float:
        """Of a message that was made at `made_ns` of the monotonic clock, and read at `read_ns` of the simulator's."""
        if self._ticking is None:
            return (self._now_ns() - made_ns) / 1e6
        return ((self._time_ns or 0) - read_ns) / 1e6

    def trouble(self) -> str | None:
        """Why nothing can be said of ages now."""
        if self._ticking is None:
            return None
        if self._time_ns is None:
            return "no message yet, and use_sim_time is true. Start the simulator or its bridge, or set it to false"
        still_ms = (self._now_ns() - self._went_on_ns) / 1e6
        return None if still_ms <= self._still_ms else f"the simulator's clock stands still ({still_ms / 1e3:.0f} s)"

    def outdated(self, message: Any) -> bool:
        """Whether it is of the time before a jump back: behind one, its stamp is ahead of the clock."""
        if self._jumped_ns is None or self._now_ns() > self._jumped_ns + AFTER_S * 1e9:
            return False
        stamp = getattr(getattr(message, "header", None), "stamp", None)
        if stamp is None:
            return False
        return bool(stamp.sec * 1_000_000_000 + stamp.nanosec > (self._time_ns or 0) + AHEAD_NS)


WINDOW_NS = 30_000_000_000
STEP_NS = 20_000_000  # of our own clock
BACK_NS = 200_000_000  # of a sender's: two publishers of a topic are not quite in order


class Delays:
    """The delay beyond the usual of messages from one topic.

    The smallest in the last 30 to 60 s is taken for the difference between the clocks, so a constant delay stays
    unknown, and one that grows does not. After a sender's clock was set back it starts again.
    """

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._since_ns = 0
        self._source_ns = 0
        self._skew_ns: int | None = None  # our wall clock minus our monotonic one

    def captured_ns(self, source_ns: int, wall_ns: int, now_ns: int) -> int:
        """Return the instant of `source_ns` (the sender's wall clock) on our monotonic clock; never in the future.

        Our monotonic clock is `now_ns` at `wall_ns`. Without a source time (not after 1970) it is `now_ns`.
        """
        if source_ns <= 0:
            return now_ns
        skew_ns = wall_ns - now_ns
        ours_was_set = self._skew_ns is None or abs(skew_ns - self._skew_ns) > STEP_NS
        # A sender's messages come in the order in which they were sent.
        theirs_was_set = source_ns < self._source_ns - BACK_NS
        if ours_was_set or theirs_was_set:
            self._least = self._before = None
        self._skew_ns, self._source_ns = skew_ns, source_ns
        delay_ns = wall_ns - source_ns
        if self._least is None or now_ns - self._since_ns > WINDOW_NS:
            self._before, self._least, self._since_ns = self._least, delay_ns, now_ns
        self._least = min(self._least, delay_ns)
        usual_ns = self._least if self._before is None else min(self._least, self._before)
        return now_ns - (delay_ns - usual_ns)
