"""When a client connects, greets, pings and gives up. Pure: the caller brings the time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rtcontrol_client.wire.messages import Ping

S = 1_000_000_000
NO_ANSWER = "nobody answers"
HELLO_AGAIN_NS = S
BETWEEN_HELLOS_NS = S // 5  # what the server takes at most: one that refuses each hello is not flooded with them
LATER_S = (1.0, 4.0)  # the pauses after a refusal that may pass: the first one, and the longest
CONNECT_NS = 2 * S  # a connection that does not come up in this time is tried again
DEAD_HEARTBEATS = 3
LEAST_BEAT_MS = 50.0  # with a shorter heartbeat the server would count as dead at once
GREETING_SILENCE_NS = 10 * S  # a welcome may take longer, but not an answer to our pings
CLOCK_PING_NS = 10 * S  # a client that observes all the time is never silent, and would never compare clocks
ROOM_AGAIN_NS = S // 50  # after this a connection without room is tried again


@dataclass
class Backoff:
    """Random pauses that grow from `first_s` to `most_s`."""

    first_s: float
    most_s: float
    attempts: int = 0

    def pause_ns(self) -> int:
        """Return the next pause."""
        pause_s = min(self.most_s, self.first_s * 2 ** min(self.attempts, 20))
        self.attempts += 1
        return int(pause_s * random.uniform(0.5, 1.0) * S)


class Greeting:
    """When a hello is due. `started_ns`: of the first hello of this greeting, None before it."""

    def __init__(self) -> None:
        self.started_ns: int | None = None
        self.due_ns = self._last_ns = 0
        self.refused = Backoff(*LATER_S)

    def greets(self, now_ns: int) -> bool:
        """Return whether a hello is due."""
        due = now_ns >= self.due_ns
        if due:
            self.due_ns, self._last_ns = now_ns + HELLO_AGAIN_NS, now_ns
        return due

    def again(self, now_ns: int, later: bool) -> None:
        """Send another hello: as soon as the server takes one, or `later`, after a pause (it is full)."""
        soonest_ns = max(now_ns, self._last_ns + BETWEEN_HELLOS_NS)
        self.due_ns = now_ns + self.refused.pause_ns() if later else soonest_ns


class PeerHeartbeat:
    """When the server counts as dead, and when it is pinged."""

    def __init__(self, now_ns: int) -> None:
        self.beat_ns, self.received_ns = S, now_ns
        self.sent_ns = now_ns
        self.pinged_ns = 0  # 0: ping next, to compare clocks

    def pings(self, now_ns: int, sends: bool) -> bool:
        """Return whether a ping is due: nothing was sent for a heartbeat, or clocks are to be compared."""
        silent = not sends and now_ns - self.sent_ns >= self.beat_ns
        due = silent or not self.pinged_ns or now_ns - self.pinged_ns >= CLOCK_PING_NS
        if sends or due:
            self.sent_ns = now_ns
        return due

    def ping(self, now_ns: int) -> Ping:
        """Return a ping."""
        self.pinged_ns = now_ns
        return Ping(id=now_ns % (1 << 53), t_ns=now_ns)

    def dead_ns(self, live: bool) -> int:
        """Return when a server that stays silent counts as dead; `live`: it has welcomed us."""
        return self.received_ns + (DEAD_HEARTBEATS * self.beat_ns if live else GREETING_SILENCE_NS)


class ServerConnection:
    """`up`: there is a connection; `open`: the server welcomed us on it; else words for people say why it did not.

    `several`: another connection may go to another server. `unresponsive`: the server was silent, or its connection did
    not come up.
    """

    def __init__(self, backoff_s: tuple[float, float], now_ns: int) -> None:
        self.up = self.open = self.several = self.unresponsive = False
        self.trouble = NO_ANSWER
        self.greeting, self.heartbeat = Greeting(), PeerHeartbeat(now_ns)
        self._lost = Backoff(*backoff_s)
        self._opened_ns, self._retry_ns, self._room_ns = now_ns, 0, 0

    def connected(self, now_ns: int) -> None:
        """It is up: a hello is due."""
        self.up, self.trouble, self.heartbeat.received_ns = True, "the server says nothing", now_ns
        self.greeting.started_ns, self.unresponsive = None, False
        self._retry_ns = self.greeting.due_ns = self._room_ns = 0

    def welcomed(self, heartbeat_ms: float) -> None:
        """It is open: the server's heartbeat counts from now on."""
        self.open, self.heartbeat.beat_ns = True, int(max(heartbeat_ms, LEAST_BEAT_MS) * 1e6)
        # Not when connected: a server that turns us away would get ten hellos a second.
        self._lost.attempts = self.greeting.refused.attempts = 0

    def lost(self, now_ns: int, why: str) -> None:
        """It is down, or did not come up: another one is made after a pause."""
        self.unresponsive = self.unresponsive or not (self.up or self._retry_ns)
        self.leave(now_ns, why)

    def leave(self, now_ns: int, why: str, at_once: bool = False) -> None:
        """Close it, and make another one after a pause."""
        self.trouble, self.up = why, False
        if not self._retry_ns:
            self._retry_ns = now_ns + (0 if at_once else self._lost.pause_ns())

    def none_named(self, now_ns: int, why: str, least_s: float) -> None:
        """No server was named at /connect: request one again after a pause of `least_s` at least."""
        self.leave(now_ns, why)
        self._retry_ns = max(self._retry_ns, now_ns + int(least_s * S))

    def dials(self, now_ns: int) -> None:
        """A server was named: its connection is made from now on."""
        self._opened_ns = now_ns

    def silent(self, now_ns: int) -> bool:
        """Return whether the server counts as dead."""
        if not self.up or now_ns <= self.heartbeat.dead_ns(self.open):
            return False
        self.unresponsive = True
        return True

    def opens(self, now_ns: int) -> bool:
        """Return whether another one is to be made now."""
        if self.up or now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self.unresponsive = self.unresponsive or not self._retry_ns
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def has_room(self, now_ns: int) -> bool:
        """Return whether more can be sent; it could not a moment ago, if not."""
        return now_ns >= self._room_ns

    def full(self, now_ns: int) -> None:
        """There was no room for a message: send the rest a moment later."""
        self._room_ns = now_ns + ROOM_AGAIN_NS
        if not self.open:
            self.greeting.due_ns, self.greeting.started_ns = self._room_ns, None

    def wake_ns(self, sends: bool) -> int | None:
        """Return when something becomes due by itself; `sends`: messages wait for room."""
        if not self.up:
            return self._retry_ns or None
        if not self.open:
            return self.greeting.due_ns
        beat = self.heartbeat
        return min(beat.dead_ns(self.open) + 1, self._room_ns if sends else beat.sent_ns + beat.beat_ns)
