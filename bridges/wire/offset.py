"""How far another side's monotonic clock is from ours, by four time stamps (docs/protocol.md, section 6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rtcontrol.bridges.wire.messages import Pong

WINDOW = 16
MAX_AGE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """Their clock minus ours, in ns; the true one lies within +- `error_ns`, half of the round trip."""

    offset_ns: int
    rtt_ns: int

    @property
    def error_ns(self) -> float:
        return self.rtt_ns / 2

    def ours_ns(self, theirs_ns: int) -> int:
        """An instant of their clock on ours."""
        return theirs_ns - self.offset_ns


def measure(t0_ns: int, t1_ns: int, t2_ns: int, t3_ns: int) -> Offset | None:
    """One exchange: asked at t0 and answered at t3 on our clock, received at t1 and sent at t2 on theirs. None where
    the stamps contradict each other (a round trip below zero)."""
    rtt = (t3_ns - t0_ns) - (t2_ns - t1_ns)
    if rtt < 0 or t3_ns < t0_ns or t2_ns < t1_ns:
        return None
    # All in integers: instants as floats would lose nanoseconds.
    return Offset(((t1_ns - t0_ns) + (t2_ns - t3_ns)) // 2, rtt)


class OffsetFilter:
    """Keeps the newest exchanges and believes the one with the shortest round trip: its bound is the tightest."""

    def __init__(self, window: int = WINDOW, max_age_ns: int = MAX_AGE_NS) -> None:
        self._samples: deque[tuple[int, Offset]] = deque(maxlen=window)
        self._max_age_ns = max_age_ns

    def pong(self, pong: Pong, t_arrived_ns: int) -> Offset | None:
        """Take an answer to our ping; the offset believed now."""
        return self.add(pong.t_ping_ns, pong.t_received_ns, pong.t_sent_ns, t_arrived_ns)

    def add(self, t0_ns: int, t1_ns: int, t2_ns: int, t3_ns: int) -> Offset | None:
        """Take an exchange (one that contradicts itself is dropped); the offset believed now."""
        if (sample := measure(t0_ns, t1_ns, t2_ns, t3_ns)) is not None:
            self._samples.append((t3_ns, sample))
        return self.now(t3_ns)

    def now(self, now_ns: int) -> Offset | None:
        """The offset believed at `now_ns` of our clock; None while there is no exchange young enough."""
        while self._samples and now_ns - self._samples[0][0] > self._max_age_ns:
            self._samples.popleft()
        # The newest of equal ones, since clocks drift.
        return min((s for _, s in reversed(self._samples)), key=lambda s: s.rtt_ns, default=None)
