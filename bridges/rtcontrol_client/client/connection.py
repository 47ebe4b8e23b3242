"""When a client connects, sends a hello, pings and gives up. The caller passes the time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rtcontrol_client.wire.messages import Ping

S = 1_000_000_000
NO_ANSWER = "nobody answers"
HELLO_AGAIN_NS = S
BETWEEN_HELLOS_NS = S // 5  # the server accepts no more hellos: one that refuses each hello is not flooded
LATER_S = (1.0, 4.0)  # the first and the longest pause after a temporary refusal
CONNECT_NS = 2 * S  # a connection that does not come up in this time is tried again
DEAD_HEARTBEATS = 3
LEAST_BEAT_MS = 50.0  # with a shorter heartbeat the server would count as dead at once
GREETING_SILENCE_NS = 10 * S  # a welcome may take longer, but not an answer to our pings
CLOCK_PING_NS = 10 * S  # ping this often to compare clocks, even if the client is never silent
ROOM_AGAIN_NS = S // 50  # retry after this time if a connection had no room


@dataclass
class Backoff:
    """A series of random pauses that grow from `first_s` to `most_s`."""

    first_s: float
    most_s: float
    attempts: int = 0

    def pause_ns(self) -> int:
        """Return the next pause."""
        pause_s = min(self.most_s, self.first_s * 2 ** min(self.attempts, 20))
        self.attempts += 1
        return int(pause_s * random.uniform(0.5, 1.0) * S)


class Greeting:
    """The times at which hellos are due. `started_ns`: when this greeting's first hello was sent, or None."""

    def __init__(self) -> None:
        self.started_ns: int | None = None
        self.due_ns = self._last_ns = 0
        self.refused = Backoff(*LATER_S)

    def greets(self, now_ns: int) -> bool:
        """Return whether a hello is due now, and schedule the next one."""
        due = now_ns >= self.due_ns
        if due:
            self.due_ns, self._last_ns = now_ns + HELLO_AGAIN_NS, now_ns
        return due

    def again(self, now_ns: int, later: bool) -> None:
        """Schedule another hello as soon as the server accepts one, or `later`, after a pause (the server is full)."""
        soonest_ns = max(now_ns, self._last_ns + BETWEEN_HELLOS_NS)
        self.due_ns = now_ns + self.refused.pause_ns() if later else soonest_ns


class PeerHeartbeat:
    """The times at which to ping the server, and after which the server counts as dead."""

    def __init__(self, now_ns: int) -> None:
        self.beat_ns, self.received_ns = S, now_ns
        self.sent_ns = now_ns
        self.pinged_ns = 0  # 0: ping as soon as possible, to compare clocks

    def pings(self, now_ns: int, sends: bool) -> bool:
        """Return whether a ping is due, since nothing was sent for a heartbeat or the clocks must be compared."""
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
        """Return when a server that stays silent counts as dead; `live`: the server has welcomed the client."""
        return self.received_ns + (DEAD_HEARTBEATS * self.beat_ns if live else GREETING_SILENCE_NS)


class ServerConnection:
    """The state of the connection to a server. `up`: there is a connection; `open`: the server's welcome has come.

    Unless `open`, a text for people gives the reason. `several`: the next connection may go to another server.
    `unresponsive`: the server was silent, or the connection did not come up.
    """

    def __init__(self, backoff_s: tuple[float, float], now_ns: int) -> None:
        self.up = self.open = self.several = self.unresponsive = False
        self.trouble = NO_ANSWER
        self.greeting, self.heartbeat = Greeting(), PeerHeartbeat(now_ns)
        self._lost = Backoff(*backoff_s)
        self._opened_ns, self._retry_ns, self._room_ns = now_ns, 0, 0

    def connected(self, now_ns: int) -> None:
        """Note that the connection is up, so a hello is due."""
        self.up, self.trouble, self.heartbeat.received_ns = True, "the server says nothing", now_ns
        self.greeting.started_ns, self.unresponsive = None, False
        self._retry_ns = self.greeting.due_ns = self._room_ns = 0

    def welcomed(self, heartbeat_ms: float) -> None:
        """Note the server's welcome: the server's heartbeat counts from now on."""
        self.open, self.heartbeat.beat_ns = True, int(max(heartbeat_ms, LEAST_BEAT_MS) * 1e6)
        # Not in `connected`: a server that turns the client away would get ten hellos a second.
        self._lost.attempts = self.greeting.refused.attempts = 0

    def lost(self, now_ns: int, why: str) -> None:
        """Note that the connection is down or did not come up; a new one is made after a pause."""
        self.unresponsive = self.unresponsive or not (self.up or self._retry_ns)
        self.leave(now_ns, why)

    def leave(self, now_ns: int, why: str, at_once: bool = False) -> None:
        """Close the connection, and make another one after a pause (`at_once`: without a pause)."""
        self.trouble, self.up = why, False
        if not self._retry_ns:
            self._retry_ns = now_ns + (0 if at_once else self._lost.pause_ns())

    def none_named(self, now_ns: int, why: str, least_s: float) -> None:
        """Note that /connect named no server: ask again after a pause of at least `least_s`."""
        self.leave(now_ns, why)
        self._retry_ns = max(self._retry_ns, now_ns + int(least_s * S))

    def dials(self, now_ns: int) -> None:
        """Note that /connect named a server, and that connecting to this server starts now."""
        self._opened_ns = now_ns

    def silent(self, now_ns: int) -> bool:
        """Return whether the server counts as dead."""
        if not self.up or now_ns <= self.heartbeat.dead_ns(self.open):
            return False
        self.unresponsive = True
        return True

    def opens(self, now_ns: int) -> bool:
        """Return whether to make another connection now."""
        if self.up or now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self.unresponsive = self.unresponsive or not self._retry_ns
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def has_room(self, now_ns: int) -> bool:
        """Return whether more can be sent now, that is, some time after `full`."""
        return now_ns >= self._room_ns

    def full(self, now_ns: int) -> None:
        """Note that there was no room for a message: send the rest a moment later."""
        self._room_ns = now_ns + ROOM_AGAIN_NS
        if not self.open:
            self.greeting.due_ns, self.greeting.started_ns = self._room_ns, None

    def wake_ns(self, sends: bool) -> int | None:
        """Return when something becomes due without an event; `sends`: messages wait for room."""
        if not self.up:
            return self._retry_ns or None
        if not self.open:
            return self.greeting.due_ns
        beat = self.heartbeat
        return min(beat.dead_ns(self.open) + 1, self._room_ns if sends else beat.sent_ns + beat.beat_ns)
