"""Decide when a client connects, sends hello or ping, and reconnects, without a clock: the caller passes the time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rtcontrol_client.wire.messages import Ping

S = 1_000_000_000
NO_ANSWER = "nobody answers"
HELLO_AGAIN_NS = S  # interval at which hello is repeated
BETWEEN_HELLOS_NS = S // 5  # minimum interval between two hellos, which the server also enforces
LATER_S = (1.0, 4.0)  # the first and the longest pause after a temporary refusal
CONNECT_NS = 2 * S  # timeout of a connection attempt
DEAD_HEARTBEATS = 3  # the server counts as dead after this many heartbeat intervals of silence
BEAT_MS = (50.0, 10_000.0)  # limits of the heartbeat interval: a server must not count as dead at once, or never
GREETING_SILENCE_NS = 10 * S  # before the welcome, the server counts as dead after this time of silence
CLOCK_PING_NS = 10 * S  # interval of pings that compare the clocks
ROOM_AGAIN_NS = S // 50  # pause before the next attempt to send if the send buffer was full


@dataclass
class Backoff:
    """Random pauses between retries, which grow exponentially from `first_s` to `max_s`."""

    first_s: float
    max_s: float
    attempts: int = 0

    def pause_ns(self) -> int:
        """Return the next pause, and count it as an attempt."""
        pause_s = min(self.max_s, self.first_s * 2 ** min(self.attempts, 20))
        self.attempts += 1
        return int(pause_s * random.uniform(0.5, 1.0) * S)


class Greeting:
    """The times at which to send hello messages. `started_ns` is when the first hello of this connection was sent."""

    def __init__(self) -> None:
        self.started_ns: int | None = None
        self.due_ns = self._last_ns = 0
        self.refused = Backoff(*LATER_S)

    def greets(self, now_ns: int) -> bool:
        """Return whether to send a hello now; if so, schedule the next one."""
        due = now_ns >= self.due_ns
        if due:
            self.due_ns, self._last_ns = now_ns + HELLO_AGAIN_NS, now_ns
        return due

    def again(self, now_ns: int, later: bool) -> None:
        """Schedule another hello as soon as the server accepts one; if `later`, after a pause, since it is full."""
        soonest_ns = max(now_ns, self._last_ns + BETWEEN_HELLOS_NS)
        self.due_ns = now_ns + self.refused.pause_ns() if later else soonest_ns


class PeerHeartbeat:
    """Decides when to ping the server, and when a silent server counts as dead."""

    def __init__(self, now_ns: int) -> None:
        self.beat_ns, self.received_ns = S, now_ns
        self.sent_ns = now_ns
        self.pinged_ns = 0  # 0: ping as soon as possible, to compare clocks

    def pings(self, now_ns: int, sends: bool) -> bool:
        """Return whether to send a ping now; `sends` is whether other messages are sent now."""
        silent = not sends and now_ns - self.sent_ns >= self.beat_ns
        due = silent or not self.pinged_ns or now_ns - self.pinged_ns >= CLOCK_PING_NS
        if sends or due:
            self.sent_ns = now_ns
        return due

    def ping(self, now_ns: int) -> Ping:
        """Return a ping to send at `now_ns`."""
        self.pinged_ns = now_ns
        return Ping(id=now_ns % (1 << 53), t_ns=now_ns)

    def dead_ns(self, live: bool) -> int:
        """Return when a silent server counts as dead; `live` is whether its welcome has arrived."""
        return self.received_ns + (DEAD_HEARTBEATS * self.beat_ns if live else GREETING_SILENCE_NS)


class ServerConnection:
    """The state of the connection to a server. `up` is whether there is a connection, `open` whether the server's
    welcome has arrived; before that, an attribute has the reason as a text for people. `several` is whether the next
    connection may go to another server, `unresponsive` whether the server was silent or a connection attempt failed.
    """

    def __init__(self, backoff_s: tuple[float, float], now_ns: int) -> None:
        self.up = self.open = self.several = self.unresponsive = False
        self.trouble = NO_ANSWER
        self.greeting, self.heartbeat = Greeting(), PeerHeartbeat(now_ns)
        self._lost = Backoff(*backoff_s)
        self._opened_ns, self._retry_ns, self._room_ns = now_ns, 0, 0

    def connected(self, now_ns: int) -> None:
        """Process that the connection is up: a hello is due."""
        self.up, self.trouble, self.heartbeat.received_ns = True, "the server says nothing", now_ns
        self.greeting.started_ns, self.unresponsive = None, False
        self._retry_ns = self.greeting.due_ns = self._room_ns = 0

    def welcomed(self, heartbeat_ms: float) -> None:
        """Process the server's welcome message: use the server's heartbeat interval, and reset the retry pauses."""
        self.open, self.heartbeat.beat_ns = True, int(min(max(heartbeat_ms, BEAT_MS[0]), BEAT_MS[1]) * 1e6)
        # Not reset in `connected`, since a server that refuses the client would then get ten hellos a second.
        self._lost.attempts = self.greeting.refused.attempts = 0

    def lost(self, now_ns: int, why: str) -> None:
        """Process that the connection is lost, or that an attempt failed: reconnect after a pause."""
        self.unresponsive = self.unresponsive or not (self.up or self._retry_ns)
        self.leave(now_ns, why)

    def leave(self, now_ns: int, why: str, at_once: bool = False) -> None:
        """Close the connection and reconnect after a pause (`at_once`: without a pause)."""
        self.trouble, self.up = why, False
        if not self._retry_ns:
            self._retry_ns = now_ns + (0 if at_once else self._lost.pause_ns())

    def none_named(self, now_ns: int, why: str, min_pause_s: float) -> None:
        """Process that /connect returned no server: request again after a pause of at least `min_pause_s`."""
        self.leave(now_ns, why)
        self._retry_ns = max(self._retry_ns, now_ns + int(min_pause_s * S))

    def dials(self, now_ns: int) -> None:
        """Process that /connect returned a server, and that the client starts to connect to it now."""
        self._opened_ns = now_ns

    def silent(self, now_ns: int) -> bool:
        """Return whether the server counts as dead."""
        if not self.up or now_ns <= self.heartbeat.dead_ns(self.open):
            return False
        self.unresponsive = True
        return True

    def opens(self, now_ns: int) -> bool:
        """Return whether to start another connection attempt now."""
        if self.up or now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self.unresponsive = self.unresponsive or not self._retry_ns
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def has_room(self, now_ns: int) -> bool:
        """Return whether messages can be sent: False for a moment after the send buffer was `full`."""
        return now_ns >= self._room_ns

    def full(self, now_ns: int) -> None:
        """Process that the send buffer is full: send the rest a moment later."""
        self._room_ns = now_ns + ROOM_AGAIN_NS
        if not self.open:
            self.greeting.due_ns, self.greeting.started_ns = self._room_ns, None

    def wake_ns(self, sends: bool) -> int | None:
        """Return when the next timer ends (None: no timer); `sends` is whether messages wait to be sent."""
        if not self.up:
            return self._retry_ns or None
        if not self.open:
            return self.greeting.due_ns
        beat = self.heartbeat
        return min(beat.dead_ns(self.open) + 1, self._room_ns if sends else beat.sent_ns + beat.beat_ns)
