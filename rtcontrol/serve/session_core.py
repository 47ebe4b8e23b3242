"""Decide which clients' sessions are admitted, refused, welcomed, parked (kept for a lost client), and ended.

`SessionCore.advance` takes an event and the time `now_ns` (CLOCK_MONOTONIC), and returns actions. Events and actions
are defined in `session_events.py`. The methods of `SessionStep` are in the order of a session's life, from connection
and hello (the client's first message) to bye (the last). The core uses no thread, socket, clock or lock.
"""

from __future__ import annotations

import base64
import hmac
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.serve import refusals
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.sessions import (
    BYTE_NS,
    CLIENT_BYE,
    CLIENT_LOST,
    COMMON_SHARE,
    FLOODED,
    HELLOS_PER_S,
    MESSAGE_NS,
    PERSON_STOPPED,
    REFUSED_SHARE,
    SERVER_LEAVING,
    SERVER_STOPPED,
    SESSIONS_SHARE,
    Connection,
    DecoderNeed,
    Peer,
    Session,
    SessionRegistry,
    SessionRules,
    TimeBudget,
    TokenBucket,
    overload_error,
    same_secret,
    session_of_peer,
    ticks_error,
)
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ControlMessage,
    ErrorMessage,
    Executed,
    Hello,
    Instruct,
    Join,
    Leave,
    Observe,
    ObserveMany,
    Picture,
    Ping,
    Pong,
    Reset,
)

MAX_IDLE_CONNECTIONS = 1024  # maximum connections without a session; beyond it, the longest silent is closed
IDLE_CONNECTION_NS = 120_000_000_000  # a connection without a session is closed after this silence
# A draining server ends one session every LEAVE_INTERVAL_NS, or faster if all would take longer than LEAVE_TOTAL_NS.
LEAVE_INTERVAL_NS, LEAVE_TOTAL_NS = 100_000_000, 2_000_000_000
LAST_CALL_WAIT_NS = 500_000_000  # on a draining server, a session waits this long for its last call
LOG_LINES_PER_S = 2.0
MAX_WELCOMES = 8  # maximum number of times that a session's welcome is repeated
READING_HINT = "Send fewer, smaller or simpler messages."
COMMANDS = ("pause", "resume", "stop", "confirm", "deny")
CONTROL = "control"  # clients that handle control messages have this capability
CROWD_MESSAGES = (Join, Leave, ObserveMany)
LOCKED_MESSAGES = frozenset({Hello, Bye, ControlMessage, Picture})  # only these may change other sessions' state


class SessionCore:
    """The state of a server's sessions and connections. Session tokens are derived from the secret `seed`; new sessions
    are numbered from `last_number` + 1."""

    def __init__(self, rules: SessionRules, seed: bytes, last_number: int = 0, now_ns: int = 0) -> None:
        self.rules = rules
        self.sessions = SessionRegistry(rules)
        self.peers: dict[Any, Peer] = {}  # by connection: its peer
        self.count = 0  # number of sessions opened since the server started
        self.refused: Counter[str] = Counter()  # by error code: number of refused messages
        self.closing = self.draining = False  # shutting down now, or when all sessions have ended
        self.seed, self.last_number = seed, last_number
        self.log_limit = TokenBucket(LOG_LINES_PER_S, 20.0, now_ns)
        # This budget serves connections without a session, and sessions that have used up their own budgets.
        self.shared_budget = TimeBudget(now_ns)

    def advance(self, event: Any, now_ns: int) -> list[Any]:
        """Process an event at `now_ns`. Return the actions to execute, in order."""
        step = SessionStep(self, now_ns)
        EVENTS[type(event)](step, event)
        return step.out

    @property
    def wake_ns(self) -> int | None:
        """Return the next instant at which the core needs a `TimerFired` event, or None if no timer is set."""
        rules = self.rules
        times = [s.life.parked_ns + rules.grace_ns + 1 for s in self.sessions if s.life.state == "parked"]
        for peer in self.peers.values():
            times.append(peer.received_ns + self.max_silence_ns(peer) + 1)
            if peer.live:
                times.append(peer.sent_ns + rules.beat_ns)
        leaving = (s.life for s in self.sessions if s.life.leaves_ns and s.life.end_reason is None)
        return min([*times, *(life.leaves_ns + LAST_CALL_WAIT_NS + 1 for life in leaving)], default=None)

    def decoder_load(self, decoder_needs: Mapping[Session, DecoderNeed | None]) -> float:
        """Return the fraction of the decoder's time that all sessions together need (an unknown need counts as 0)."""
        needs = [decoder_needs.get(session) for session in self.sessions if session.life.end_reason is None]
        return sum(need.decoder_load for need in needs if need is not None)

    def has_room(self, decoder_needs: Mapping[Session, DecoderNeed | None]) -> bool:
        """Return whether another session may open now."""
        states, rules = self.sessions.states(), self.rules
        free = states["opening"] + states["live"] < rules.limit
        free = free and self.decoder_load(decoder_needs) < rules.max_decoder_load
        free = free and self.ticks_per_s() < self.rules.ticks_per_s
        return free and not self.closing and not self.draining

    def ticks_per_s(self) -> float:
        """Return the rate of all sessions together."""
        return sum(session.ticks_per_s for session in self.sessions)

    def max_silence_ns(self, peer: Peer) -> int:
        """Return how long a connection may be silent before it is closed, in ns."""
        return self.rules.silent_beats * self.rules.beat_ns if peer.live else IDLE_CONNECTION_NS

    def needs_no_lock(self, event: Any) -> bool:
        """Return whether threads may process this event without the lock of `SessionOwner`. True for the events of
        every tick, which change only one connection and its session, by single reads and writes."""
        kind = type(event)
        if kind is ev.MessageReceived:
            return type(event.message) not in LOCKED_MESSAGES and event.connection in self.peers
        return kind in (ev.LoopMessage, ev.ThreadTime, ev.TimeSpent) or (
            kind is ev.MessageArrived and event.connection in self.peers
        )


class SessionStep:
    """The processing of one event at the time `now_ns`. `out` collects the resulting actions."""

    def __init__(self, core: SessionCore, now_ns: int) -> None:
        self.core, self.now_ns = core, now_ns
        self.rules, self.sessions = core.rules, core.sessions
        self.out: list[Any] = []

    # -- connections --------------------------------------------------------------------------------------------------

    def _on_arrived(self, event: ev.MessageArrived) -> None:
        peer = self._peer_of(event.connection)
        if peer.disconnected:
            return
        cost_ns = MESSAGE_NS + BYTE_NS * event.size
        if not peer.messages.take(self.now_ns):
            refusal = refusals.rate_error(f"{self.rules.messages_per_s:g} messages a second", "Send fewer.")
        elif self._has_time_for_message(peer):
            peer.charged_budget.charge(cost_ns)
            self.out.append(ev.ReturnValue(True))
            return
        else:
            refusal = refusals.rate_error("this client's share of the server's time", READING_HINT)
        self._refuse(peer, refusal)
        peer.refused_budget.charge(cost_ns)
        if not peer.refused_budget.admits(REFUSED_SHARE, self.now_ns):
            self.out.append(ev.DisconnectClient(peer.connection))

    def _has_time_for_message(self, peer: Peer) -> bool:
        """Return whether the session's or the shared budget has time for a message. Store it as `charged_budget`."""
        share = SESSIONS_SHARE / max(1, len(self.sessions))
        peer.charged_budget = peer.budget
        if peer.session is not None and peer.budget.admits(share, self.now_ns):
            return True
        peer.charged_budget = self.core.shared_budget
        return peer.charged_budget.admits(COMMON_SHARE, self.now_ns)

    def _on_time_spent(self, event: ev.TimeSpent) -> None:
        if (peer := self.core.peers.get(event.connection)) is not None:
            peer.charged_budget.charge(event.ns)

    def _on_received(self, event: ev.MessageReceived) -> None:
        """Process a message of the client. Send an error if the message is refused."""
        peer, message = self._peer_of(event.connection), event.message
        if peer.disconnected:
            return
        peer.received_ns = self.now_ns
        handler = MESSAGES.get(type(message))
        try:
            if handler is None:
                raise refusals.state_error(f"Only servers send {message.type} messages.", "Do not send this message.")
            handler(self, peer, message)
        except WireError as error:
            self._refuse(peer, add_reference(error, message))

    def _on_failed(self, event: ev.MessageRefused) -> None:
        peer = self._peer_of(event.connection)
        if not peer.disconnected:
            self._refuse(peer, add_reference(event.error, event.message))

    def _on_disconnected(self, event: ev.ConnectionLost) -> None:
        peer = self.core.peers.get(event.connection)
        if peer is not None and event.reason:
            if event.reason != FLOODED or self.core.log_limit.take(self.now_ns):
                self.out.append(ev.WriteLogLine(f"{event.connection.peer}: {event.reason}"))
            self._close_connection(peer)
        elif peer is not None:
            self._connection_lost(peer)

    def _peer_of(self, connection: Connection) -> Peer:
        """Return the state of a connection, and register the connection if it is new. A closed connection is not
        registered again; its transport may still deliver messages."""
        registered = self.core.peers.get(connection)
        if registered is not None:
            return registered
        peer = Peer.for_connection(connection, self.rules, self.now_ns)
        peer.disconnected = connection.closed
        if peer.disconnected:
            return peer
        without = [p for p in self.core.peers.values() if p.session is None]
        if len(without) >= MAX_IDLE_CONNECTIONS:
            self._close_connection(min(without, key=lambda p: p.received_ns))
        self.core.peers[connection] = peer
        return peer

    def _close_connection(self, peer: Peer) -> None:
        self.out.append(ev.CloseConnection(peer.connection))
        self._connection_lost(peer)

    def _connection_lost(self, peer: Peer) -> None:
        """Remove a connection, and stop the loop of its session with the safe call. `_on_ended` parks the session."""
        self.core.peers.pop(peer.connection, None)
        peer.disconnected = True
        session, peer.session = peer.session, None
        if session is not None and session.peer is peer:
            session.peer = None
            if not self.rules.outlives_client:
                session.life.client_lost = True
                self.out.append(ev.StopLoop(session, CLIENT_LOST))

    def _refuse(self, peer: Peer, error: WireError) -> None:
        """Count a refused message, and send the error unless the rate limit is exceeded. If the connection has a
        session, the session continues."""
        code = error.code.value
        self.core.refused[code] += 1
        if peer.session is not None:
            peer.session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable and self.core.log_limit.take(self.now_ns):
            self.out.append(ev.WriteLogLine(f"{peer.connection.peer}: refused: {error.message[:200]}"))
        self._send_error(peer, error)

    def _send_error(self, peer: Peer, error: WireError, always: bool = False) -> None:
        if not (peer.errors.take(self.now_ns) or always):
            peer.unsent_errors += 1
            return
        dropped, peer.unsent_errors = peer.unsent_errors, 0
        self._send(peer, refusals.error_message(error, dropped))

    def _send(self, peer: Peer, message: Message) -> None:
        peer.sent_ns = self.now_ns
        self.out.append(ev.SendMessage(peer.connection, message))

    # -- hello, the client's first message: admit or refuse the client ------------------------------------------------

    def _on_hello(self, peer: Peer, hello: Hello) -> None:
        if not peer.hellos.take(self.now_ns):
            raise refusals.rate_error(f"{HELLOS_PER_S:g} hellos a second", "Wait for the welcome or an error.")
        if self.core.closing:
            raise refusals.busy_error("The server is shutting down.")
        if self.core.draining and peer.session is None and hello.resume is None:
            raise refusals.busy_error("The server is draining: it accepts no new sessions.")
        if peer.session is not None:
            self._repeat_welcome(peer.session, hello)
        elif hello.resume is not None:
            self._resume_session(peer, hello, hello.resume)
        else:
            self._start_session(peer, hello)

    def _repeat_welcome(self, session: Session, hello: Hello) -> None:
        """Answer a hello on a connection that already has a session. Send the welcome again if the hello repeats the
        session's hello, else raise WireError."""
        repeated = session.is_same_request(hello) if hello.resume is None else same_secret(hello.resume, session.token)
        if not repeated:
            problem, hint = "This connection already has a session.", "Send bye first, or open another connection."
            raise refusals.state_error(problem, hint)
        if session.life.state == "live":
            session.welcomes += 1
            if session.welcomes > MAX_WELCOMES:  # unread welcomes would use up memory
                raise refusals.rate_error(f"{MAX_WELCOMES} repeated hellos", "Read the welcome.")
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            self._request_welcome(session)

    def _resume_session(self, peer: Peer, hello: Hello, token: str) -> None:
        """Resume a session. Its previous connection may still be registered if the server has not noticed its loss."""
        session = self.sessions.find_resumable(token, peer.connection.key)
        self.sessions.check_room(besides=session)
        self._attach(peer, session, hello)

    def _attach(self, peer: Peer, session: Session, hello: Hello) -> None:
        """Make `peer` the session's connection, and welcome the client when the session is live."""
        peer.join(session)
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": hello.resume})
        if session.life.state == "parked":
            self._open_session(session)
        elif session.life.state == "live":
            self._request_welcome(session)
        # In other states the loop is starting, or is ending; then `_on_ended` will start the session again.

    def _start_session(self, peer: Peer, hello: Hello) -> None:
        """Start a new session."""
        lost = [session for session in self.sessions if session.peer is None and self.rules.outlives_client]
        if lost and (lost[0].token_sent or lost[0].key != peer.connection.key or not lost[0].is_same_request(hello)):
            raise refusals.other_client_error()
        if lost:  # the client was lost before its welcome, so it has no token
            self._attach(peer, lost[0], hello)
            return
        self.sessions.check_room()
        for other in self.sessions.parked_with_robot(hello.robot):
            self.sessions.remove(other)
        self.core.last_number += 1
        name = f"session-{self.core.last_number:04d}"
        token = base64.urlsafe_b64encode(hmac.digest(self.core.seed, name.encode(), "sha256")[:24]).decode()
        crowd = hello.crowd is not None and not self.rules.outlives_client
        session = Session(name, token, hello, peer.connection.key, crowd)
        peer.join(session)
        self.sessions.add(session)
        self.core.count += 1
        self._open_session(session)

    def _open_session(self, session: Session) -> None:
        session.life.state, session.life.client_lost = "opening", False
        self.out.append(ev.StartSession(session, not session.negotiated))

    def _on_negotiated(self, event: ev.SettingsNegotiated) -> None:
        """Open the session with the negotiated settings, unless the client has disconnected."""
        life, instructions = event.session.life, event.session.instructions
        event.session.negotiated = True
        if event.paused and not life.paused:
            life.paused = True
            self.out.append(
                ev.WriteLogLine(f"{event.session.id} starts paused, until a person resumes it: {event.paused}")
            )
        if not life.client_gone:
            life.runs += 1
            instructions.first = instructions.next
            self.out.append(ev.ReturnValue(True))

    def _on_loop_created(self, event: ev.LoopCreated) -> None:
        """Pass commands and instructions that arrived earlier to the new loop."""
        session, life, instructions = event.session, event.session.life, event.session.instructions
        life.has_loop = True
        if life.paused:
            self.out.append(ev.CommandLoop(session, "pause", "before", None, logged=True))
        if instructions.next is not None and instructions.next != instructions.first:  # it arrived after negotiation
            self.out.append(ev.InstructLoop(session, instructions.next))
        if life.end_reason is not None or life.client_lost:
            self.out.append(ev.StopLoop(session, life.end_reason or CLIENT_LOST))

    def _on_warmed_up(self, event: ev.LoopWarmedUp) -> None:
        """Make the session live and welcome the client, unless this would make other sessions' calls late."""
        session, life, peer = event.session, event.session.life, event.session.peer
        if not life.welcomed and (refusal := self._overload_error(event)) is not None:
            self.out.append(ev.ReturnValue(refusal))
            return
        session.hz = event.hz
        life.state, life.welcomed = "live", True
        if peer is not None:
            peer.received_ns = self.now_ns  # the client waited for this welcome, so measure its silence from now on
            resumed = ", resumed" if life.runs > 1 else ""
            self.out.append(ev.WriteLogLine(f"{session.id}: {peer.connection.peer}, {event.summary}{resumed}"))
            self._request_welcome(session)

    def _overload_error(self, event: ev.LoopWarmedUp) -> WireError | None:
        """Return an error if opening this session would make other sessions' calls late, else None."""
        welcomed = [s for s in self.sessions if s.life.welcomed and s.life.end_reason is None]
        refusal = ticks_error(event.hz, sum(s.ticks_per_s for s in welcomed), self.rules.ticks_per_s)
        if refusal is None and (need := event.decoder_needs.get(event.session)) is not None:
            needs = [other for s in welcomed if (other := event.decoder_needs.get(s)) is not None]
            refusal = overload_error(need, needs, self.rules.max_decoder_load)
        return refusal

    def _request_welcome(self, session: Session) -> None:
        resumed = session.life.runs > 1 or session.hello.resume is not None
        self.out.append(ev.RequestWelcome(session, resumed))

    def _on_welcome_ready(self, event: ev.WelcomeReady) -> None:
        """Send the client the welcome, and the control message if there is one."""
        session, life = event.session, event.session.life
        if session.peer is None or life.state != "live" or life.end_reason is not None:
            return
        for message in event.messages:
            session.peer.welcome_sent = session.token_sent = True
            self._emit_message(session, message)

    def _deliver_to_world(self, peer: Peer, message: Any) -> None:
        """Pass a message about the client's world, such as an observation, to the session. Raises WireError."""
        find = self.sessions.find_for_picture if isinstance(message, Picture) else session_of_peer
        session = find(peer, message.session)
        if session.crowd != isinstance(message, CROWD_MESSAGES):
            problem = f"This session is {'' if session.crowd else 'not '}a crowd, so {message.type} is invalid."
            hint = "Only a session whose hello has `crowd: {}` accepts join, leave and observe_many."
            raise refusals.state_error(problem, hint)
        if session.life.state != "live":
            raise refusals.state_error("The session is not open yet.", "Wait for the welcome.", retryable=True)
        self.out.append(ev.DeliverMessage(peer.connection, session, message))

    def _on_ping(self, peer: Peer, message: Ping) -> None:
        now = self.now_ns
        self._send(peer, Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))

    def _on_instruct(self, peer: Peer, message: Instruct) -> None:
        session = session_of_peer(peer, message.session)
        self._instruct_loop(session, message.instruction)

    def _on_instructed(self, event: ev.InstructionReceived) -> None:
        if event.missed:
            event.session.instructions.next = event.text
        else:
            self._instruct_loop(event.session, event.text)

    def _instruct_loop(self, session: Session, text: str) -> None:
        """Pass the instruction to the running loop, or store the instruction for the next run."""
        if session.life.has_loop:
            self.out.append(ev.InstructLoop(session, text))
        else:
            session.instructions.next = text

    def _on_control(self, peer: Peer, message: ControlMessage) -> None:
        session = session_of_peer(peer, message.session)
        command = message.say
        if CONTROL not in session.hello.capabilities:
            hint = 'Send hello with `capabilities: ["control"]`.'
            raise refusals.state_error("The client's hello did not have the capability control.", hint)
        if command is None or (message.instruction is not None and command in ("confirm", "deny")):
            hint = f"Set `say` to one of {', '.join(COMMANDS)}. An instruction cannot be confirmed or denied."
            raise WireError(Code.INVALID, "control.say is missing or does not fit.", hint, field="say")
        answer = self._carry_out_command(session, command, "wire", message.id, logged=True)
        if answer is not None:
            self._log_line(session, answer)

    def _on_commanded(self, event: ev.CommandReceived) -> None:
        answer = self._carry_out_command(event.session, event.command, event.by, event.k, logged=False)
        if answer is not None:
            self.out.append(ev.ReturnValue(answer))

    def _carry_out_command(self, session: Session, command: str, by: str, k: int | None, logged: bool) -> str | None:
        """Execute a person's command, even while the session opens or is parked. A stopped session cannot resume.
        Return a sentence about the result, or None if the loop will return this sentence."""
        life, robot = session.life, session.hello.robot
        if command in ("pause", "resume", "stop"):
            life.paused = command != "resume"
            if robot is not None and not self.rules.outlives_client:
                self.out.append(ev.StoreCommand(robot, command, by))
        if command == "stop":
            life.end_reason = life.end_reason or PERSON_STOPPED
        if life.state == "parked" and life.end_reason is not None:
            self.sessions.remove(session)
        if not life.has_loop:
            return f"{command} ({by})"
        self.out.append(ev.CommandLoop(session, command, by, k, logged))
        return None

    def _send_control(self, session: Session, control: ControlMessage) -> None:
        """Send a control message, unless the client's hello did not have the capability `control`."""
        if CONTROL in session.hello.capabilities and session.client is not None:
            self._send(session.client, control)

    # -- messages of a loop to its client -----------------------------------------------------------------------------

    def _emit_message(self, session: Session, message: Message) -> None:
        """Send a message of the loop to the client, if the welcome was already sent."""
        peer = session.peer
        if isinstance(message, ControlMessage):
            self._send_control(session, message)
        elif peer is not None and peer.welcome_sent:
            self._send(peer, message)
            if isinstance(message, CallMessage):
                self._after_call(session, peer, message)

    def _on_thread_time(self, event: ev.ThreadTime) -> None:
        """Measure a session whose client sets the pace. Let it pause if all sessions together exceed their rate."""
        session = event.session
        used_ns = session.load.add(event.cpu_ns, self.now_ns)
        others = self.core.ticks_per_s() - session.ticks_per_s
        if not others:
            return
        hz = max(self.rules.ticks_per_s - others, self.rules.ticks_per_s / len(self.sessions))
        pause_s = session.load.pause_s(used_ns, hz, self.now_ns)
        if pause_s and not session.load.slowed:
            session.load.slowed = True
            line = f"slowed down to {hz:.0f} ticks a second, for other sessions (serve.max_ticks_per_s)"
            self._log_line(session, line)
        self.out.append(ev.ReturnValue(pause_s))

    def _after_call(self, session: Session, peer: Peer, message: CallMessage) -> None:
        life, instructions = session.life, session.instructions
        if (reason := instructions.refusal) is not None:
            # Send this error after the call. A client that waits for a call would relate the error to its observation.
            instructions.refusal = None
            problem = f"The instruction was refused: {reason}"
            hint = "Use other or fewer words. The previous instruction stays active."
            self._refuse(peer, WireError(Code.INSTRUCTION, problem, hint, field="instruction", seq=message.seq_obs))
        leaves = life.leaves_ns and self.now_ns >= life.leaves_ns and not message.more
        if leaves and life.end_reason in (None, SERVER_LEAVING):
            # End now: the client has just received a call, which is active while the client connects to another server.
            self._stop_session(session, SERVER_LEAVING)
            self._send(peer, Bye(session=session.token, reason=SERVER_LEAVING, reconnect=True))
            peer.session = None
            if session.peer is peer:  # not if the client has already resumed elsewhere
                session.peer = None

    def _on_loop_error(self, event: ev.LoopError) -> None:
        """Send an error of the loop to the client. An error about an observation is sent only once, even if several
        ticks use the observation."""
        session, error, undecided = event.session, event.error, event.undecided
        connected = session.peer is not None
        if undecided is None or session.instructions.should_report(error.seq, undecided, connected):
            self._refuse_client(session, error)

    def _on_instruction_rejected(self, event: ev.InstructionRejected) -> None:
        instructions = event.session.instructions
        instructions.refusal = instructions.reported_refusal = event.reason

    def _log_line(self, session: Session, line: str, always: bool = False) -> None:
        """Log a line about the session, unless the rate limit is exceeded. If `always`, ignore the limit, which keeps
        errors of every tick from filling the log."""
        if self.core.log_limit.take(self.now_ns) or always:
            self.out.append(ev.WriteLogLine(f"{session.id}: {line}"))

    def _refuse_client(self, session: Session, error: WireError) -> None:
        if session.client is not None:
            self._refuse(session.client, error)

    # -- the end of a run: resume, park or end the session ------------------------------------------------------------

    def _on_ended(self, event: ev.SessionEnded) -> None:
        """Handle the end of a session's run: start the session again, park the session, or remove the session."""
        session, life, error = event.session, event.session.life, event.error
        life.has_loop, life.end_reason = False, life.end_reason or event.reason
        if event.run_instructions is not None:
            session.instructions.store_run(*event.run_instructions)
        instruction_failed = error is not None and error.field == "instruction" and life.welcomed
        if error is not None and instruction_failed and session.instructions.fall_back_to_proven():
            # The decider rejected the instruction of this run, so allow another run with the last accepted instruction.
            error.retryable, error.fatal = True, False
        may_resume = life.welcomed and life.end_reason is None and not (self.core.closing or self.rules.outlives_client)
        may_resume = may_resume and (error is None or (error.retryable and not error.fatal))
        if may_resume and error is None and session.peer is not None:
            life.parked_ns = self.now_ns
            self._open_session(session)
            return
        peer, session.peer = session.peer, None
        if peer is not None:
            peer.session = None
        if may_resume:
            self._park_session(session, CLIENT_LOST if error is None else error.message[:200])
        else:
            self.sessions.remove(session)
        if life.end_reason == PERSON_STOPPED and peer is not None:
            # Send an error and not only a bye, because some clients connect again automatically after a bye.
            self._send_error(peer, refusals.stopped_error(), always=True)
        if error is not None:
            session.refused[error.code.value] += 1
            if peer is not None:
                self._refuse(peer, add_reference(error, session.hello))
        elif not may_resume:
            self._send_bye(session, peer)

    def _park_session(self, session: Session, reason: str) -> None:
        """Park a session until its client resumes it. If too many sessions are parked, remove the oldest."""
        session.life.state, session.life.parked_ns = "parked", self.now_ns
        if (first := self.sessions.first_parked_over_limit()) is not None:
            self.sessions.remove(first)
        self.out.append(ev.WriteLogLine(f"{session.id}: {reason}; kept for {self.rules.grace_ns / 1e9:g} s"))

    def _send_bye(self, session: Session, peer: Peer | None) -> None:
        """Log that a session has ended, and send its client a bye if the client is connected."""
        reason = session.life.end_reason or CLIENT_LOST
        if peer is not None and reason != CLIENT_BYE:
            self._send(peer, Bye(session=session.token, reason=reason, reconnect=reason == SERVER_LEAVING or None))
        if session.life.welcomed and not self.rules.outlives_client:
            self.out.append(ev.WriteLogLine(f"{session.id}: over ({reason})"))

    def _on_bye(self, peer: Peer, message: Bye) -> None:
        """End the session at once. The client may then send another hello on this connection."""
        session = self.sessions.find_for_bye(peer, message.session)
        if session is None:
            return
        peer.session = session.peer = None
        self._stop_session(session, CLIENT_BYE)
        self._send(peer, Bye(session=session.token, reason=CLIENT_BYE))

    def _stop_session(self, session: Session, reason: str) -> None:
        """Stop the session with the safe call. The session cannot be resumed."""
        life = session.life
        life.end_reason, life.client_lost = life.end_reason or reason, True
        self.out.append(ev.StopLoop(session, reason))
        if life.state == "parked":
            self.sessions.remove(session)

    def _on_drain_started(self, event: ev.DrainStarted) -> None:
        """Refuse new sessions, and schedule the ends of the open sessions, one by one after the grace period."""
        if not self.core.draining:
            self.core.draining = True
            sessions = list(self.sessions)
            for n, session in enumerate(sessions):
                session.life.leaves_ns = (
                    self.now_ns + event.grace_ns + n * min(LEAVE_INTERVAL_NS, LEAVE_TOTAL_NS // len(sessions))
                )

    def _on_close_started(self, event: ev.CloseStarted) -> None:
        self.core.closing = True
        for session in self.sessions:
            self._stop_session(session, SERVER_STOPPED)

    def _on_timer_fired(self, event: ev.TimerFired) -> None:
        """Send heartbeats, close silent connections, and end expired sessions and those whose last call is overdue."""
        now = self.now_ns
        for session in self.sessions.expired(now):
            self.out.append(ev.WriteLogLine(f"{session.id}: over (the client did not return)"))
            self.sessions.remove(session)
        for peer in list(self.core.peers.values()):
            if now - peer.received_ns > self.core.max_silence_ns(peer):
                self._close_connection(peer)
            elif peer.live and now - peer.sent_ns >= self.rules.beat_ns:
                peer.pings += 1
                self._send(peer, Ping(id=peer.pings, t_ns=now))
        for session in self.sessions:
            leaves_ns = session.life.leaves_ns
            if leaves_ns and now > leaves_ns + LAST_CALL_WAIT_NS and session.life.end_reason is None:
                self._stop_session(session, SERVER_LEAVING)


def add_reference(error: WireError, message: Message | None) -> WireError:
    """Store in the error which message it is about (a hello's time, an observation's number), and return the error."""
    if isinstance(message, Hello):
        error.t_client_ns = message.t_client_ns
    elif isinstance(message, Observe):
        error.seq = message.seq
    return error


EVENTS: dict[type, Callable[[SessionStep, Any], None]] = {
    ev.MessageArrived: SessionStep._on_arrived,
    ev.MessageReceived: SessionStep._on_received,
    ev.TimeSpent: SessionStep._on_time_spent,
    ev.MessageRefused: SessionStep._on_failed,
    ev.ConnectionLost: SessionStep._on_disconnected,
    ev.SettingsNegotiated: SessionStep._on_negotiated,
    ev.LoopCreated: SessionStep._on_loop_created,
    ev.LoopWarmedUp: SessionStep._on_warmed_up,
    ev.WelcomeReady: SessionStep._on_welcome_ready,
    ev.LoopMessage: lambda step, event: step._emit_message(event.session, event.message),
    ev.ThreadTime: SessionStep._on_thread_time,
    ev.LoopError: SessionStep._on_loop_error,
    ev.InstructionRejected: SessionStep._on_instruction_rejected,
    ev.LogRequested: lambda step, event: step._log_line(event.session, event.line, event.always),
    ev.CommandReceived: SessionStep._on_commanded,
    ev.InstructionReceived: SessionStep._on_instructed,
    ev.SessionEnded: SessionStep._on_ended,
    ev.DrainStarted: SessionStep._on_drain_started,
    ev.CloseStarted: SessionStep._on_close_started,
    ev.TimerFired: SessionStep._on_timer_fired,
}
MESSAGES: dict[type, Callable[[SessionStep, Peer, Any], None]] = {
    **dict.fromkeys((Observe, Executed, Reset, Picture, *CROWD_MESSAGES), SessionStep._deliver_to_world),
    Ping: SessionStep._on_ping,
    **dict.fromkeys((Pong, ErrorMessage), lambda step, peer, message: None),  # these only show a live client
    Hello: SessionStep._on_hello,
    Instruct: SessionStep._on_instruct,
    ControlMessage: SessionStep._on_control,
    Bye: SessionStep._on_bye,
}
