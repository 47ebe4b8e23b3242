"""The client's side of the protocol, without a socket and without a clock.

`Link` (link.py) passes events with their times (`connected`, `lost`, `receive`, `expire`), and calls methods that
return what to do (`due`, `reconnects`, `take`, `wake_ns`). All times are from one monotonic clock. Not thread-safe: the
link holds a lock.
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
from rtcontrol_client.wire.messages import Executed, Instruct, Observe, Outcomes, Ping, Pong, Reset, is_supported

QUEUE = 256
SHORT_LIVED = (Observe, messages.ObserveMany, Ping, Pong)  # messages that are dropped if they cannot be sent at once


@dataclass
class CallCounts:
    """Statistics of a client; `ignored` counts the messages that were ignored, by reason."""

    count: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    latency_ns: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    last_error: str | None = None  # the server's error text


@dataclass
class SessionState:
    """The newest session: the server's welcome message, the session's token, and whether the session can be resumed."""

    welcome: messages.Welcome | None = None
    token: str = "-" * 16
    known: bool = False


@dataclass
class Goal:
    """Instructions: `active` is the server's current one, `wanted` the user's newest one that was not refused, and
    `greeting` the one in the hello messages of this connection."""

    active: str | None = None
    wanted: str | None = None
    greeting: str | None = None


@dataclass
class Looks:
    """Observations: the last number, the capture times of the newest observations by number, and the observation that
    decide() waits for (sent again after a reconnect), or the reason why it was refused."""

    seq: int = 0
    stamps: dict[int, int] = field(default_factory=dict)
    unanswered: Observe | None = None
    refused: str | None = None


class Core:
    """The state of one client, over all of its connections and sessions."""

    def __init__(self, options: Options, now_ns: int) -> None:
        self.options = options
        self.connection = ServerConnection(options.backoff_s, now_ns)
        self.waiting: deque[Message] = deque()  # messages to send, in order
        # `options.calls` validates the options, so that errors are raised before the client connects.
        self.active = ActiveStanding(0, options.calls, options.ttl_ms)
        self.handover = CallQueue(options.on_call is not None, options.on_safe is not None)
        self.ticks, self.tally = ServerTicks(), CallCounts()
        self.error: ClientError | None = None  # why the client has ended (None: it has not); then it sends no messages
        self.version = 0  # increases with each call message and each change of the active call
        self.session, self.goal, self.looks = SessionState(), Goal(), Looks()

    def safe_calls(self) -> tuple[messages.FunctionCall, ...]:
        """Return the client's safe calls, or those of the server's welcome if the client has none."""
        welcome = self.session.welcome
        return self.options.calls or (() if welcome is None else all_of(welcome.safe_calls, welcome.safe_call))

    @property
    def epoch(self) -> int:
        """The number of the current episode."""
        return self.active.epoch

    @property
    def period_ns(self) -> int:
        """The period of the server's ticks; 0.1 s before the welcome message."""
        return S // 10 if self.session.welcome is None else max(S // 10_000, int(self.session.welcome.period_ms * 1e6))

    @property
    def trouble(self) -> str:
        """The reason why there is no session: the server's last error text, or the state of the connection."""
        words = self.tally.last_error
        return f"the server answered {words.removesuffix('.')}" if words else self.connection.trouble

    def unwelcomed(self, where: str, seconds: float) -> ClientError:
        """Return the error to raise if no welcome message arrived from the address `where` within `seconds`."""
        if self.trouble == NO_ANSWER:
            return ClientError(f"No rtcontrol server answers at {where}.", f"Start one: rtcontrol serve --bind {where}")
        hint = "Correct that, or give another server's address (with keys if that server uses --keys)."
        return ClientError(f"No welcome from {where} in {seconds:g} s: {self.trouble}.", hint)

    # Actions of the user.

    def observe(self, look: Observe) -> Observe:
        """Queue an observation and return it with its number; if the server sets the pace, replace an unsent one."""
        self.tally.count["observed"] += 1
        unsent = [message for message in self.waiting if isinstance(message, Observe)]
        if unsent and (self.options.pacing == "server" or len(self.waiting) >= QUEUE):
            self.waiting.remove(unsent[0])
            self.tally.count["superseded"] += 1
        return self._queue_numbered(look)

    def _queue_numbered(self, look: Observe) -> Observe:
        self.looks.seq += 1
        look = look.model_copy(update={"session": self.session.token, "seq": self.looks.seq, "epoch": self.epoch})
        keep(self.looks.stamps, look.seq, look.t_ns)
        self.waiting.append(look)
        return look

    def request(self, look: Observe) -> None:
        """Queue the observation of a decide() call. Raises ClientError if another decide() is running."""
        if self.looks.unanswered is not None:
            raise ClientError("decide() is running already.", "Wait until that call returns.")
        self.looks.unanswered, self.looks.refused = self.observe(look), None

    def decided(self, now_ns: int) -> Standing:
        """End a decide() call; return the active call, or a safe call if no call came for the observation."""
        why = "no_answer" if self.looks.unanswered is not None else self.looks.refused
        self.looks.unanswered = None
        return self.active.at(now_ns) if why is None else self.active.safe(why)

    def instruct(self, instruction: str) -> None:
        """Send a new goal, which stays active after a reconnect."""
        self.send(Instruct(session=self.session.token, instruction=instruction))
        self.goal.wanted = instruction

    def reset(self, ended: messages.Outcome | None = None) -> int:
        """Start a new episode and return its number (epoch); drop calls and observations of the previous episode."""
        self.drop(Observe)
        self.active.reset(self.epoch + 1)
        # If the queue is full, `_resume_session` sends this reset later.
        self.send(Reset(session=self.session.token, epoch=self.epoch, ended=ended))
        self.handover.owed.clear()
        self.looks.unanswered = None
        self.version += 1
        return self.epoch

    def send(self, message: Message) -> None:
        """Queue a message to be sent, or drop it if the queue is full."""
        if len(self.waiting) < 4 * QUEUE:
            self.waiting.append(message)

    def drop(self, *kinds: type[Message]) -> None:
        """Remove all messages of these kinds from the queue."""
        self.waiting = deque(message for message in self.waiting if not isinstance(message, kinds))

    def take(self, safe_only: bool, now_ns: int) -> Standing | None:
        """Return the next call for a handler, or None; acknowledge a call that is no longer active as expired."""
        standing, late = self.handover.take(safe_only, self.active.at(now_ns))
        if late is not None:
            self.acknowledge(late, "expired", now_ns, error="no longer active when the handler could start")
        return standing

    def acknowledge(self, done: Standing, outcome: Outcomes, now_ns: int, **words: str | None) -> None:
        """Report the outcome of a call to the server once, if the client acknowledges calls.

        If the active call failed, make the safe call active, since the previous action may still continue.
        """
        tick, call = done.tick, done.call
        if tick is None:
            return  # the call did not come from the server
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
        """Queue the active call for the user's handlers if it has just become active (`starts`)."""
        if not starts:
            return
        self.version += 1
        standing = self.active.at(now_ns)
        for superseded in self.handover.offer(standing):
            self.acknowledge(superseded, "expired", now_ns, error="superseded while the handler was busy")
        if standing.tick is not None:  # after the loop above: a call of an earlier session may have the same tick
            self.handover.owe(standing.tick, standing.call)

    def end(self, error: ClientError, now_ns: int) -> None:
        """End the client because of an error: send no more messages, and make the safe call active."""
        if self.error is None:
            self.error, self.connection.open = error, False
            self.waiting.clear()
            self.looks.unanswered = self.looks.refused = None
            self._hand_out(self.active.end("session_ended"), now_ns)
            self.version += 1

    # The connection, and messages that are due.

    def connected(self, now_ns: int) -> None:
        """Process that the connection is up, so that a hello is due."""
        self.connection.connected(now_ns)

    def lost(self, now_ns: int, why: str) -> None:
        """Process that the connection is lost: reconnect after a pause. The active call continues until it expires."""
        self._close_session(now_ns)
        self.connection.lost(now_ns, why)

    def elsewhere(self) -> None:
        """Forget the session and the clock offset, since the next connection goes to another server."""
        self.session.known = False
        self.ticks, self.connection.heartbeat.pinged_ns = ServerTicks(), 0

    def _close_session(self, now_ns: int) -> None:
        """Mark the session as not connected, so that a hello is sent in the next connection."""
        if self.connection.open:
            self.tally.count["reconnects"] += 1
            self._hand_out(self.active.disconnect(), now_ns)
        self.connection.open, self.connection.greeting.started_ns = False, None
        # Observations from before a reconnect are too old; `_receive_welcome` sends that of decide() again.
        self.drop(*SHORT_LIVED)

    def reconnects(self, now_ns: int) -> bool:
        """Return whether to close the socket and open a new one now."""
        if self.error is not None:
            return False
        if self.connection.silent(now_ns):
            self.lost(now_ns, "the server is silent")
        return self.connection.opens(now_ns)

    def due(self, now_ns: int) -> list[Message]:
        """Return the messages that must be sent now."""
        connection = self.connection
        if self.error is not None or not connection.up:
            return []
        if connection.open:
            return self._session_messages(now_ns)
        if not connection.greeting.greets(now_ns):
            return []
        is_repeated = connection.greeting.started_ns is not None
        if not is_repeated:
            connection.greeting.started_ns, self.goal.greeting = now_ns, self.goal.wanted
        hello = self.options.hello(now_ns, self.session.token if self.session.known else None, self.goal.greeting)
        # A welcome may take seconds, but the pong shows at once that there is a server.
        return [hello, connection.heartbeat.ping(now_ns)] if is_repeated else [hello]

    def _session_messages(self, now_ns: int) -> list[Message]:
        if not self.connection.has_room(now_ns):
            return []
        due = list(self.waiting)
        self.waiting.clear()
        if self.connection.heartbeat.pings(now_ns, bool(due)):
            due.append(self.connection.heartbeat.ping(now_ns))
        return due

    def unsent(self, rest: Sequence[Message], now_ns: int) -> None:
        """Queue messages again that could not be sent, because the connection is not up or its send buffer is full.

        If a reset was lost, for example, the server would continue with the previous episode.
        """
        if self.connection.open:
            self.waiting.extendleft(message for message in reversed(rest) if not isinstance(message, SHORT_LIVED))
        self.connection.full(now_ns)

    def wake_ns(self, now_ns: int) -> int:
        """Return when the link must wake up without an event: at the next timer, at most half a second from now."""
        times = [now_ns + S // 2]
        if self.active.expires_ns is not None:  # soon, since timers pause while the machine is suspended
            times += [now_ns + S // 20, self.active.expires_ns + 1]
        if self.error is None:
            times.append(self.connection.wake_ns(bool(self.waiting)) or times[0])
        return max(now_ns, min(times))

    def expire(self, now_ns: int) -> None:
        """Make the safe call active if the time-to-live of the active call has ended."""
        if self.active.expire(now_ns):
            self.tally.count["expired"] += 1
            self._hand_out(True, now_ns)

    def timed(self, now_ns: int) -> bool:
        """Return whether the times of the server's ticks are known."""
        return self.connection.open and self.ticks.known(now_ns)

    def next_observation_ns(self, now_ns: int) -> int | None:
        """Return when to capture the next observation; None if the server's ticks are not known."""
        return self.ticks.next_observation_ns(self.period_ns, now_ns) if self.connection.open else None

    # Messages from the server.

    def receive(self, message: Message, now_ns: int) -> None:
        """Handle a message from the server."""
        self.connection.heartbeat.received_ns = now_ns
        if self.error is not None:
            return
        if isinstance(message, messages.CallMessage):
            self._receive_call(message, now_ns)
        elif isinstance(message, messages.Welcome):
            self._receive_welcome(message, now_ns)
        elif isinstance(message, Ping):
            self.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))
        elif isinstance(message, Pong):
            self.ticks.offset.add(message.t_ping_ns, message.t_received_ns, message.t_sent_ns, now_ns)
        elif isinstance(message, Instruct) and message.session == self.session.token:
            self.goal.wanted = self.goal.active = message.instruction
        elif isinstance(message, messages.ErrorMessage):
            self._receive_error(message, now_ns)
        elif isinstance(message, messages.Bye) and message.session in (None, self.session.token):
            self._receive_bye(message, now_ns)
        else:
            self.tally.ignored[message.type] += 1

    def _receive_bye(self, bye: messages.Bye, now_ns: int) -> None:
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
        """Process that the server accepts no client now: try another server, or try this server later."""
        if self.connection.several:
            self._leave_server(now_ns, "the server takes no client now")
        else:
            self.connection.greeting.again(now_ns, later=True)

    def _leave_server(self, now_ns: int, why: str) -> None:
        self._close_session(now_ns)
        self.connection.leave(now_ns, why)

    def _is_outdated(self, answer: messages.Welcome | messages.ErrorMessage) -> bool:
        """Return whether `answer` responds to a hello of an earlier connection."""
        stamp_ns, greeted_ns = answer.t_client_ns, self.connection.greeting.started_ns
        return stamp_ns is not None and (greeted_ns is None or stamp_ns < greeted_ns)

    def _receive_welcome(self, welcome: messages.Welcome, now_ns: int) -> None:
        if self.connection.open or self._is_outdated(welcome):
            self.tally.ignored["welcome"] += 1  # the response to a repeated or earlier hello
            return
        if not is_supported(welcome.protocol):
            text = f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}."
            self.end(ClientError(text, "Update either."), now_ns)
            return
        sent = self.goal.active if welcome.resumed else self.goal.greeting
        self.connection.welcomed(welcome.heartbeat_ms)
        self.session.welcome, self.goal.active = welcome, welcome.instruction
        if self.options.ttl_ms is None:
            self.active.max_ttl_ms = welcome.ttl_ms
        if welcome.resumed:
            self._resume_session(welcome)
        else:
            self._start_session(welcome, now_ns)
        self.ticks.release_ns = welcome.release_ns
        if self.goal.wanted is not None and not welcome.resumed and self.goal.wanted == sent:
            self.goal.wanted = welcome.instruction  # as the server understood the hello's instruction
        # The user set this goal before the welcome, or the message with it was lost with the connection.
        if self.goal.wanted is not None and self.goal.wanted not in (sent, welcome.instruction):
            self.drop(Instruct)
            self.instruct(self.goal.wanted)
        if self.looks.unanswered is not None:
            self.drop(Observe)
            self.looks.unanswered = self._queue_numbered(self.looks.unanswered)
        self.version += 1

    def _resume_session(self, welcome: messages.Welcome) -> None:
        self.tally.count["resumed"] += 1
        self.active.safe_calls = self.safe_calls()
        queued = {message.epoch for message in self.waiting if isinstance(message, Reset)}
        for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
            if epoch not in queued:
                self.waiting.appendleft(Reset(session=self.session.token, epoch=epoch))

    def _start_session(self, welcome: messages.Welcome, now_ns: int) -> None:
        self.tally.count["sessions"] += 1
        self.elsewhere()  # the server may have restarted on another machine
        self.session.known, self.session.token = True, welcome.session
        # Drop queued messages of the previous session, except unsent observations.
        looks = [message for message in self.waiting if isinstance(message, Observe)]
        for queue in (self.waiting, self.looks.stamps, self.handover.owed):
            queue.clear()
        self._hand_out(self.active.start(welcome.epoch, self.safe_calls()), now_ns)
        for look in looks:
            self._queue_numbered(look)

    def _receive_call(self, message: messages.CallMessage, now_ns: int) -> None:
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

    def _receive_error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        connection = self.connection
        # Before the welcome, such errors are about messages that were sent before the hello.
        is_stray = message.seq is not None or (message.code == Code.STATE and message.retryable)
        if self._is_outdated(message) or (is_stray and not connection.open):
            self.tally.ignored["error"] += 1
            return
        self.tally.count["errors"] += 1
        self.tally.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self.goal.active is not None and self.goal.wanted != self.goal.active:
            # Use the previous goal again: a later hello with the refused goal would end the client.
            self.goal.wanted = self.goal.active
            if not connection.open:
                connection.greeting.due_ns, connection.greeting.started_ns = now_ns, None
                return
        unknown = message.code == Code.SESSION or (connection.open and message.code == Code.STATE and message.retryable)
        if message.code == Code.STATE and not (connection.open or message.retryable or message.fatal):
            self._leave_server(now_ns, "the server has another session on this connection")
        elif not message.retryable and (message.fatal or not (connection.open or unknown)):
            self.end(Refused(message), now_ns)
        elif unknown or message.fatal:
            self._greet_again(message, unknown, now_ns)
        elif not connection.open:
            self._try_later(now_ns)
        elif self.looks.unanswered is not None and message.seq == self.looks.unanswered.seq:
            self.looks.unanswered, self.looks.refused = None, self.tally.last_error
            self.version += 1

    def _greet_again(self, message: messages.ErrorMessage, unknown: bool, now_ns: int) -> None:
        """Send a hello again, to resume the session, or to start a new one if the server no longer knows it."""
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
