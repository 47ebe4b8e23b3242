"""Decide when a client connects, sends its hello and ping messages, and reconnects. The caller passes the time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rtcontrol_client.wire.messages import Ping

S = 1_000_000_000
NO_ANSWER = "nobody answers"
HELLO_AGAIN_NS = S  # a hello without response is repeated at this interval
BETWEEN_HELLOS_NS = S // 5  # minimum interval between two hellos, which the server also enforces
LATER_S = (1.0, 4.0)  # seconds: shortest and longest pause after a temporary refusal
CONNECT_NS = 2 * S  # timeout of a connection attempt
DEAD_HEARTBEATS = 3  # the server counts as dead after this many heartbeat intervals of silence
BEAT_MS = (50.0, 10_000.0)  # allowed range of the heartbeat interval that a server announces
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


class HelloSchedule:
    """Decides when to send hello messages. `started_ns` is when the first hello of this connection was sent."""

    def __init__(self) -> None:
        self.started_ns: int | None = None
        self.due_ns = self._last_ns = 0
        self.refusal_backoff = Backoff(*LATER_S)

    def should_send_hello(self, now_ns: int) -> bool:
        """Return whether to send a hello now; if so, schedule the next hello."""
        is_due = now_ns >= self.due_ns
        if is_due:
            self.due_ns, self._last_ns = now_ns + HELLO_AGAIN_NS, now_ns
        return is_due

    def schedule_hello(self, now_ns: int, after_pause: bool) -> None:
        """Schedule the next hello: after a growing pause (if the server is full), else as soon as allowed."""
        soonest_ns = max(now_ns, self._last_ns + BETWEEN_HELLOS_NS)
        self.due_ns = now_ns + self.refusal_backoff.pause_ns() if after_pause else soonest_ns


class PeerHeartbeat:
    """Decides when to ping the server, and when a silent server counts as dead."""

    def __init__(self, now_ns: int) -> None:
        self.beat_ns, self.received_ns = S, now_ns
        self.sent_ns = now_ns
        self.pinged_ns = 0  # time of the last ping; 0 means to send a ping as soon as possible, to compare clocks

    def should_ping(self, now_ns: int, has_messages: bool) -> bool:
        """Return whether to send a ping now; `has_messages` is whether other messages are sent now."""
        is_idle = not has_messages and now_ns - self.sent_ns >= self.beat_ns
        is_due = is_idle or not self.pinged_ns or now_ns - self.pinged_ns >= CLOCK_PING_NS
        if has_messages or is_due:
            self.sent_ns = now_ns
        return is_due

    def create_ping(self, now_ns: int) -> Ping:
        self.pinged_ns = now_ns
        return Ping(id=now_ns % (1 << 53), t_ns=now_ns)

    def dead_ns(self, is_open: bool) -> int:
        """Return when a silent server counts as dead; `is_open` is whether its welcome has arrived."""
        return self.received_ns + (DEAD_HEARTBEATS * self.beat_ns if is_open else GREETING_SILENCE_NS)


class ServerConnection:
    """The state of the connection to a server. `is_up` is whether the socket is connected, `is_open` whether the server
    has sent its welcome; without a welcome, `problem` is the reason for people. `has_several_servers` is whether the
    next connection may be to another server, `is_unresponsive` whether the server was silent or could not be reached.
    """

    def __init__(self, backoff_s: tuple[float, float], now_ns: int) -> None:
        self.is_up = self.is_open = self.has_several_servers = self.is_unresponsive = False
        self.problem = NO_ANSWER
        self.greeting, self.heartbeat = HelloSchedule(), PeerHeartbeat(now_ns)
        self._reconnect_backoff = Backoff(*backoff_s)
        self._opened_ns, self._retry_ns, self._retry_send_ns = now_ns, 0, 0

    def on_connected(self, now_ns: int) -> None:
        """Handle a new connection: schedule a hello message for now."""
        self.is_up, self.problem, self.heartbeat.received_ns = True, "the server says nothing", now_ns
        self.greeting.started_ns, self.is_unresponsive = None, False
        self._retry_ns = self.greeting.due_ns = self._retry_send_ns = 0

    def on_welcome(self, heartbeat_ms: float) -> None:
        """Handle the server's welcome message: use the server's heartbeat interval, and reset the retry pauses."""
        self.is_open, self.heartbeat.beat_ns = True, int(min(max(heartbeat_ms, BEAT_MS[0]), BEAT_MS[1]) * 1e6)
        # `on_connected` does not reset the pauses, so that a server that refuses the client gets few hellos.
        self._reconnect_backoff.attempts = self.greeting.refusal_backoff.attempts = 0

    def on_lost(self, now_ns: int, why: str) -> None:
        """Handle a lost connection or a failed connection attempt: reconnect after a pause."""
        self.is_unresponsive = self.is_unresponsive or not (self.is_up or self._retry_ns)
        self.close_and_retry(now_ns, why)

    def close_and_retry(self, now_ns: int, why: str, at_once: bool = False) -> None:
        """Close the connection and reconnect after a pause (`at_once`: without a pause)."""
        self.problem, self.is_up = why, False
        if not self._retry_ns:
            self._retry_ns = now_ns + (0 if at_once else self._reconnect_backoff.pause_ns())

    def on_no_server(self, now_ns: int, why: str, min_pause_s: float) -> None:
        """Handle a /connect response without a server: request again after at least `min_pause_s`."""
        self.close_and_retry(now_ns, why)
        self._retry_ns = max(self._retry_ns, now_ns + int(min_pause_s * S))

    def start_connecting(self, now_ns: int) -> None:
        """Record that the client now starts to connect to a server that a /connect response named."""
        self._opened_ns = now_ns

    def is_server_dead(self, now_ns: int) -> bool:
        if not self.is_up or now_ns <= self.heartbeat.dead_ns(self.is_open):
            return False
        self.is_unresponsive = True
        return True

    def should_connect(self, now_ns: int) -> bool:
        """Return whether to start another connection attempt now."""
        if self.is_up or now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self.is_unresponsive = self.is_unresponsive or not self._retry_ns
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def can_send(self, now_ns: int) -> bool:
        """Return whether messages can be sent: False for 20 ms after the send buffer was full."""
        return now_ns >= self._retry_send_ns

    def on_full_buffer(self, now_ns: int) -> None:
        """Handle a full send buffer: send the remaining messages 20 ms later."""
        self._retry_send_ns = now_ns + ROOM_AGAIN_NS
        if not self.is_open:
            self.greeting.due_ns, self.greeting.started_ns = self._retry_send_ns, None

    def wake_ns(self, has_messages: bool) -> int | None:
        """Return when the next timer ends (None: no timer); `has_messages` is whether messages wait to be sent."""
        if not self.is_up:
            return self._retry_ns or None
        if not self.is_open:
            return self.greeting.due_ns
        beat = self.heartbeat
        return min(beat.dead_ns(self.is_open) + 1, self._retry_send_ns if has_messages else beat.sent_ns + beat.beat_ns)
