"""The client's connection: when it is made anew, when it is given up, and when a hello is due on it. Pure: the caller
brings the time."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass

S = 1_000_000_000
NOBODY = "nobody answers"
HELLO_AGAIN_NS = S
BETWEEN_HELLOS_NS = S // 5  # what the server takes at most: one that refuses each hello is not flooded with them
LATER_S = (1.0, 4.0)  # the pauses after a refusal that may pass: the first one, and the longest
CONNECT_NS = 2 * S  # a connection that does not come up in this time is tried anew
DEAD_HEARTBEATS = 3
LEAST_BEAT_MS = 50.0  # a server's heartbeat below this would be found dead at once
GREETING_SILENCE_NS = 10 * S  # a welcome may take longer, but not an answer to our pings


class ServerConnection:
    """`up`: there is one; `open`: we are welcomed on it; `trouble`: what keeps it from that, for people."""

    def __init__(self, backoff_s: tuple[float, float], now_ns: int) -> None:
        self.up = self.open = False
        self.several = False  # another connection may go to another server
        self._leaves: str | None = None  # why it is to be closed, and another one made
        self._at_once = False  # the next one is made without a pause
        self.unresponsive = False  # the server was silent, or its connection did not come up
        self.greeted_ns: int | None = None  # when the first hello of this greeting was said
        self.trouble = NOBODY
        self._backoff_s = backoff_s
        self.hello_ns = self._said_hello_ns = 0  # when the next hello is due, and the last one was
        self.beat_ns, self.heard_ns = S, now_ns
        self._attempts, self._opened_ns, self._retry_ns = Counter[tuple[float, float]](), now_ns, 0

    def connected(self, now_ns: int) -> None:
        """It is there: a hello is due."""
        self.up, self.trouble, self.heard_ns = True, "the server says nothing", now_ns
        self._retry_ns = self.hello_ns = 0
        self.greeted_ns, self._leaves = None, None
        self.unresponsive = False

    def welcomed(self, heartbeat_ms: float) -> None:
        """The server's heartbeat counts from now on."""
        self.open, self.beat_ns = True, int(max(heartbeat_ms, LEAST_BEAT_MS) * 1e6)
        self._attempts.clear()  # not when connected: a server that turns us away were asked ten times a second

    def lost(self, now_ns: int, why: str) -> None:
        """It is there no more, or did not come up: another one is made after a growing, random pause."""
        self.unresponsive = self.unresponsive or not (self.up or self._retry_ns)
        self._down(now_ns, why)

    def _down(self, now_ns: int, why: str) -> None:
        self.trouble, self.up = why, False
        if not self._retry_ns:
            self._retry_ns = now_ns + (0 if self._at_once else self._pause_ns(*self._backoff_s))
        self._at_once = False

    def none_named(self, now_ns: int, why: str, least_s: float) -> None:
        """No server was named at /connect: request one again after a growing pause, of `least_s` at least."""
        self._down(now_ns, why)
        self._retry_ns = max(self._retry_ns, now_ns + int(least_s * S))

    def dials(self, now_ns: int) -> None:
        """A server was named: its connection is made from now on."""
        self._opened_ns = now_ns

    def dead(self, now_ns: int) -> str | None:
        """Why it is to be given up, if it is."""
        if self.up and self._leaves is not None:
            return self._leaves
        if not self.up or now_ns <= self._dead_ns():
            return None
        self.unresponsive = True
        return "the server is silent"

    def opens(self, now_ns: int) -> bool:
        """Whether another one is to be made now."""
        if self.up or now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self.unresponsive = self.unresponsive or not self._retry_ns
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def greets(self, now_ns: int) -> bool:
        """Whether a hello is to be said now."""
        due = now_ns >= self.hello_ns
        if due:
            self.hello_ns, self._said_hello_ns = now_ns + HELLO_AGAIN_NS, now_ns
        return due

    def again(self, now_ns: int, later: bool) -> None:
        """Another hello: as soon as the server takes one, or `later`, after a growing, random pause (it is full)."""
        soonest_ns = max(now_ns, self._said_hello_ns + BETWEEN_HELLOS_NS)
        self.hello_ns = now_ns + self._pause_ns(*LATER_S) if later else soonest_ns

    def leave(self, why: str, at_once: bool = False) -> None:
        """It is to be closed, and another one made, without a pause where `at_once`."""
        self._leaves, self._at_once = why, at_once

    def refused(self, now_ns: int) -> None:
        """This server lets nobody in now: the next one of several is tried, a single one is asked again later."""
        if self.several:
            self.leave("the server lets nobody in now")
        else:
            self.again(now_ns, later=True)

    def wake_ns(self) -> int | None:
        """When something becomes due by itself."""
        return (self._retry_ns or None) if not self.up else self._dead_ns() + 1 if self.open else self.hello_ns

    def _pause_ns(self, first_s: float, most_s: float) -> int:
        attempt = self._attempts[first_s, most_s]
        self._attempts[first_s, most_s] += 1
        return int(min(most_s, first_s * 2 ** min(attempt, 20)) * random.uniform(0.5, 1.0) * S)

    def _dead_ns(self) -> int:
        return self.heard_ns + (DEAD_HEARTBEATS * self.beat_ns if self.open else GREETING_SILENCE_NS)


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
