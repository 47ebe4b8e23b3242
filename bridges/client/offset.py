"""How far the server's monotonic clock is from ours, by four time stamps (docs/protocol.md, section 6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW = 16
MAX_AGE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """Their clock minus ours, in ns; the true one lies within +- half of the round trip."""

    offset_ns: int
    rtt_ns: int


class OffsetFilter:
    """Keeps the newest exchanges and believes the one with the shortest round trip: its bound is the tightest."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Offset]] = deque(maxlen=WINDOW)

    def add(self, t0_ns: int, t1_ns: int, t2_ns: int, t3_ns: int) -> None:
        """Asked at t0 and answered at t3 on our clock, received at t1 and sent at t2 on theirs. Stamps that contradict
        each other (a round trip below zero) are dropped."""
        rtt_ns = (t3_ns - t0_ns) - (t2_ns - t1_ns)
        if rtt_ns >= 0 and t3_ns >= t0_ns and t2_ns >= t1_ns:
            # All in integers: instants as floats would lose nanoseconds.
            self._samples.append((t3_ns, Offset(((t1_ns - t0_ns) + (t2_ns - t3_ns)) // 2, rtt_ns)))

    def now(self, now_ns: int) -> Offset | None:
        """The offset believed at `now_ns` of our clock; None while there is no exchange young enough."""
        young = (offset for t_ns, offset in reversed(self._samples) if now_ns - t_ns <= MAX_AGE_NS)
        return min(young, key=lambda offset: offset.rtt_ns, default=None)  # the newest of equal ones: clocks drift
