"""The client's side of the protocol, without a socket and without a clock: what to say when, what is believed, what is
in force.

It is told what happens and when (`connected`, `lost`, `hear`, `look`), and asked what to do (`due`, `reconnects`,
`take`, `wake_ns`). Instants are of one monotonic clock. Not thread-safe: link.py holds a lock around every use.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Literal

from rtcontrol.bridges.client.errors import ClientError, Refused
from rtcontrol.bridges.client.inforce import InForce, Standing, safe_calls
from rtcontrol.bridges.client.offset import OffsetFilter
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire import PROTOCOL, Code, Message, messages

S = 1_000_000_000
NOBODY = "nobody answers"
HELLO_AGAIN_NS = S
BETWEEN_HELLOS_NS = S // 5  # what the server takes at most: one that refuses each hello is not flooded with them
ROOM_AGAIN_NS = S // 50  # after this a connection without room is tried again
CONNECT_NS = 2 * S  # a connection that does not come up in this time is tried anew
DEAD_HEARTBEATS = 3
LEAST_BEAT_MS = 50.0  # a server's heartbeat below this would be found dead at once
GREETING_SILENCE_NS = 10 * S  # a welcome may take longer, but not an answer to our pings
CLOCK_PING_NS = 10 * S  # who observes all the time is never silent, and would never compare clocks
QUEUE = 256
OF_ITS_TIME = (messages.Observe, messages.Ping, messages.Pong)  # what is worth nothing later
What = Literal["executed", "expired", "failed", "refused"]
COUNTS = ["observed", "superseded", "fresh", "held", "safe", "expired", "errors", "sessions", "resumed", "reconnects"]


class Core:
    """One client's conversation over any number of connections and sessions."""

    def __init__(self, options: Options, now_ns: int, listens: bool = False) -> None:
        options.hello(0)  # mistakes are told before anything is connected
        self.options, self.listens = options, listens
        self.force = InForce(0, options.safe_calls)
        self.up = False  # whether there is a connection
        self.open = False  # welcomed on it
        self.welcome: messages.Welcome | None = None
        self.error: ClientError | None = None  # why it ended: nothing is said any more
        self.trouble = NOBODY  # what keeps the session from being open, for people
        self.version = 0  # grows with each call message, and whatever else changes what is in force
        self.handled: deque[Standing] = deque(maxlen=QUEUE)  # what began to be in force, for `on_call`
        self.handled_safe: deque[Standing] = deque(maxlen=QUEUE)  # safe, where it has a handler of its own
        self.unanswered: messages.Observe | None = None  # of decide(): said again after a reconnect
        self.refused: str | None = None  # why decide()'s observation was refused
        self.instruction: str | None = None  # the one in force, as the server told it last
        self.offset = OffsetFilter()
        self._release_ns: int | None = None  # of any of the session's ticks, by the server's clock
        self.outbox: deque[Message] = deque()
        self.count: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.last_error: str | None = None
        self._latency_ns: deque[int] = deque(maxlen=4096)
        self._token, self._known = "-" * 16, False  # whether it is a session's
        self._seq = 0
        self._stamps: dict[int, int] = {}  # of the newest observations, by seq
        self._unacknowledged: dict[int, None] = {}  # ticks of this epoch
        self._wanted: str | None = None  # the newest instruction asked for that was not refused
        self._greeting: str | None = None  # the one of this connection's hello, which is repeated as it was
        self._greeted = False  # whether this connection's first hello was said
        self._astray = False  # the server holds this connection for another session: it is to be closed
        self._hello_ns = self._said_hello_ns = 0  # when the next hello is due, and the last one was
        self._room_ns = 0  # before this nothing more is said: there was no room
        self._beat_ns, self._said_ns, self._heard_ns, self._pinged_ns = S, now_ns, now_ns, 0
        self._attempts, self._opened_ns, self._retry_ns = 0, now_ns, 0

    @property
    def epoch(self) -> int:
        return self.force.epoch

    # What the user says.

    def observe(self, look: messages.Observe) -> messages.Observe:
        """Queue an observation (session, seq and epoch are filled in); in the server's pacing it replaces one that is
        not sent yet."""
        if self.options.pacing == "server" or len(self.outbox) >= QUEUE:
            for i, waiting in enumerate(self.outbox):
                if isinstance(waiting, messages.Observe):
                    del self.outbox[i]
                    self.count["superseded"] += 1
                    break
        self.count["observed"] += 1
        return self._say_look(look)

    def _say_look(self, look: messages.Observe) -> messages.Observe:
        self._seq += 1
        look = look.model_copy(update={"session": self._token, "seq": self._seq, "epoch": self.epoch})
        self._stamps[look.seq] = look.t_ns
        _forget(self._stamps)
        self.outbox.append(look)
        return look

    def ask(self, look: messages.Observe) -> None:
        """As `observe`, and `unanswered` until its call has come. Raises ClientError: there is one already."""
        if self.unanswered is not None:
            raise ClientError("decide() is running already.", "Wait for its return.")
        self.unanswered, self.refused = self.observe(look), None

    def instruct(self, instruction: str) -> None:
        """Another goal; it survives reconnects."""
        self._say(messages.Instruct(session=self._token, instruction=instruction))
        self._wanted = instruction

    def reset(self, ended: messages.Outcome | None = None) -> int:
        """A new epoch: nothing of the old one counts any more."""
        self.outbox = deque(m for m in self.outbox if not isinstance(m, messages.Observe))
        self.force.reset(self.epoch + 1)
        # Those that there is no room for are made up for when the session is resumed.
        self._say(messages.Reset(session=self._token, epoch=self.epoch, ended=ended))
        self._unacknowledged.clear()
        self.unanswered = None
        self.version += 1
        return self.epoch

    def acknowledge(
        self, tick: int | None, outcome: What, now_ns: int, result: str | None = None, error: str | None = None
    ) -> None:
        """Say what became of a call of this epoch, once, where the server was told that it would be. None is no call of
        the server's."""
        if tick is None:
            return
        said = {"result": result, "error": error, "session": self._token, "tick": tick, "epoch": self.epoch}
        told = messages.Executed.model_validate({**said, "outcome": outcome, "t_ns": now_ns})
        if tick in self._unacknowledged:
            del self._unacknowledged[tick]
            if self.options.acknowledges:
                self._say(told)

    def _say(self, message: Message) -> None:
        if len(self.outbox) < 4 * QUEUE:
            self.outbox.append(message)

    def end(self, error: ClientError, now_ns: int) -> None:
        """No more is said; the safe call is in force from now on."""
        if self.error is None:
            self.error, self.open = error, False
            self.outbox.clear()
            self._begins(self.force.left(), now_ns)
            self.version += 1

    # What the connection says.

    def connected(self, now_ns: int) -> None:
        """A connection is there: greet."""
        self.up, self.trouble = True, "the server says nothing"
        self._retry_ns = self._hello_ns = self._room_ns = 0
        self._greeted = self._astray = False
        self._heard_ns = now_ns

    def lost(self, now_ns: int, why: str) -> None:
        """There is no connection any more: a client that listens greets the next peer; another one connects anew after
        a growing, random pause. What is in force runs to its own end."""
        self.trouble, self.up = why, False
        self._greet_anew(now_ns)
        if not self._retry_ns and not self.listens:
            first, most = self.options.backoff_s
            pause_s = min(most, first * 2 ** min(self._attempts, 20)) * random.uniform(0.5, 1.0)
            self._attempts += 1
            self._retry_ns = now_ns + int(pause_s * S)

    def _greet_anew(self, now_ns: int) -> None:
        if self.open:
            self.count["reconnects"] += 1
            self._begins(self.force.lost(), now_ns)
        self.open = self._greeted = False
        # An observation as old as the gap helps nobody; decide()'s is said again.
        self.outbox = deque(m for m in self.outbox if not isinstance(m, OF_ITS_TIME))

    def reconnects(self, now_ns: int) -> bool:
        """Whether the socket is to be closed and made anew now."""
        if self.error is not None:
            return False
        dead = self._heard_ns + (DEAD_HEARTBEATS * self._beat_ns if self.open else GREETING_SILENCE_NS)
        if self.up and (self._astray or now_ns > dead):
            another = "the server has another session on this connection"
            self.lost(now_ns, another if self._astray else "the server is silent")
            if self.listens:
                # The connection is still there: whoever hangs at its other end is greeted as soon as it goes on.
                self.connected(now_ns)
        if self.up or self.listens:
            return False
        if now_ns < (self._retry_ns or self._opened_ns + CONNECT_NS):
            return False
        self._opened_ns, self._retry_ns = now_ns, 0
        return True

    def due(self, now_ns: int) -> list[Message]:
        """What must be said now."""
        if self.error is not None or not self.up:
            return []
        if not self.open:
            if now_ns < self._hello_ns:
                return []
            self._hello_ns, self._said_hello_ns = now_ns + HELLO_AGAIN_NS, now_ns
            if not self._greeted:
                self._greeting = self._wanted
            hello = self.options.hello(now_ns, self._token if self._known else None, self._greeting)
            # A welcome may take a while; whether anybody is there at all, a ping tells.
            greeted, self._greeted = self._greeted, True
            return [hello, self._ping(now_ns)] if greeted else [hello]
        if now_ns < self._room_ns:
            return []
        said = list(self.outbox)
        self.outbox.clear()
        silent = not said and now_ns - self._said_ns >= self._beat_ns
        if silent or not self._pinged_ns or now_ns - self._pinged_ns >= CLOCK_PING_NS:
            said.append(self._ping(now_ns))
        self._said_ns = now_ns if said else self._said_ns
        return said

    def _ping(self, now_ns: int) -> messages.Ping:
        self._pinged_ns = now_ns
        return messages.Ping(id=now_ns % (1 << 53), t_ns=now_ns)

    def unsent(self, rest: Sequence[Message], now_ns: int) -> None:
        """What was due could not be sent, from this message on: there is no connection yet, or it is full."""
        if self.open:
            # An observation is old by then. The rest is not said twice: without its reset, say, the server would stay
            # in an episode that is over.
            self.outbox.extendleft(m for m in reversed(rest) if not isinstance(m, OF_ITS_TIME))
            self._room_ns = now_ns + ROOM_AGAIN_NS
        else:
            self._hello_ns, self._greeted = now_ns + ROOM_AGAIN_NS, False

    def wake_ns(self, now_ns: int) -> int:
        """When something becomes due by itself, at the latest in half a second."""
        times = [now_ns + S // 2]
        if self.force.expires_ns is not None:
            times.append(self.force.expires_ns + 1)
        if self.error is None:
            if not self.up:
                times.append(self._retry_ns or times[0])
            elif not self.open:
                times.append(self._hello_ns)
            elif self.outbox:
                times.append(self._room_ns)
            else:
                times += [self._said_ns + self._beat_ns, self._heard_ns + DEAD_HEARTBEATS * self._beat_ns + 1]
        return max(now_ns, min(times))

    def look(self, now_ns: int) -> None:
        """End what is in force when its time has come."""
        if self.force.look(now_ns):
            self.count["expired"] += 1
            self._begins(True, now_ns)

    def hear(self, message: Message, now_ns: int) -> None:
        """A message of the server."""
        self._heard_ns = now_ns
        if self.error is not None:
            return
        if isinstance(message, messages.CallMessage):
            self._call(message, now_ns)
        elif isinstance(message, messages.Welcome):
            self._welcomed(message, now_ns)
        elif isinstance(message, messages.Ping):
            self._say(messages.Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))
        elif isinstance(message, messages.Pong):
            self.offset.add(message.t_ping_ns, message.t_received_ns, message.t_sent_ns, now_ns)
        elif isinstance(message, messages.Instruct) and message.session == self._token:
            self._wanted = self.instruction = message.instruction
        elif isinstance(message, messages.ErrorMessage):
            self._error(message, now_ns)
        elif isinstance(message, messages.Bye) and message.session in (None, self._token):
            if self.options.persist:
                self._known = False
                self._begins(self.force.left(), now_ns)
                self._greet_anew(now_ns)
                self._hello_ns = _later(now_ns)
            else:
                why = f"The server ended the session ({message.reason[:200]})."
                self.end(ClientError(why, "Connect anew."), now_ns)
        else:
            self.ignored[message.type] += 1

    # Single messages.

    def _welcomed(self, welcome: messages.Welcome, now_ns: int) -> None:
        if self.open or not self.up or (welcome.resumed and welcome.session != self._token):
            self.ignored["welcome"] += 1  # the answer to a hello said twice, or on the connection before
            return
        if not welcome.protocol or welcome.protocol[0] != PROTOCOL[0]:
            what = f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}."
            self.end(ClientError(what, "Update either."), now_ns)
            return
        self.open, self.welcome, self.instruction = True, welcome, welcome.instruction
        self._beat_ns = int(max(welcome.heartbeat_ms, LEAST_BEAT_MS) * 1e6)
        self._attempts = 0  # now, not when connected: else a server that turns us away were asked ten times a second
        self._release_ns = welcome.release_ns
        own_calls = self.options.safe_calls or safe_calls(welcome)
        if welcome.resumed:
            self.count["resumed"] += 1
            self.force.safe_calls = own_calls
            queued = {m.epoch for m in self.outbox if isinstance(m, messages.Reset)}
            for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
                if epoch not in queued:
                    self.outbox.appendleft(messages.Reset(session=self._token, epoch=epoch))
        else:
            self.count["sessions"] += 1
            self._token, self._known = welcome.session, True
            # Another server, maybe of another machine: its clock is another one.
            self.offset, self._pinged_ns = OffsetFilter(), 0
            # What waited was for the session that is gone; only its newest look at the world is as good as ever.
            looks = [m for m in self.outbox if isinstance(m, messages.Observe)]
            self.outbox.clear()
            self._stamps.clear()
            self._unacknowledged.clear()
            self._begins(self.force.begin(welcome.epoch, own_calls), now_ns)
            for look in looks:
                self._say_look(look)
            if self._wanted is not None and self._wanted != self._greeting:
                self.outbox.append(messages.Instruct(session=self._token, instruction=self._wanted))
        if self.unanswered is not None:
            self.outbox = deque(m for m in self.outbox if not isinstance(m, messages.Observe))
            self.unanswered = self._say_look(self.unanswered)
        self.version += 1

    def _call(self, message: messages.CallMessage, now_ns: int) -> None:
        known = self._stamps.get(message.seq_obs) if message.seq_obs is not None else None
        reason = None
        if not self.open or message.session != self._token:
            reason = "session"
        elif message.epoch != self.epoch:
            reason = "epoch"
        elif message.tick <= self.force.last_tick:
            reason = "order"
        elif message.status == "fresh" and known is not None and known != message.t_obs_ns:
            reason = "stamp"  # it would live longer, or shorter, than its observation allows
        if reason is not None:
            self.ignored[reason] += 1
            return
        self.count[message.status] += 1
        if self.unanswered is not None and message.seq_obs == self.unanswered.seq:
            self.unanswered = None
        if message.status == "fresh" and message.t_obs_ns is not None:
            self._latency_ns.append(now_ns - message.t_obs_ns)
        if message.release_ns is not None:
            self._release_ns = message.release_ns
        begins, too_old = self.force.receive(message, now_ns)
        if too_old:
            self.count["expired"] += 1
            self._unacknowledged[message.tick] = None
            self.acknowledge(message.tick, "expired", now_ns)
        self._begins(begins, now_ns)
        self.version += 1

    def _begins(self, begins: bool, now_ns: int) -> None:
        if begins:
            self.version += 1
            standing = self.force.at(now_ns)
            if standing.tick is not None:
                self._unacknowledged[standing.tick] = None
                _forget(self._unacknowledged)
            if self.options.on_safe is not None and standing.status == "safe":
                self.handled_safe.append(standing)
            elif self.options.on_call is not None:
                self.handled.append(standing)

    def _error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        self.count["errors"] += 1
        self.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self.instruction is not None and self._wanted != self.instruction:
            # Said again in a later hello it would be refused for good: the one before goes on.
            self._wanted = self.instruction
            if not self.open:
                self._hello_ns, self._greeted = now_ns, False
                return
        unknown = message.code == Code.SESSION or (self.open and message.code == Code.STATE and message.retryable)
        if message.code == Code.STATE and not (self.open or message.retryable or message.fatal):
            self._astray = True
        elif not message.retryable and (message.fatal or not (self.open or unknown)):
            self.end(Refused(message), now_ns)
        elif unknown or message.fatal:
            # Live: this connection is a new one to the server, so resume. Resuming: nobody knows the session, so anew.
            first = not self.open and self._known
            if not self.open or message.fatal:
                self._known = False
            self._greet_anew(now_ns)
            again_ns = now_ns if first else max(now_ns, self._said_hello_ns + BETWEEN_HELLOS_NS)
            self._hello_ns = again_ns if unknown else _later(now_ns)
        elif not self.open:
            self._hello_ns = _later(now_ns)
        elif self.unanswered is not None and message.seq == self.unanswered.seq:
            self.unanswered, self.refused = None, self.last_error
            self.version += 1

    # For those who execute.

    def take(self, queue: deque[Standing], now_ns: int) -> Standing | None:
        """The newest that waits in a queue, if it is in force at this instant. What is older, or is not, is
        acknowledged as expired."""
        if not queue:
            return None
        *skipped, newest = queue
        queue.clear()
        for old in skipped:
            self.acknowledge(old.tick, "expired", now_ns, error="superseded while the handler was busy")
        now = self.force.at(now_ns)
        if now.status == "safe" if newest.status == "safe" else now.call is newest.call:
            return newest
        self.acknowledge(newest.tick, "expired", now_ns, error="no longer in force when the handler could begin")
        return None

    def decided(self, now_ns: int) -> Standing:
        """decide() waits no longer: its answer. The call of another observation is none."""
        why = "no_answer" if self.unanswered is not None else self.refused
        self.unanswered = None
        now = self.force.at(now_ns)
        if why is None or self.error is not None:
            return now
        calls = self.force.safe_calls
        return Standing(calls[0] if calls else None, "safe", cause=why, more=calls[1:])

    def next_observation_ns(self, lead_ns: int, now_ns: int) -> int:
        """The next instant that lies `lead_ns` before a tick; a period from now where ticks or clock are not known."""
        period_ns = S // 10 if self.welcome is None else max(1, int(self.welcome.period_ms * 1e6))
        clock = self.offset.now(now_ns)
        if self._release_ns is None or clock is None or not self.open:
            return now_ns + period_ns
        some_ns = self._release_ns - clock.offset_ns - lead_ns
        return some_ns + ((now_ns - some_ns) // period_ns + 1) * period_ns

    def statistics(self, now_ns: int) -> dict[str, Any]:
        """Counts since the client was made; `latency_ms` is from the observation's stamp to the call's arrival, of the
        last 4096 fresh calls; `clock` the server's minus ours, by the fastest recent round trip.

        `superseded` observations were replaced by newer ones before they were sent; `expired` calls ran out of their
        time-to-live, in force or on the way; `ignored` ones were of another session, epoch or order.
        """
        ordered = sorted(self._latency_ns)
        shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0)) if ordered else ()
        at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares}
        clock = self.offset.now(now_ns)
        return {
            **{name: self.count[name] for name in COUNTS},
            "ignored": dict(self.ignored),
            "latency_ms": {name: round(ns / 1e6, 3) for name, ns in at.items()},
            "clock": {"offset_ms": clock.offset_ns / 1e6, "rtt_ms": clock.rtt_ns / 1e6} if clock else {},
            "last_error": self.last_error,
        }


def _forget(newest: dict[int, Any]) -> None:
    """Keep as many as may be asked for."""
    if len(newest) > 4 * QUEUE:
        del newest[next(iter(newest))]


def _later(now_ns: int) -> int:
    return now_ns + int(HELLO_AGAIN_NS * random.uniform(0.5, 1.5))
