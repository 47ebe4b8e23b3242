"""The client's side of the protocol, without a socket and without a clock: what to say when, what is believed, what is
in force.

It is told what happens and when (`connected`, `lost`, `hear`, `look`), and asked what to do (`due`, `reconnects`,
`take`, `wake_ns`). Instants are of one monotonic clock. Not thread-safe: link.py holds a lock around every use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from rtcontrol_client.client.connection import NOBODY, OffsetFilter, S, ServerConnection
from rtcontrol_client.client.errors import ClientError, Refused
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.phase_lock import PhaseLock
from rtcontrol_client.client.session import QUEUE, SessionState, all_of
from rtcontrol_client.wire import PROTOCOL, Code, Message, messages
from rtcontrol_client.wire.messages import Observe, ObserveMany, Ping, Pong, Reset

CLOCK_PING_NS = 10 * S  # who observes all the time is never silent, and would never compare clocks
ROOM_AGAIN_NS = S // 50  # after this a connection without room is tried again
OF_ITS_TIME = (Observe, ObserveMany, Ping, Pong)  # what is worth nothing later


class Core(SessionState):
    """One client's conversation over any number of connections and sessions."""

    def __init__(self, options: Options, now_ns: int) -> None:
        super().__init__(options)
        self.connection = ServerConnection(options.backoff_s, now_ns)
        self.offset, self.phase = OffsetFilter(), PhaseLock()
        self.welcome: messages.Welcome | None = None
        self.instruction: str | None = None  # the one in force, as the server told it last
        self.error: ClientError | None = None  # why it ended: nothing is said any more
        self.last_error: str | None = None  # in the server's words
        self.ignored: Counter[str] = Counter()  # calls and messages, by why
        self.latency_ns: deque[int] = deque(maxlen=4096)
        self._release_ns: int | None = None  # of any of the session's ticks, by the server's clock
        self._known = False  # whether our token is a session's
        self._greeting: str | None = None  # the instruction of this connection's hello, which is repeated as it was
        self._said_ns, self._pinged_ns = now_ns, 0
        self._room_ns = 0  # no more is said before, for want of room

    def end(self, error: ClientError, now_ns: int) -> None:
        """No more is said; the safe call is in force from now on."""
        if self.error is None:
            self.error, self.connection.open = error, False
            self.waiting.clear()
            self.unanswered = self.refused = None
            self.begins(self.force.ends("session_ended"), now_ns)
            self.version += 1

    @property
    def trouble(self) -> str:
        """What keeps the session from being live, as far as is known: the server's words, or the connection's state."""
        said = self.last_error
        return f"the server answered {said.removesuffix('.')}" if said else self.connection.trouble

    def unwelcomed(self, where: str, seconds: float) -> ClientError:
        """What to say where no welcome came from this address within so long."""
        if self.trouble == NOBODY:
            return ClientError(f"No rtcontrol server answers at {where}.", f"Start one: rtcontrol serve --bind {where}")
        remedy = "Correct that, or give another server's address (with keys where it uses --keys)."
        return ClientError(f"No welcome from {where} in {seconds:g} s: {self.trouble}.", remedy)

    # What the connection says.

    def connected(self, now_ns: int) -> None:
        """A connection is there: greet."""
        self.connection.connected(now_ns)
        self._room_ns = 0

    def lost(self, now_ns: int, why: str) -> None:
        """There is no connection any more: it connects again after a growing, random pause. What is in force runs to
        its own end."""
        self._greet_anew(now_ns)
        self.connection.lost(now_ns, why)

    def _greet_anew(self, now_ns: int) -> None:
        if self.connection.open:
            self.count["reconnects"] += 1
            self.begins(self.force.lost(), now_ns)
        self.connection.open, self.connection.greeted_ns = False, None
        # An observation as old as the gap helps nobody; decide()'s is said again.
        self.drop(*OF_ITS_TIME)

    def reconnects(self, now_ns: int) -> bool:
        """Whether the socket is to be closed and made anew now."""
        if self.error is not None:
            return False
        if (why := self.connection.dead(now_ns)) is not None:
            self.lost(now_ns, why)
        return self.connection.opens(now_ns)

    def elsewhere(self) -> None:
        """The next connection goes to another server, which does not know the session: maybe of another machine, whose
        clock is another one."""
        self._known = False
        self.offset, self.phase, self._pinged_ns, self._release_ns = OffsetFilter(), PhaseLock(), 0, None

    def due(self, now_ns: int) -> list[Message]:
        """What must be said now."""
        connection = self.connection
        if self.error is not None or not connection.up:
            return []
        if not connection.open:
            if not connection.greets(now_ns):
                return []
            again = connection.greeted_ns is not None
            if not again:
                connection.greeted_ns, self._greeting = now_ns, self.wanted
            hello = self.options.hello(now_ns, self.token if self._known else None, self._greeting)
            # A welcome may take a while; whether anybody is there at all, a ping tells.
            return [hello, self._ping(now_ns)] if again else [hello]
        if now_ns < self._room_ns:
            return []
        said = list(self.waiting)
        self.waiting.clear()
        silent = not said and now_ns - self._said_ns >= connection.beat_ns
        if silent or not self._pinged_ns or now_ns - self._pinged_ns >= CLOCK_PING_NS:
            said.append(self._ping(now_ns))
        self._said_ns = now_ns if said else self._said_ns
        return said

    def _ping(self, now_ns: int) -> Ping:
        self._pinged_ns = now_ns
        return Ping(id=now_ns % (1 << 53), t_ns=now_ns)

    def unsent(self, rest: Sequence[Message], now_ns: int) -> None:
        """What was due could not be sent, from this message on: there is no connection yet, or it is full. An
        observation is old by the time there is room. The rest is not said twice: without its reset, say, the server
        would stay in an episode that is over."""
        if self.connection.open:
            self.waiting.extendleft(m for m in reversed(rest) if not isinstance(m, OF_ITS_TIME))
            self._room_ns = now_ns + ROOM_AGAIN_NS
        else:
            self.connection.hello_ns, self.connection.greeted_ns = now_ns + ROOM_AGAIN_NS, None

    def wake_ns(self, now_ns: int) -> int:
        """When something becomes due by itself, at the latest in half a second."""
        times = [now_ns + S // 2]
        if self.force.expires_ns is not None:
            times.append(self.force.expires_ns + 1)
        if self.error is None:
            times.append(self.connection.wake_ns() or times[0])
            if self.connection.open:
                times.append(self._room_ns if self.waiting else self._said_ns + self.connection.beat_ns)
        return max(now_ns, min(times))

    def look(self, now_ns: int) -> None:
        """End what is in force when its time has come."""
        if self.force.look(now_ns):
            self.count["expired"] += 1
            self.begins(True, now_ns)

    def hear(self, message: Message, now_ns: int) -> None:
        """A message of the server."""
        self.connection.heard_ns = now_ns
        if self.error is not None:
            return
        if isinstance(message, messages.CallMessage):
            self._call(message, now_ns)
        elif isinstance(message, messages.Welcome):
            self._welcomed(message, now_ns)
        elif isinstance(message, Ping):
            self.say(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))
        elif isinstance(message, Pong):
            self.offset.add(message.t_ping_ns, message.t_received_ns, message.t_sent_ns, now_ns)
        elif isinstance(message, messages.Instruct) and message.session == self.token:
            self.wanted = self.instruction = message.instruction
        elif isinstance(message, messages.ErrorMessage):
            self._error(message, now_ns)
        elif isinstance(message, messages.Bye) and message.session in (None, self.token):
            if self.options.persist or self.connection.several:
                self._known = False
                self.begins(self.force.ends("session_ended"), now_ns)
                self._greet_anew(now_ns)
                if message.reconnect and self.connection.several:
                    self.connection.leave("the server goes away", at_once=True)
                else:
                    self.connection.refused(now_ns)
            else:
                why = f"The server ended the session ({message.reason[:200]})."
                self.end(ClientError(why, "Connect anew."), now_ns)
        else:
            self.ignored[message.type] += 1

    # Single messages.

    def _welcomed(self, welcome: messages.Welcome, now_ns: int) -> None:
        if self.connection.open or self._of_before(welcome):
            self.ignored["welcome"] += 1  # the answer to a hello said twice, or before
            return
        if not welcome.protocol or welcome.protocol[0] != PROTOCOL[0]:
            what = f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}."
            self.end(ClientError(what, "Update either."), now_ns)
            return
        told = self.instruction if welcome.resumed else self._greeting
        self.connection.welcomed(welcome.heartbeat_ms)
        self.welcome, self.instruction, self._release_ns = welcome, welcome.instruction, welcome.release_ns
        safe_calls = self.own_safe_calls or all_of(welcome.safe_calls, welcome.safe_call)
        if welcome.resumed:
            self.count["resumed"] += 1
            self.force.safe_calls = safe_calls
            queued = {m.epoch for m in self.waiting if isinstance(m, Reset)}
            for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
                if epoch not in queued:
                    self.waiting.appendleft(Reset(session=self.token, epoch=epoch))
        else:
            self.count["sessions"] += 1
            self._known, self.token = True, welcome.session
            # Another server, maybe of another machine: its clock is another one.
            self.offset, self.phase, self._pinged_ns = OffsetFilter(), PhaseLock(), 0
            # What waited was for the session that is gone; only its newest look at the world is as good as ever.
            looks = [m for m in self.waiting if isinstance(m, Observe)]
            for gone in (self.waiting, self.stamps, self.owed):
                gone.clear()
            self.begins(self.force.begin(welcome.epoch, safe_calls), now_ns)
            for look in looks:
                self.number(look)
        if self.wanted is not None and not welcome.resumed and self.wanted == told:
            self.wanted = welcome.instruction  # the greeting's, as it was understood
        # Given while greeting, or lost with the connection.
        if self.wanted is not None and self.wanted not in (told, welcome.instruction):
            self.drop(messages.Instruct)
            self.instruct(self.wanted)
        if self.unanswered is not None:
            self.drop(Observe)
            self.unanswered = self.number(self.unanswered)
        self.version += 1

    def _call(self, message: messages.CallMessage, now_ns: int) -> None:
        known = self.stamps.get(message.seq_obs) if message.seq_obs is not None else None
        reason = None
        if not self.connection.open or message.session != self.token:
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
        if self.unanswered is not None and message.seq_obs == self.unanswered.seq and not message.more:
            self.unanswered = None
        if message.status == "fresh" and message.t_obs_ns is not None:
            self.latency_ns.append(now_ns - message.t_obs_ns)
        self._release_ns = self._release_ns if message.release_ns is None else message.release_ns
        self.phase.heard(message, self.period_ns, now_ns)
        if len(self.own_safe_calls) > 1 and self.welcome is not None and self.welcome.protocol < [1, 1]:
            # A server of 1.0 knows the first of our safe calls alone.
            message = message.model_copy(update={"calls": list(self.own_safe_calls)})
        begins, too_old = self.force.receive(message, now_ns)
        if too_old:
            self.count["expired"] += 1
            self.owed[message.tick] = None
            self.acknowledge(message.tick, "expired", now_ns)
        self.begins(begins, now_ns)
        self.version += 1

    def _of_before(self, answer: messages.Welcome | messages.ErrorMessage) -> bool:
        """Whether it answers a hello of an earlier greeting, whose epoch, say, may be over."""
        stamp_ns, connection = answer.t_client_ns, self.connection
        return stamp_ns is not None and (connection.greeted_ns is None or stamp_ns < connection.greeted_ns)

    def _error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        connection = self.connection
        # In greeting these answer what was said before the hello.
        stray = message.seq is not None or (message.code == Code.STATE and message.retryable)
        if self._of_before(message) or (stray and not connection.open):
            self.ignored["error"] += 1
            return
        self.count["errors"] += 1
        self.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self.instruction is not None and self.wanted != self.instruction:
            # Said again in a later hello it would be refused for good: the one before goes on.
            self.wanted = self.instruction
            if not connection.open:
                connection.hello_ns, connection.greeted_ns = now_ns, None
                return
        unknown = message.code == Code.SESSION or (connection.open and message.code == Code.STATE and message.retryable)
        if message.code == Code.STATE and not (connection.open or message.retryable or message.fatal):
            connection.leave("the server has another session on this connection")
        elif not message.retryable and (message.fatal or not (connection.open or unknown)):
            self.end(Refused(message), now_ns)
        elif unknown or message.fatal:
            if message.fatal:
                self.begins(self.force.ends("session_ended"), now_ns)
            # Live: this connection is a new one to the server, so resume. Resuming: nobody knows the session, so anew.
            first = not connection.open and self._known
            self._known = self._known and connection.open and not message.fatal
            self._greet_anew(now_ns)
            if unknown:
                connection.again(now_ns, later=False)
                connection.hello_ns = now_ns if first else connection.hello_ns
            else:
                connection.refused(now_ns)
        elif not connection.open:
            connection.refused(now_ns)
        elif self.unanswered is not None and message.seq == self.unanswered.seq:
            self.unanswered, self.refused = None, self.last_error
            self.version += 1

    @property
    def period_ns(self) -> int:
        """Of the server's ticks; a tenth of a second before it is known."""
        return S // 10 if self.welcome is None else max(1, int(self.welcome.period_ms * 1e6))

    def timed(self, now_ns: int) -> bool:
        """Whether the instants of the server's ticks are known."""
        clocks = self.phase.learnt or self.offset.now(now_ns) is not None
        return self._release_ns is not None and self.connection.open and clocks

    def next_observation_ns(self, lead_ns: int | None, now_ns: int) -> int | None:
        """The next instant that lies `lead_ns` before a tick (None: as long as the phase lock says); None where ticks
        or clock are not known."""
        period_ns, clock, release_ns = self.period_ns, self.offset.now(now_ns), self._release_ns
        if release_ns is None or not self.connection.open:
            return None
        if lead_ns is None:
            return self.phase.next_ns(release_ns, period_ns, clock, now_ns)
        if clock is None:
            return None
        some_ns = release_ns - clock.offset_ns - lead_ns
        return some_ns + ((now_ns - some_ns) // period_ns + 1) * period_ns
