"""When a message was made, on our own monotonic clock, by its sender's wall clock: the two may differ, and jump."""

from __future__ import annotations

WINDOW_NS = 30_000_000_000
STEP_NS = 20_000_000  # of our own clock
BACK_NS = 200_000_000  # of a sender's: two publishers of a topic are not quite in order


class Delays:
    """The delay beyond the usual of messages from one topic: the smallest seen in the last 30 to 60 s is taken for the
    difference between the clocks, so a constant delay stays unknown, and one that grows does not. A sender whose clock
    was set back begins anew."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._since_ns = 0
        self._source_ns = 0
        self._skew_ns: int | None = None  # our wall clock minus our monotonic one

    def captured_ns(self, source_ns: int, wall_ns: int, now_ns: int) -> int:
        """The instant of `source_ns` (the sender's wall clock) on our monotonic clock, where it is `now_ns` at
        `wall_ns`; never in the future. A sender without a clock (not after 1970) is taken to have spoken now."""
        if source_ns <= 0:
            return now_ns
        skew_ns = wall_ns - now_ns
        if self._skew_ns is None or abs(skew_ns - self._skew_ns) > STEP_NS:
            # Our own wall clock was set: what we knew of the difference is void.
            self._least = self._before = None
        if source_ns < self._source_ns - BACK_NS:
            # The sender's was: its messages come in the order in which they were sent.
            self._least = self._before = None
        self._skew_ns, self._source_ns = skew_ns, source_ns
        delay_ns = wall_ns - source_ns
        if self._least is None or now_ns - self._since_ns > WINDOW_NS:
            self._before, self._least, self._since_ns = self._least, delay_ns, now_ns
        self._least = min(self._least, delay_ns)
        usual_ns = self._least if self._before is None else min(self._least, self._before)
        return now_ns - (delay_ns - usual_ns)
