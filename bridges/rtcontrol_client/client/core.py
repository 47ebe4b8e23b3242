"""The client's side of the protocol, without a socket and without a clock.

`Link` (link.py) passes events with their times (`on_connected`, `on_lost`, `receive`, `expire`), and calls methods that
return actions (`due_messages`, `should_reconnect`, `pop_call`, `wake_ns`). All times are from one monotonic clock. The
core is not thread-safe, so callers hold the link's lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol_client.client.active import ActiveStanding, CallQueue, Standing, all_safe_calls, store_newest
from rtcontrol_client.client.connection import NO_ANSWER, S, ServerConnection
from rtcontrol_client.client.errors import ClientError, Refused
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.timing import ServerTicks
from rtcontrol_client.wire import PROTOCOL, Code, Message, messages
from rtcontrol_client.wire.messages import Executed, Instruct, Observe, Outcomes, Ping, Pong, Reset, is_supported

QUEUE = 256
SHORT_LIVED = (Observe, messages.ObserveMany, Ping, Pong)  # types that are dropped if they cannot be sent immediately


@dataclass
class ClientStatistics:
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
    can_resume: bool = False


@dataclass
class InstructionState:
    """The instructions of a client. `active` is the server's current instruction, `wanted` the newest instruction that
    was not refused, and `greeting` the instruction in the hello messages of this connection."""

    active: str | None = None
    wanted: str | None = None
    greeting: str | None = None


@dataclass
class SentObservations:
    """The sent observations. `seq` is the last number, `captured_ns` has the newest capture times by number. `pending`
    is the observation for whose call decide() waits (sent again after a reconnect), `refusal` the reason if refused."""

    seq: int = 0
    captured_ns: dict[int, int] = field(default_factory=dict)
    pending: Observe | None = None
    refusal: str | None = None


class Core:
    """The state of a client, which continues over all connections and sessions."""

    def __init__(self, options: Options, now_ns: int) -> None:
        self.options = options
        self.connection = ServerConnection(options.backoff_s, now_ns)
        self.send_queue: deque[Message] = deque()  # messages to send, in this order
        # `options.calls` validates the options, so that errors are raised before the client connects.
        self.active = ActiveStanding(0, options.calls, options.ttl_ms)
        self.handler_queue = CallQueue(options.on_call is not None, options.on_safe is not None)
        self.ticks, self.tally = ServerTicks(), ClientStatistics()
        self.error: ClientError | None = None  # why the client has ended; None while it runs
        self.version = 0  # increases with each call message and each change of the active call
        self.session, self.goal, self.looks = SessionState(), InstructionState(), SentObservations()

    def safe_calls(self) -> tuple[messages.FunctionCall, ...]:
        """Return the client's safe calls, or the server's safe calls (from its welcome) if the client has none."""
        welcome = self.session.welcome
        return self.options.calls or (() if welcome is None else all_safe_calls(welcome.safe_calls, welcome.safe_call))

    @property
    def epoch(self) -> int:
        return self.active.epoch

    @property
    def period_ns(self) -> int:
        """Return the period of the server's ticks; 0.1 s before the welcome message."""
        return S // 10 if self.session.welcome is None else max(S // 10_000, int(self.session.welcome.period_ms * 1e6))

    @property
    def trouble(self) -> str:
        """Return why the client has no session: the server's last error text, or the state of the connection."""
        words = self.tally.last_error
        return f"the server answered {words.removesuffix('.')}" if words else self.connection.problem

    def no_welcome_error(self, address: str, seconds: float) -> ClientError:
        """Return the error to raise if no welcome message arrived from `address` within `seconds`."""
        if self.trouble == NO_ANSWER:
            hint = f"Start one: rtcontrol serve --bind {address}"
            return ClientError(f"No rtcontrol server answers at {address}.", hint)
        hint = "Correct that, or give another server's address (with keys if that server uses --keys)."
        return ClientError(f"No welcome from {address} in {seconds:g} s: {self.trouble}.", hint)

    # The methods below are the user's actions.

    def observe(self, observation: Observe) -> Observe:
        """Queue an observation and return it with its number. With server pacing, replace an unsent observation."""
        self.tally.count["observed"] += 1
        unsent = [message for message in self.send_queue if isinstance(message, Observe)]
        if unsent and (self.options.pacing == "server" or len(self.send_queue) >= QUEUE):
            self.send_queue.remove(unsent[0])
            self.tally.count["superseded"] += 1
        return self._queue_observation(observation)

    def _queue_observation(self, observation: Observe) -> Observe:
        self.looks.seq += 1
        fields = {"session": self.session.token, "seq": self.looks.seq, "epoch": self.epoch}
        observation = observation.model_copy(update=fields)
        store_newest(self.looks.captured_ns, observation.seq, observation.t_ns)
        self.send_queue.append(observation)
        return observation

    def request(self, observation: Observe) -> None:
        """Queue the observation of a decide() call. Raises ClientError if another decide() is running."""
        if self.looks.pending is not None:
            raise ClientError("decide() is running already.", "Wait until that call returns.")
        self.looks.pending, self.looks.refusal = self.observe(observation), None

    def end_decision(self, now_ns: int) -> Standing:
        """End a decide() call; return the active call, or the safe call if no call arrived for the observation."""
        why = "no_answer" if self.looks.pending is not None else self.looks.refusal
        self.looks.pending = None
        return self.active.standing_at(now_ns) if why is None else self.active.safe_state(why)

    def instruct(self, instruction: str) -> None:
        """Send a new instruction, which stays active after a reconnect."""
        self.send(Instruct(session=self.session.token, instruction=instruction))
        self.goal.wanted = instruction

    def reset(self, ended: messages.Outcome | None = None) -> int:
        """Start a new episode and return its number (epoch); drop calls and observations of the previous episode."""
        self.drop_messages(Observe)
        self.active.reset(self.epoch + 1)
        # If the queue is full, `_resume_session` sends this reset later.
        self.send(Reset(session=self.session.token, epoch=self.epoch, ended=ended))
        self.handler_queue.unacknowledged.clear()
        self.looks.pending = None
        self.version += 1
        return self.epoch

    def send(self, message: Message) -> None:
        """Queue a message to be sent, or drop it if the queue is full."""
        if len(self.send_queue) < 4 * QUEUE:
            self.send_queue.append(message)

    def drop_messages(self, *kinds: type[Message]) -> None:
        self.send_queue = deque(message for message in self.send_queue if not isinstance(message, kinds))

    def pop_call(self, safe_only: bool, now_ns: int) -> Standing | None:
        """Return the next call for a handler, or None. If it is no longer active, acknowledge it as expired instead."""
        standing, late = self.handler_queue.dequeue(safe_only, self.active.standing_at(now_ns))
        if late is not None:
            self.acknowledge(late, "expired", now_ns, error="no longer active when the handler could start")
        return standing

    def acknowledge(self, standing: Standing, outcome: Outcomes, now_ns: int, **words: str | None) -> None:
        """Report the outcome of a call to the server once, if the client acknowledges calls.

        If the active call failed, activate the safe call, because the previous action may still continue.
        """
        tick, call = standing.tick, standing.call
        if tick is None:
            return  # this call did not come from the server
        fields: dict[str, Any] = {"tick": tick, "outcome": outcome, **words}
        report = Executed(session=self.session.token, epoch=self.epoch, t_ns=now_ns, **fields)
        if not self.handler_queue.mark_acknowledged(tick, call):
            return
        if self.options.acknowledges_calls:
            self.send(report)
        active = self.active.standing_at(now_ns).calls if self.active.kind == "call" else ()
        if outcome == "failed" and any(each is call for each in active):
            self._enqueue_call(self.active.end("failed"), now_ns)

    def _enqueue_call(self, starts: bool, now_ns: int) -> None:
        """Queue the active call for the user's handlers if it has just become active (`starts`)."""
        if not starts:
            return
        self.version += 1
        standing = self.active.standing_at(now_ns)
        for superseded in self.handler_queue.enqueue(standing):
            self.acknowledge(superseded, "expired", now_ns, error="superseded while the handler was busy")
        if standing.tick is not None:  # after the loop, because a call of an earlier session may have the same tick
            self.handler_queue.store_unacknowledged(standing.tick, standing.call)

    def end(self, error: ClientError, now_ns: int) -> None:
        """End the client because of an error: send no more messages, and activate the safe call."""
        if self.error is None:
            self.error, self.connection.is_open = error, False
            self.send_queue.clear()
            self.looks.pending = self.looks.refusal = None
            self._enqueue_call(self.active.end("session_ended"), now_ns)
            self.version += 1

    # The methods below handle the connection, and messages that are due.

    def on_connected(self, now_ns: int) -> None:
        """Handle a new connection: schedule a hello message for now."""
        self.connection.on_connected(now_ns)

    def on_lost(self, now_ns: int, why: str) -> None:
        """Handle a lost connection: reconnect after a pause. The active call continues until it expires."""
        self._close_session(now_ns)
        self.connection.on_lost(now_ns, why)

    def forget_server(self) -> None:
        """Delete the session and the clock offset, because the next connection is to another server."""
        self.session.can_resume = False
        self.ticks, self.connection.heartbeat.pinged_ns = ServerTicks(), 0

    def _close_session(self, now_ns: int) -> None:
        """Mark the session as not connected, so that a hello is sent in the next connection."""
        if self.connection.is_open:
            self.tally.count["reconnects"] += 1
            self._enqueue_call(self.active.disconnect(), now_ns)
        self.connection.is_open, self.connection.greeting.started_ns = False, None
        # Drop observations from before a reconnect, which are too old. `_receive_welcome` sends that of decide() again.
        self.drop_messages(*SHORT_LIVED)

    def should_reconnect(self, now_ns: int) -> bool:
        """Return whether to close the socket and open a new one now."""
        if self.error is not None:
            return False
        if self.connection.is_server_dead(now_ns):
            self.on_lost(now_ns, "the server is silent")
        return self.connection.should_connect(now_ns)

    def due_messages(self, now_ns: int) -> list[Message]:
        connection = self.connection
        if self.error is not None or not connection.is_up:
            return []
        if connection.is_open:
            return self._session_messages(now_ns)
        if not connection.greeting.should_send_hello(now_ns):
            return []
        is_repeated = connection.greeting.started_ns is not None
        if not is_repeated:
            connection.greeting.started_ns, self.goal.greeting = now_ns, self.goal.wanted
        hello = self.options.hello(now_ns, self.session.token if self.session.can_resume else None, self.goal.greeting)
        # A welcome may take seconds, but the server answers a ping immediately.
        return [hello, connection.heartbeat.create_ping(now_ns)] if is_repeated else [hello]

    def _session_messages(self, now_ns: int) -> list[Message]:
        if not self.connection.can_send(now_ns):
            return []
        due = list(self.send_queue)
        self.send_queue.clear()
        if self.connection.heartbeat.should_ping(now_ns, bool(due)):
            due.append(self.connection.heartbeat.create_ping(now_ns))
        return due

    def requeue_messages(self, unsent_messages: Sequence[Message], now_ns: int) -> None:
        """Queue messages again that could not be sent, because the connection is not up or its send buffer is full.

        For example, if a reset were lost, the server would continue with the previous episode.
        """
        if self.connection.is_open:
            self.send_queue.extendleft(each for each in reversed(unsent_messages) if not isinstance(each, SHORT_LIVED))
        self.connection.on_full_buffer(now_ns)

    def wake_ns(self, now_ns: int) -> int:
        """Return when the link must wake up without an event: at the next timer, at the latest in half a second."""
        times = [now_ns + S // 2]
        if self.active.expires_ns is not None:  # also check every 50 ms: timers pause during suspend
            times += [now_ns + S // 20, self.active.expires_ns + 1]
        if self.error is None:
            times.append(self.connection.wake_ns(bool(self.send_queue)) or times[0])
        return max(now_ns, min(times))

    def expire(self, now_ns: int) -> None:
        """Activate the safe call if the time-to-live of the active call has ended."""
        if self.active.expire(now_ns):
            self.tally.count["expired"] += 1
            self._enqueue_call(True, now_ns)

    def knows_ticks(self, now_ns: int) -> bool:
        return self.connection.is_open and self.ticks.is_known(now_ns)

    def next_observation_ns(self, now_ns: int) -> int | None:
        """Return when to capture the next observation; None if the server's ticks are not known."""
        return self.ticks.next_observation_ns(self.period_ns, now_ns) if self.connection.is_open else None

    # The methods below handle messages from the server.

    def receive(self, message: Message, now_ns: int) -> None:
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
        if not (self.options.persist or self.connection.has_several_servers):
            why = f"The server ended the session ({bye.reason[:200]})."
            self.end(ClientError(why, "Connect again."), now_ns)
            return
        self.session.can_resume = False
        self._enqueue_call(self.active.end("session_ended"), now_ns)
        self._close_session(now_ns)
        if bye.reconnect and self.connection.has_several_servers:
            self.connection.close_and_retry(now_ns, "the server shuts down", at_once=True)
        else:
            self._try_later(now_ns)

    def _try_later(self, now_ns: int) -> None:
        """Handle a temporary refusal: try another server now, or this server later."""
        if self.connection.has_several_servers:
            self._disconnect_and_retry(now_ns, "the server accepts no client now")
        else:
            self.connection.greeting.schedule_hello(now_ns, after_pause=True)

    def _disconnect_and_retry(self, now_ns: int, why: str) -> None:
        self._close_session(now_ns)
        self.connection.close_and_retry(now_ns, why)

    def _is_outdated(self, answer: messages.Welcome | messages.ErrorMessage) -> bool:
        """Return whether `answer` responds to a hello of an earlier connection."""
        stamp_ns, greeted_ns = answer.t_client_ns, self.connection.greeting.started_ns
        return stamp_ns is not None and (greeted_ns is None or stamp_ns < greeted_ns)

    def _receive_welcome(self, welcome: messages.Welcome, now_ns: int) -> None:
        if self.connection.is_open or self._is_outdated(welcome):
            self.tally.ignored["welcome"] += 1  # it responds to a repeated or earlier hello
            return
        if not is_supported(welcome.protocol):
            text = f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}."
            self.end(ClientError(text, "Update either."), now_ns)
            return
        sent = self.goal.active if welcome.resumed else self.goal.greeting
        self.connection.on_welcome(welcome.heartbeat_ms)
        self.session.welcome, self.goal.active = welcome, welcome.instruction
        if self.options.ttl_ms is None:
            self.active.max_ttl_ms = welcome.ttl_ms
        if welcome.resumed:
            self._resume_session(welcome)
        else:
            self._start_session(welcome, now_ns)
        self.ticks.release_ns = welcome.release_ns
        if self.goal.wanted is not None and not welcome.resumed and self.goal.wanted == sent:
            self.goal.wanted = welcome.instruction  # the server may have interpreted the hello's instruction
        # Send an instruction that the user set before the welcome, or that was lost with the connection.
        if self.goal.wanted is not None and self.goal.wanted not in (sent, welcome.instruction):
            self.drop_messages(Instruct)
            self.instruct(self.goal.wanted)
        if self.looks.pending is not None:
            self.drop_messages(Observe)
            self.looks.pending = self._queue_observation(self.looks.pending)
        self.version += 1

    def _resume_session(self, welcome: messages.Welcome) -> None:
        self.tally.count["resumed"] += 1
        self.active.safe_calls = self.safe_calls()
        queued = {message.epoch for message in self.send_queue if isinstance(message, Reset)}
        for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
            if epoch not in queued:
                self.send_queue.appendleft(Reset(session=self.session.token, epoch=epoch))

    def _start_session(self, welcome: messages.Welcome, now_ns: int) -> None:
        self.tally.count["sessions"] += 1
        self.forget_server()  # the server may have restarted on another machine
        self.session.can_resume, self.session.token = True, welcome.session
        # Drop queued messages of the previous session, except unsent observations.
        observation = [message for message in self.send_queue if isinstance(message, Observe)]
        for queue in (self.send_queue, self.looks.captured_ns, self.handler_queue.unacknowledged):
            queue.clear()
        self._enqueue_call(self.active.start(welcome.epoch, self.safe_calls()), now_ns)
        for look in observation:
            self._queue_observation(look)

    def _receive_call(self, message: messages.CallMessage, now_ns: int) -> None:
        is_current = self.connection.is_open and message.session == self.session.token
        reason = self.active.reason_to_ignore(message, self.looks.captured_ns) if is_current else "session"
        if reason is not None:
            self.tally.ignored[reason] += 1
            return
        self.tally.count[message.status] += 1
        if self.looks.pending is not None and message.seq_obs == self.looks.pending.seq and not message.more:
            self.looks.pending = None
        if message.status == "fresh" and message.t_obs_ns is not None:
            self.tally.latency_ns.append(now_ns - message.t_obs_ns)
        if message.release_ns is not None:
            self.ticks.release_ns = message.release_ns
        self.ticks.phase.receive(message, self.period_ns, now_ns)
        starts, too_old = self.active.receive(message, now_ns)
        if too_old:
            self.tally.count["expired"] += 1
            self.handler_queue.unacknowledged[message.tick] = None
            self.acknowledge(Standing(None, "fresh", tick=message.tick), "expired", now_ns)
        self._enqueue_call(starts, now_ns)
        self.version += 1

    def _receive_error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        connection = self.connection
        # Errors of these kinds before the welcome refer to messages that were sent before the hello.
        is_stray = message.seq is not None or (message.code == Code.STATE and message.retryable)
        if self._is_outdated(message) or (is_stray and not connection.is_open):
            self.tally.ignored["error"] += 1
            return
        self.tally.count["errors"] += 1
        self.tally.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self.goal.active is not None and self.goal.wanted != self.goal.active:
            # Return to the previous instruction, because a hello with the refused instruction would end the client.
            self.goal.wanted = self.goal.active
            if not connection.is_open:
                connection.greeting.due_ns, connection.greeting.started_ns = now_ns, None
                return
        is_stale = connection.is_open and message.code == Code.STATE and message.retryable
        is_unknown = message.code == Code.SESSION or is_stale
        if message.code == Code.STATE and not (connection.is_open or message.retryable or message.fatal):
            self._disconnect_and_retry(now_ns, "the server has another session on this connection")
        elif not message.retryable and (message.fatal or not (connection.is_open or is_unknown)):
            self.end(Refused(message), now_ns)
        elif is_unknown or message.fatal:
            self._send_hello_again(message, is_unknown, now_ns)
        elif not connection.is_open:
            self._try_later(now_ns)
        elif self.looks.pending is not None and message.seq == self.looks.pending.seq:
            self.looks.pending, self.looks.refusal = None, self.tally.last_error
            self.version += 1

    def _send_hello_again(self, message: messages.ErrorMessage, is_unknown: bool, now_ns: int) -> None:
        """Send a hello again, to resume the session, or to start a new session if the server no longer knows it."""
        connection = self.connection
        if message.fatal:
            self._enqueue_call(self.active.end("session_ended"), now_ns)
        was_resuming = not connection.is_open and self.session.can_resume
        self.session.can_resume = self.session.can_resume and connection.is_open and not message.fatal
        self._close_session(now_ns)
        if not is_unknown:
            self._try_later(now_ns)
            return
        connection.greeting.schedule_hello(now_ns, after_pause=False)
        if was_resuming:
            connection.greeting.due_ns = now_ns
