"""The client's side of the protocol, without a socket and without a clock.

The shell reports what happens and when (`connected`, `lost`, `receive`, `expire`), and asks what to do (`due`,
`reconnects`, `take`, `wake_ns`). Instants are of one monotonic clock. Not thread-safe: link.py holds a lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol_client.client.active import ActiveStanding, CallQueue, Standing, all_of, keep
from rtcontrol_client.client.connection import NO_ANSWER, S, ServerConnection
from rtcontrol_client.client.errors import ClientError, Refused
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.timing import ServerTicks
from rtcontrol_client.wire import PROTOCOL, Code, Message, messages
from rtcontrol_client.wire.messages import Executed, Instruct, Observe, Outcomes, Ping, Pong, Reset, spoken

QUEUE = 256
SHORT_LIVED = (Observe, messages.ObserveMany, Ping, Pong)  # worth nothing later


@dataclass
class CallCounts:
    """What is counted; `ignored` are messages, by the reason."""

    count: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    latency_ns: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    last_error: str | None = None  # in the server's words


@dataclass
class SessionState:
    """The newest session: the server's terms, its token, and whether the server knows it."""

    welcome: messages.Welcome | None = None
    token: str = "-" * 16
    known: bool = False


@dataclass
class Goal:
    """The instruction that is active by the server's last message; the newest one requested that was not refused; and
    that of this connection's hello, which is repeated as it was."""

    active: str | None = None
    wanted: str | None = None
    greeting: str | None = None


@dataclass
class Looks:
    """Observations: the last number, the newest ones' stamps by number, and decide()'s until its call has come (it is
    sent again after a reconnect), or why it was refused."""

    seq: int = 0
    stamps: dict[int, int] = field(default_factory=dict)
    unanswered: Observe | None = None
    refused: str | None = None


class Core:
    """One client's conversation over any number of connections and sessions."""

    def __init__(self, options: Options, now_ns: int) -> None:
        self.options = options
        self.connection = ServerConnection(options.backoff_s, now_ns)
        self.waiting: deque[Message] = deque()  # to be sent, in order
        # Errors in the options are raised before anything is connected.
        self.active = ActiveStanding(0, options.calls, options.ttl_ms)
        self.handover = CallQueue(options.on_call is not None, options.on_safe is not None)
        self.ticks, self.tally = ServerTicks(), CallCounts()
        self.error: ClientError | None = None  # why it ended: nothing is sent any more
        self.version = 0  # grows with each call message, and whatever else changes what is active
        self.session, self.goal, self.looks = SessionState(), Goal(), Looks()

    def safe_calls(self) -> tuple[messages.FunctionCall, ...]:
        """Return the client's safe calls, else those of the welcome."""
        welcome = self.session.welcome
        return self.options.calls or (() if welcome is None else all_of(welcome.safe_calls, welcome.safe_call))

    @property
    def epoch(self) -> int:
        """The active episode."""
        return self.active.epoch

    @property
    def period_ns(self) -> int:
        """Of the server's ticks; a tenth of a second before it is known."""
        return S // 10 if self.session.welcome is None else max(1, int(self.session.welcome.period_ms * 1e6))

    @property
    def trouble(self) -> str:
        """What keeps the session from being live, as far as is known: the server's words, or the connection's state."""
        words = self.tally.last_error
        return f"the server answered {words.removesuffix('.')}" if words else self.connection.trouble

    def unwelcomed(self, where: str, seconds: float) -> ClientError:
        """Return the error of no welcome from this address within so long."""
        if self.trouble == NO_ANSWER:
            return ClientError(f"No rtcontrol server answers at {where}.", f"Start one: rtcontrol serve --bind {where}")
        hint = "Correct that, or give another server's address (with keys where it uses --keys)."
        return ClientError(f"No welcome from {where} in {seconds:g} s: {self.trouble}.", hint)

    # What the user does.

    def observe(self, look: Observe) -> Observe:
        """Queue an observation, in the server's pacing in the place of an unsent one; its number is filled in."""
        self.tally.count["observed"] += 1
        unsent = [message for message in self.waiting if isinstance(message, Observe)]
        if unsent and (self.options.pacing == "server" or len(self.waiting) >= QUEUE):
            self.waiting.remove(unsent[0])
            self.tally.count["superseded"] += 1
        return self._number(look)

    def _number(self, look: Observe) -> Observe:
        self.looks.seq += 1
        look = look.model_copy(update={"session": self.session.token, "seq": self.looks.seq, "epoch": self.epoch})
        keep(self.looks.stamps, look.seq, look.t_ns)
        self.waiting.append(look)
        return look

    def request(self, look: Observe) -> None:
        """As `observe`, and `unanswered` until its call has come. Raises ClientError: there is one already."""
        if self.looks.unanswered is not None:
            raise ClientError("decide() is running already.", "Wait for its return.")
        self.looks.unanswered, self.looks.refused = self.observe(look), None

    def decided(self, now_ns: int) -> Standing:
        """Return decide()'s answer: it waits no longer. The call of another observation is none."""
        why = "no_answer" if self.looks.unanswered is not None else self.looks.refused
        self.looks.unanswered = None
        return self.active.at(now_ns) if why is None else self.active.safe(why)

    def instruct(self, instruction: str) -> None:
        """Send another goal; it survives reconnects."""
        self.send(Instruct(session=self.session.token, instruction=instruction))
        self.goal.wanted = instruction

    def reset(self, ended: messages.Outcome | None = None) -> int:
        """Start a new epoch: nothing of the old one counts any more."""
        self.drop(Observe)
        self.active.reset(self.epoch + 1)
        # Those that there is no room for are made up for when the session is resumed.
        self.send(Reset(session=self.session.token, epoch=self.epoch, ended=ended))
        self.handover.owed.clear()
        self.looks.unanswered = None
        self.version += 1
        return self.epoch

    def send(self, message: Message) -> None:
        """Queue a message, if there is room."""
        if len(self.waiting) < 4 * QUEUE:
            self.waiting.append(message)

    def drop(self, *kinds: type[Message]) -> None:
        """Remove all messages of these kinds from the queue."""
        self.waiting = deque(message for message in self.waiting if not isinstance(message, kinds))

    def take(self, of_safe: bool, now_ns: int) -> Standing | None:
        """Return what a handler is to do now; what came too late for it is acknowledged as expired."""
        standing, late = self.handover.take(of_safe, self.active.at(now_ns))
        if late is not None:
            self.acknowledge(late, "expired", now_ns, error="no longer active when the handler could start")
        return standing

    def acknowledge(self, done: Standing, outcome: Outcomes, now_ns: int, **words: str | None) -> None:
        """Report the outcome of a call of this epoch (`result`, `error`), once, where that was announced.

        A call that failed is not active any more: what was done before would else continue for as long as it.
        """
        tick, call = done.tick, done.call
        if tick is None:
            return  # not a call of the server's
        fields: dict[str, Any] = {"tick": tick, "outcome": outcome, **words}
        report = Executed(session=self.session.token, epoch=self.epoch, t_ns=now_ns, **fields)
        if not self.handover.settle(tick, call):
            return
        if self.options.acknowledges:
            self.send(report)
        active = self.active.at(now_ns).calls if self.active.kind == "call" else ()
        if outcome == "failed" and any(each is call for each in active):
            self._hand_out(self.active.end("failed"), now_ns)

    def _hand_out(self, starts: bool, now_ns: int) -> None:
        """Where something starts: queue what is active for the handlers."""
        if not starts:
            return
        self.version += 1
        standing = self.active.at(now_ns)
        for superseded in self.handover.offer(standing):
            self.acknowledge(superseded, "expired", now_ns, error="superseded while the handler was busy")
        if standing.tick is not None:  # last: what was superseded may have the number, of a session before
            self.handover.owe(standing.tick, standing.call)

    def end(self, error: ClientError, now_ns: int) -> None:
        """Send no more; the safe call is active from now on."""
        if self.error is None:
            self.error, self.connection.open = error, False
            self.waiting.clear()
            self.looks.unanswered = self.looks.refused = None
            self._hand_out(self.active.end("session_ended"), now_ns)
            self.version += 1

    # What becomes of the connection, and what is due.

    def connected(self, now_ns: int) -> None:
        """A connection is up: greet."""
        self.connection.connected(now_ns)

    def lost(self, now_ns: int, why: str) -> None:
        """The connection is down: connect again after a pause. What is active runs to its own end."""
        self._close_session(now_ns)
        self.connection.lost(now_ns, why)

    def elsewhere(self) -> None:
        """The next connection goes to another server, which does not know the session; its clock is another one."""
        self.session.known = False
        self.ticks, self.connection.heartbeat.pinged_ns = ServerTicks(), 0

    def _close_session(self, now_ns: int) -> None:
        """The session is not live any more: greet again."""
        if self.connection.open:
            self.tally.count["reconnects"] += 1
            self._hand_out(self.active.disconnect(), now_ns)
        self.connection.open, self.connection.greeting.started_ns = False, None
        # An observation as old as the gap is useless; decide()'s is sent again.
        self.drop(*SHORT_LIVED)

    def reconnects(self, now_ns: int) -> bool:
        """Return whether the socket is to be closed and made again now."""
        if self.error is not None:
            return False
        if self.connection.silent(now_ns):
            self.lost(now_ns, "the server is silent")
        return self.connection.opens(now_ns)

    def due(self, now_ns: int) -> list[Message]:
        """Return what must be sent now."""
        connection = self.connection
        if self.error is not None or not connection.up:
            return []
        if connection.open:
            return self._due(now_ns)
        if not connection.greeting.greets(now_ns):
            return []
        again = connection.greeting.started_ns is not None
        if not again:
            connection.greeting.started_ns, self.goal.greeting = now_ns, self.goal.wanted
        hello = self.options.hello(now_ns, self.session.token if self.session.known else None, self.goal.greeting)
        # A welcome may take a while; whether a server is there at all, a ping tells.
        return [hello, connection.heartbeat.ping(now_ns)] if again else [hello]

    def _due(self, now_ns: int) -> list[Message]:
        if not self.connection.has_room(now_ns):
            return []
        due = list(self.waiting)
        self.waiting.clear()
        if self.connection.heartbeat.pings(now_ns, bool(due)):
            due.append(self.connection.heartbeat.ping(now_ns))
        return due

    def unsent(self, rest: Sequence[Message], now_ns: int) -> None:
        """Keep what could not be sent, from this message on: there is no connection yet, or it is full.

        Without its reset, say, the server would stay in an episode that is over.
        """
        if self.connection.open:
            self.waiting.extendleft(message for message in reversed(rest) if not isinstance(message, SHORT_LIVED))
        self.connection.full(now_ns)

    def wake_ns(self, now_ns: int) -> int:
        """Return when something becomes due by itself, at the latest in half a second."""
        times = [now_ns + S // 2]
        if self.active.expires_ns is not None:
            times.append(self.active.expires_ns + 1)
        if self.error is None:
            times.append(self.connection.wake_ns(bool(self.waiting)) or times[0])
        return max(now_ns, min(times))

    def expire(self, now_ns: int) -> None:
        """End what is active when its time has come."""
        if self.active.expire(now_ns):
            self.tally.count["expired"] += 1
            self._hand_out(True, now_ns)

    def timed(self, now_ns: int) -> bool:
        """Return whether the instants of the server's ticks are known."""
        return self.connection.open and self.ticks.known(now_ns)

    def next_observation_ns(self, now_ns: int) -> int | None:
        """Return when to look at the world next; None where the server's ticks are not known."""
        return self.ticks.next_observation_ns(self.period_ns, now_ns) if self.connection.open else None

    # Messages of the server.

    def receive(self, message: Message, now_ns: int) -> None:
        """Take a message of the server."""
        self.connection.heartbeat.received_ns = now_ns
        if self.error is not None:
            return
        if isinstance(message, messages.CallMessage):
            self._call(message, now_ns)
        elif isinstance(message, messages.Welcome):
            self._welcomed(message, now_ns)
        elif isinstance(message, Ping):
            self.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))
        elif isinstance(message, Pong):
            self.ticks.offset.add(message.t_ping_ns, message.t_received_ns, message.t_sent_ns, now_ns)
        elif isinstance(message, Instruct) and message.session == self.session.token:
            self.goal.wanted = self.goal.active = message.instruction
        elif isinstance(message, messages.ErrorMessage):
            self._error(message, now_ns)
        elif isinstance(message, messages.Bye) and message.session in (None, self.session.token):
            self._bye(message, now_ns)
        else:
            self.tally.ignored[message.type] += 1

    def _bye(self, bye: messages.Bye, now_ns: int) -> None:
        if not (self.options.persist or self.connection.several):
            why = f"The server ended the session ({bye.reason[:200]})."
            self.end(ClientError(why, "Connect again."), now_ns)
            return
        self.session.known = False
        self._hand_out(self.active.end("session_ended"), now_ns)
        self._close_session(now_ns)
        if bye.reconnect and self.connection.several:
            self.connection.leave(now_ns, "the server goes away", at_once=True)
        else:
            self._try_later(now_ns)

    def _try_later(self, now_ns: int) -> None:
        """This server takes no client now: try the next one of several, greet a single one again later."""
        if self.connection.several:
            self._leave(now_ns, "the server takes no client now")
        else:
            self.connection.greeting.again(now_ns, later=True)

    def _leave(self, now_ns: int, why: str) -> None:
        self._close_session(now_ns)
        self.connection.leave(now_ns, why)

    def _outdated(self, answer: messages.Welcome | messages.ErrorMessage) -> bool:
        """Whether it answers a hello of an earlier greeting, whose epoch, say, may be over."""
        stamp_ns, greeted_ns = answer.t_client_ns, self.connection.greeting.started_ns
        return stamp_ns is not None and (greeted_ns is None or stamp_ns < greeted_ns)

    def _welcomed(self, welcome: messages.Welcome, now_ns: int) -> None:
        if self.connection.open or self._outdated(welcome):
            self.tally.ignored["welcome"] += 1  # the answer to a hello sent twice, or before
            return
        if not spoken(welcome.protocol):
            text = f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}."
            self.end(ClientError(text, "Update either."), now_ns)
            return
        sent = self.goal.active if welcome.resumed else self.goal.greeting
        self.connection.welcomed(welcome.heartbeat_ms)
        self.session.welcome, self.goal.active = welcome, welcome.instruction
        if welcome.resumed:
            self._resume(welcome)
        else:
            self._start_session(welcome, now_ns)
        self.ticks.release_ns = welcome.release_ns
        if self.goal.wanted is not None and not welcome.resumed and self.goal.wanted == sent:
            self.goal.wanted = welcome.instruction  # the greeting's, as it was understood
        # Given while greeting, or lost with the connection.
        if self.goal.wanted is not None and self.goal.wanted not in (sent, welcome.instruction):
            self.drop(Instruct)
            self.instruct(self.goal.wanted)
        if self.looks.unanswered is not None:
            self.drop(Observe)
            self.looks.unanswered = self._number(self.looks.unanswered)
        self.version += 1

    def _resume(self, welcome: messages.Welcome) -> None:
        self.tally.count["resumed"] += 1
        self.active.safe_calls = self.safe_calls()
        queued = {message.epoch for message in self.waiting if isinstance(message, Reset)}
        for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
            if epoch not in queued:
                self.waiting.appendleft(Reset(session=self.session.token, epoch=epoch))

    def _start_session(self, welcome: messages.Welcome, now_ns: int) -> None:
        self.tally.count["sessions"] += 1
        self.elsewhere()  # another server, maybe of another machine
        self.session.known, self.session.token = True, welcome.session
        # What waited was for the session that is gone; only its newest look at the world is as good as ever.
        looks = [message for message in self.waiting if isinstance(message, Observe)]
        for gone in (self.waiting, self.looks.stamps, self.handover.owed):
            gone.clear()
        self._hand_out(self.active.start(welcome.epoch, self.safe_calls()), now_ns)
        for look in looks:
            self._number(look)

    def _call(self, message: messages.CallMessage, now_ns: int) -> None:
        live = self.connection.open and message.session == self.session.token
        reason = self.active.reason_to_ignore(message, self.looks.stamps) if live else "session"
        if reason is not None:
            self.tally.ignored[reason] += 1
            return
        self.tally.count[message.status] += 1
        if self.looks.unanswered is not None and message.seq_obs == self.looks.unanswered.seq and not message.more:
            self.looks.unanswered = None
        if message.status == "fresh" and message.t_obs_ns is not None:
            self.tally.latency_ns.append(now_ns - message.t_obs_ns)
        if message.release_ns is not None:
            self.ticks.release_ns = message.release_ns
        self.ticks.phase.receive(message, self.period_ns, now_ns)
        starts, too_old = self.active.receive(message, now_ns)
        if too_old:
            self.tally.count["expired"] += 1
            self.handover.owed[message.tick] = None
            self.acknowledge(Standing(None, "fresh", tick=message.tick), "expired", now_ns)
        self._hand_out(starts, now_ns)
        self.version += 1

    def _error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        connection = self.connection
        # In greeting these answer what was sent before the hello.
        stray = message.seq is not None or (message.code == Code.STATE and message.retryable)
        if self._outdated(message) or (stray and not connection.open):
            self.tally.ignored["error"] += 1
            return
        self.tally.count["errors"] += 1
        self.tally.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self.goal.active is not None and self.goal.wanted != self.goal.active:
            # Sent again in a later hello it would be refused for good: the one before continues.
            self.goal.wanted = self.goal.active
            if not connection.open:
                connection.greeting.due_ns, connection.greeting.started_ns = now_ns, None
                return
        unknown = message.code == Code.SESSION or (connection.open and message.code == Code.STATE and message.retryable)
        if message.code == Code.STATE and not (connection.open or message.retryable or message.fatal):
            self._leave(now_ns, "the server has another session on this connection")
        elif not message.retryable and (message.fatal or not (connection.open or unknown)):
            self.end(Refused(message), now_ns)
        elif unknown or message.fatal:
            self._session_refused(message, unknown, now_ns)
        elif not connection.open:
            self._try_later(now_ns)
        elif self.looks.unanswered is not None and message.seq == self.looks.unanswered.seq:
            self.looks.unanswered, self.looks.refused = None, self.tally.last_error
            self.version += 1

    def _session_refused(self, message: messages.ErrorMessage, unknown: bool, now_ns: int) -> None:
        """Greet again. A live session resumes: the connection is a new one to the server. One that was to be resumed
        is not known to the server: another one starts."""
        connection = self.connection
        if message.fatal:
            self._hand_out(self.active.end("session_ended"), now_ns)
        resuming = not connection.open and self.session.known
        self.session.known = self.session.known and connection.open and not message.fatal
        self._close_session(now_ns)
        if not unknown:
            self._try_later(now_ns)
            return
        connection.greeting.again(now_ns, later=False)
        if resuming:
            connection.greeting.due_ns = now_ns
