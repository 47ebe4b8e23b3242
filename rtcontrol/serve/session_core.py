"""Decide about the clients' sessions: who is admitted or refused, welcomed, parked, resumed and ended.

The core takes events with `now_ns` (CLOCK_MONOTONIC) and returns actions (`session_events.py`). The methods follow a
client's session from top to bottom: connection, hello, opening, welcome, messages, people, calls, parking, bye, end.
The core uses no thread, socket, clock or lock.
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
    BY_HAND,
    BYE,
    HELLOS_PER_S,
    LEAVING,
    LOST,
    STOPPED,
    Connection,
    Need,
    Peer,
    Session,
    SessionRules,
    Sessions,
    TokenBucket,
    same,
    session_of,
    weigh,
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

# Limit of connections without a session; beyond it, the one that was silent the longest is dropped.
MAX_WITHOUT_SESSION = 1024
WITHOUT_SESSION_NS = 120_000_000_000  # a connection without a session is dropped after this silence
BETWEEN_NS, LEAVE_NS = 100_000_000, 2_000_000_000  # while draining: between the ends of two sessions; for all
PATIENCE_NS = 500_000_000  # how long a leaving session waits for its last call
LINES_PER_S = 2.0  # log lines for people
COMMANDS = ("pause", "resume", "stop", "confirm", "deny")  # commands of people, or of a client on their behalf
CONTROL = "control"
OF_CROWDS = (Join, Leave, ObserveMany)
SHARED = frozenset({Hello, Bye, ControlMessage, Picture})  # messages that may affect another session


class SessionCore:
    """The state of all sessions of a server. Session tokens are derived from the secret `seed`; `last` is the highest
    session number so far."""

    def __init__(self, rules: SessionRules, seed: bytes, last: int = 0, now_ns: int = 0) -> None:
        self.rules = rules
        self.sessions = Sessions(rules)
        self.peers: dict[Any, Peer] = {}  # by connection
        self.count = 0  # sessions so far
        self.refused: Counter[str] = Counter()  # by code
        self.closing = False
        self.draining = False  # new sessions are refused
        self.seed, self.last = seed, last
        self.lines = TokenBucket(LINES_PER_S, 20.0, now_ns)

    def advance(self, event: Any, now_ns: int) -> list[Any]:
        """Process an event at `now_ns`. Return the actions to carry out, in order."""
        step = SessionStep(self, now_ns)
        EVENTS[type(event)](step, event)
        return step.out

    @property
    def wake_ns(self) -> int | None:
        """The next instant at which the core needs `Woke`; None if nothing becomes due by itself."""
        rules = self.rules
        times = [s.life.parked_ns + rules.grace_ns + 1 for s in self.sessions if s.life.state == "parked"]
        for peer in self.peers.values():
            times.append(peer.in_ns + self.patience_ns(peer) + 1)
            if peer.live:
                times.append(peer.out_ns + rules.beat_ns)
        times += [s.life.leaves_ns + PATIENCE_NS + 1 for s in self.sessions if s.life.leaves_ns and s.life.why is None]
        return min(times, default=None)

    def busy(self, needs: Mapping[Session, Need | None]) -> float:
        """Return the share of the decoder's time that all sessions with known needs take together."""
        return sum(need.busy for s in self.sessions if s.life.why is None and (need := needs.get(s)) is not None)

    def has_room(self, needs: Mapping[Session, Need | None]) -> bool:
        """Return whether another session may open now."""
        states = self.sessions.states()
        free = states["opening"] + states["live"] < self.rules.limit and self.busy(needs) < self.rules.busy_max
        return free and not self.closing and not self.draining

    def patience_ns(self, peer: Peer) -> int:
        """Return the silence, in nanoseconds, after which a connection is dropped."""
        return self.rules.silent_beats * self.rules.beat_ns if peer.live else WITHOUT_SESSION_NS

    def is_independent(self, event: Any) -> bool:
        """Return whether an event only touches one connection and its session, by single reads and writes, as the
        messages of every tick do. Such events need no lock; all other events are processed one at a time."""
        kind = type(event)
        if kind is ev.Received:
            return type(event.message) not in SHARED and event.connection in self.peers
        return kind is ev.Emitted or (kind is ev.Arrived and event.connection in self.peers)


class SessionStep:
    """The processing of one event at one instant; `out` collects the resulting actions."""

    def __init__(self, core: SessionCore, now_ns: int) -> None:
        self.core, self.now_ns = core, now_ns
        self.rules, self.sessions = core.rules, core.sessions
        self.out: list[Any] = []

    # -- connections --------------------------------------------------------------------------------------------------

    def _arrived(self, event: ev.Arrived) -> None:
        peer = self._peer(event.connection)
        if peer.gone:
            return
        if peer.messages.take(self.now_ns):
            self.out.append(ev.Answer(True))
        else:
            self._refuse(peer, refusals.rate(f"{self.rules.messages_per_s:g} messages a second", "Send fewer."))

    def _received(self, event: ev.Received) -> None:
        """Process a message of the client; an invalid message is answered with an error."""
        peer, message = self._peer(event.connection), event.message
        if peer.gone:
            return
        peer.in_ns = self.now_ns
        take = MESSAGES.get(type(message))
        try:
            if take is None:
                raise refusals.state(f"{message.type} is for servers to send.", "Leave it to the server.")
            take(self, peer, message)
        except WireError as error:
            self._refuse(peer, stamped(error, message))

    def _failed(self, event: ev.Failed) -> None:
        peer = self._peer(event.connection)
        if not peer.gone:
            self._refuse(peer, stamped(event.error, event.message))

    def _disconnected(self, event: ev.Disconnected) -> None:
        peer = self.core.peers.get(event.connection)
        if peer is not None and event.revoked:
            self.out.append(ev.Say(f"{event.connection.peer}: its key was revoked"))
            self._drop(peer)
        elif peer is not None:
            self._lose(peer)

    def _peer(self, connection: Connection) -> Peer:
        """Return the state of a connection, and create it for a new connection. A closed connection is not registered
        again if its transport still delivers a message."""
        known = self.core.peers.get(connection)
        if known is not None:
            return known
        peer = Peer.of(connection, self.rules, self.now_ns)
        peer.gone = connection.closed
        if peer.gone:
            return peer
        without = [p for p in self.core.peers.values() if p.session is None]
        if len(without) >= MAX_WITHOUT_SESSION:
            self._drop(min(without, key=lambda p: p.in_ns))
        self.core.peers[connection] = peer
        return peer

    def _drop(self, peer: Peer) -> None:
        self.out.append(ev.Close(peer.connection))
        self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        """Stop the loop of a lost connection's session with the safe call; `Ended` then parks the session."""
        self.core.peers.pop(peer.connection, None)
        peer.gone = True
        session, peer.session = peer.session, None
        if session is not None and session.peer is peer:
            session.peer = None
            if not self.rules.outlives:
                session.life.lost = True
                self.out.append(ev.StopLoop(session, LOST))

    def _refuse(self, peer: Peer, error: WireError) -> None:
        """Count the refusal, and send the error if the rate limit allows. An existing session continues, whatever is
        refused."""
        code = error.code.value
        self.core.refused[code] += 1
        if peer.session is not None:
            peer.session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable and self.core.lines.take(self.now_ns):
            self.out.append(ev.Say(f"{peer.connection.peer}: refused: {error.message[:200]}"))
        self._send_error(peer, error)

    def _send_error(self, peer: Peer, error: WireError, always: bool = False) -> None:
        if not (peer.errors.take(self.now_ns) or always):
            peer.unsent += 1
            return
        dropped, peer.unsent = peer.unsent, 0
        self._send(peer, refusals.error_message(error, dropped))

    def _send(self, peer: Peer, message: Message) -> None:
        peer.out_ns = self.now_ns
        self.out.append(ev.Send(peer.connection, message))

    # -- hello: admitted or refused -----------------------------------------------------------------------------------

    def _hello(self, peer: Peer, hello: Hello) -> None:
        if not peer.hellos.take(self.now_ns):
            raise refusals.rate(f"{HELLOS_PER_S:g} hellos a second", "Wait for the answer.")
        if self.core.closing:
            raise refusals.busy("The server is stopping.")
        if self.core.draining and peer.session is None and hello.resume is None:
            raise refusals.busy("The server is draining.")
        if peer.session is not None:
            self._greet_again(peer.session, hello)
        elif hello.resume is not None:
            self._resume(peer, hello, hello.resume)
        else:
            self._enter(peer, hello)

    def _greet_again(self, session: Session, hello: Hello) -> None:
        """Answer a hello on a connection with a session: repeat a lost welcome, or refuse a different hello."""
        repeated = session.wishes(hello) if hello.resume is None else same(hello.resume, session.token)
        if not repeated:
            raise refusals.state("This connection has a session.", "Say bye first, or open another connection.")
        if session.life.state == "live":
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            self._greet(session)

    def _resume(self, peer: Peer, hello: Hello, token: str) -> None:
        """Resume a session, perhaps on a new connection before the loss of the old one was noticed."""
        session = self.sessions.resumed(token, peer.connection.key)
        self.sessions.check_room(besides=session)
        peer.join(session)
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": token})
        if session.life.state == "parked":
            self._open(session)
        elif session.life.state == "live":
            self._greet(session)
        # Otherwise the loop is starting, or ending: then `Ended` starts the session again.

    def _enter(self, peer: Peer, hello: Hello) -> None:
        """Start a new session."""
        self.sessions.check_room()
        for other in self.sessions.claims(hello.robot):
            self.sessions.remove(other)
        self.core.last += 1
        name = f"session-{self.core.last:04d}"
        token = base64.urlsafe_b64encode(hmac.digest(self.core.seed, name.encode(), "sha256")[:24]).decode()
        crowd = hello.crowd is not None and not self.rules.outlives
        session = Session(name, token, hello, peer.connection.key, crowd)
        peer.join(session)
        self.sessions.add(session)
        self.core.count += 1
        self._open(session)

    # -- opening, and the welcome -------------------------------------------------------------------------------------

    def _open(self, session: Session) -> None:
        session.life.state, session.life.lost = "opening", False
        self.out.append(ev.Start(session, not session.agreed))

    def _agreed(self, event: ev.Agreed) -> None:
        """Let the session open with its negotiated settings, unless the client has gone meanwhile."""
        life, instructions = event.session.life, event.session.instructions
        event.session.agreed = True
        if not life.gone:
            life.runs += 1
            instructions.first = instructions.next
            self.out.append(ev.Answer(True))

    def _attached(self, event: ev.Attached) -> None:
        """Pass commands and instructions that arrived before the loop existed on to the loop."""
        session, life, instructions = event.session, event.session.life, event.session.instructions
        life.attached = True
        if life.paused:
            self.out.append(ev.CommandLoop(session, "pause", "before", None, noted=True))
        if instructions.next is not None and instructions.next != instructions.first:  # a newer one
            self.out.append(ev.InstructLoop(session, instructions.next))
        if life.why is not None or life.lost:
            self.out.append(ev.StopLoop(session, life.why or LOST))

    def _warm(self, event: ev.Warm) -> None:
        """Make the session live, unless this would make the calls of welcomed sessions late."""
        session, life, peer = event.session, event.session.life, event.session.peer
        if not life.welcomed and (need := event.needs.get(session)) is not None:
            others = [event.needs.get(s) for s in self.sessions if s.life.welcomed and s.life.why is None]
            refusal = weigh(need, [other for other in others if other is not None], self.rules.busy_max)
            if refusal is not None:
                self.out.append(ev.Answer(refusal))
                return
        life.state, life.welcomed = "live", True
        if peer is not None:
            peer.in_ns = self.now_ns  # until now the client was waiting for the welcome
            resumed = ", resumed" if life.runs > 1 else ""
            self.out.append(ev.Say(f"{session.id}: {peer.connection.peer}, {event.described}{resumed}"))
            self._greet(session)

    def _greet(self, session: Session) -> None:
        resumed = session.life.runs > 1 or session.hello.resume is not None
        self.out.append(ev.Greet(session, resumed))

    def _greeted(self, event: ev.Greeted) -> None:
        """Send the client the welcome and the control state of its loop."""
        session, life = event.session, event.session.life
        if session.peer is None or life.state != "live" or life.why is not None:
            return
        for message in event.messages:
            session.peer.greeted = True
            self._emit(session, message)

    # -- messages of a client that is there ---------------------------------------------------------------------------

    def _to_world(self, peer: Peer, message: Any) -> None:
        """Pass a message about the client's world on to the session."""
        find = self.sessions.pictured if isinstance(message, Picture) else session_of
        session = find(peer, message.session)
        if session.crowd != isinstance(message, OF_CROWDS):
            problem = f"This session is {'' if session.crowd else 'not '}a crowd: it takes no {message.type}."
            raise refusals.state(problem, "Give hello `crowd: {}` for join, leave and observe_many alone.")
        if session.life.state != "live":
            raise refusals.state("The session is not open.", "Wait for the welcome.", retryable=True)
        self.out.append(ev.Deliver(peer.connection, session, message))

    def _ping(self, peer: Peer, message: Ping) -> None:
        now = self.now_ns
        self._send(peer, Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))

    def _instruct(self, peer: Peer, message: Instruct) -> None:
        session = session_of(peer, message.session)
        self._instruct_loop(session, message.instruction)

    def _instructed(self, event: ev.Instructed) -> None:
        if event.missed:
            event.session.instructions.next = event.text
        else:
            self._instruct_loop(event.session, event.text)

    def _instruct_loop(self, session: Session, text: str) -> None:
        """Give the instruction to the running loop, or keep it for the next run."""
        if session.life.attached:
            self.out.append(ev.InstructLoop(session, text))
        else:
            session.instructions.next = text

    # -- people -------------------------------------------------------------------------------------------------------

    def _control(self, peer: Peer, message: ControlMessage) -> None:
        session = session_of(peer, message.session)
        word = message.say
        if CONTROL not in session.hello.capabilities:
            raise refusals.state("hello did not announce control.", 'Give hello `capabilities: ["control"]`.')
        if word is None or (message.instruction is not None and word in ("confirm", "deny")):
            hint = f"Say one of {', '.join(COMMANDS)}; confirm and deny are for calls alone."
            raise WireError(Code.INVALID, "control.say is missing, or is for an instruction.", hint, field="say")
        answer = self._command(session, word, "wire", message.id, noted=True)
        if answer is not None:
            self._note(session, answer)

    def _commanded(self, event: ev.Commanded) -> None:
        answer = self._command(event.session, event.word, event.by, event.k, noted=False)
        if answer is not None:
            self.out.append(ev.Answer(answer))

    def _command(self, session: Session, word: str, by: str, k: int | None, noted: bool) -> str | None:
        """Carry out a person's command, even while the session opens or is parked. A stop ends the session for good.
        Return a sentence about the result; None if the loop will answer."""
        life = session.life
        if word in ("pause", "resume", "stop"):
            life.paused = word != "resume"
        if word == "stop":
            life.why = life.why or BY_HAND
        if life.state == "parked" and life.why is not None:
            self.sessions.remove(session)
        if not life.attached:
            return f"{word} ({by})"
        self.out.append(ev.CommandLoop(session, word, by, k, noted))
        return None

    def _send_control(self, session: Session, control: ControlMessage) -> None:
        """Send the control state, or a call that waits for confirmation, to a client that announced `control`."""
        if CONTROL in session.hello.capabilities and session.client is not None:
            self._send(session.client, control)

    # -- what a loop has for its client -------------------------------------------------------------------------------

    def _emit(self, session: Session, message: Message) -> None:
        """Send a message of the loop to the client."""
        peer = session.peer
        if isinstance(message, ControlMessage):
            self._send_control(session, message)
        elif peer is not None and peer.greeted:
            self._send(peer, message)
            if isinstance(message, CallMessage):
                self._after_call(session, peer, message)

    def _after_call(self, session: Session, peer: Peer, message: CallMessage) -> None:
        life, instructions = session.life, session.instructions
        if (why := instructions.refusal) is not None:
            # Sent after the call: a client that waits for a call must not take this error for a refused observation.
            instructions.refusal = None
            error = f"The instruction was refused: {why}"
            hint = "Say it in other or fewer words; the previous instruction continues."
            seq = message.seq_obs
            self._refuse(peer, WireError(Code.INSTRUCTION, error, hint, field="instruction", seq=seq))
        if life.leaves_ns and self.now_ns >= life.leaves_ns and not message.more and life.why in (None, LEAVING):
            # The client has just received a new call, so it acts by the newest one while it reconnects.
            self._stop(session, LEAVING)
            self._send(peer, Bye(session=session.token, reason=LEAVING, reconnect=True))
            peer.session = None
            if session.peer is peer:  # the client may be back on another connection just now
                session.peer = None

    def _wrong(self, event: ev.Wrong) -> None:
        """Send the client an error of the loop; an observation that many ticks use is refused only once."""
        session, error, undecided = event.session, event.error, event.undecided
        connected = session.peer is not None
        if undecided is None or session.instructions.reports(error.seq, undecided, connected):
            self._refuse_client(session, error)

    def _gave_way(self, event: ev.GaveWay) -> None:
        instructions = event.session.instructions
        instructions.refusal = instructions.shown = event.why

    def _note(self, session: Session, line: str, always: bool = False) -> None:
        """Log a line about the session if the rate limit allows: errors that a client repeats in every tick must not
        fill the log."""
        if self.core.lines.take(self.now_ns) or always:
            self.out.append(ev.Say(f"{session.id}: {line}"))

    def _refuse_client(self, session: Session, error: WireError) -> None:
        if session.client is not None:
            self._refuse(session.client, error)

    # -- the end of a run: parked, resumed or ended -------------------------------------------------------------------

    def _ended(self, event: ev.Ended) -> None:
        """Start a session whose run has ended again, park it, or remove it."""
        session, life, error = event.session, event.session.life, event.error
        life.attached, life.why = False, life.why or event.why
        if event.ran is not None:
            session.instructions.ran(*event.ran)
        if error is not None and error.field == "instruction" and life.welcomed and session.instructions.give_way():
            # The decider rejects the instruction that the run started with: the next run starts with the previous one.
            error.retryable, error.fatal = True, False
        passing = error is None or (error.retryable and not error.fatal)
        kept = passing and life.why is None and life.welcomed and not (self.core.closing or self.rules.outlives)
        if kept and error is None and session.peer is not None:
            life.parked_ns = self.now_ns
            self._open(session)
            return
        peer, session.peer = session.peer, None
        if peer is not None:
            peer.session = None
        if kept:
            self._park(session, LOST if error is None else error.message[:200])
        else:
            self.sessions.remove(session)
        if life.why == BY_HAND and peer is not None:
            # After a bye alone, some clients say hello again automatically.
            self._send_error(peer, refusals.stopped(), always=True)
        if error is not None:
            session.refused[error.code.value] += 1
            if peer is not None:
                self._refuse(peer, stamped(error, session.hello))
        elif not kept:
            self._part(session, peer)

    def _park(self, session: Session, why: str) -> None:
        """Park a session until its client returns; beyond the limit, remove the one that was parked first."""
        session.life.state, session.life.parked_ns = "parked", self.now_ns
        if (first := self.sessions.beyond()) is not None:
            self.sessions.remove(first)
        self.out.append(ev.Say(f"{session.id}: {why}; kept for {self.rules.grace_ns / 1e9:g} s"))

    def _part(self, session: Session, peer: Peer | None) -> None:
        """Send a bye to the client of a session that has ended."""
        why = session.life.why or LOST
        if peer is not None and why != BYE:
            self._send(peer, Bye(session=session.token, reason=why, reconnect=why == LEAVING or None))
        if session.life.welcomed and not self.rules.outlives:
            self.out.append(ev.Say(f"{session.id}: over ({why})"))

    def _bye(self, peer: Peer, message: Bye) -> None:
        """End the session at once, so that the next hello on this connection finds it free."""
        session = self.sessions.left(peer, message.session)
        if session is None:
            return
        peer.session = session.peer = None
        self._stop(session, BYE)
        self._send(peer, Bye(session=session.token, reason=BYE))

    def _stop(self, session: Session, why: str) -> None:
        """Stop the session with the safe call; the session cannot be resumed."""
        life = session.life
        life.why, life.lost = life.why or why, True
        self.out.append(ev.StopLoop(session, why))
        if life.state == "parked":
            self.sessions.remove(session)

    # -- the end of the server ----------------------------------------------------------------------------------------

    def _drains(self, event: ev.Drains) -> None:
        """Refuse new sessions, and after the grace send the clients away one by one, each after its next call."""
        if not self.core.draining:
            self.core.draining = True
            sessions = list(self.sessions)
            for n, session in enumerate(sessions):
                session.life.leaves_ns = self.now_ns + event.grace_ns + n * min(BETWEEN_NS, LEAVE_NS // len(sessions))

    def _closes(self, event: ev.Closes) -> None:
        self.core.closing = True
        for session in self.sessions:
            self._stop(session, STOPPED)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _woke(self, event: ev.Woke) -> None:
        """Send heartbeats, and end dead connections, expired sessions, and leaving sessions whose last call is
        overdue."""
        now = self.now_ns
        for session in self.sessions.expired(now):
            self.out.append(ev.Say(f"{session.id}: over (its client did not return)"))
            self.sessions.remove(session)
        for peer in list(self.core.peers.values()):
            if now - peer.in_ns > self.core.patience_ns(peer):
                self._drop(peer)
            elif peer.live and now - peer.out_ns >= self.rules.beat_ns:
                peer.pings += 1
                self._send(peer, Ping(id=peer.pings, t_ns=now))
        for session in self.sessions:
            leaves_ns = session.life.leaves_ns
            if leaves_ns and now > leaves_ns + PATIENCE_NS and session.life.why is None:
                self._stop(session, LEAVING)


def stamped(error: WireError, message: Message | None) -> WireError:
    """Return the error with the time of the refused hello, or the number of the refused observation."""
    if isinstance(message, Hello):
        error.t_client_ns = message.t_client_ns
    elif isinstance(message, Observe):
        error.seq = message.seq
    return error


EVENTS: dict[type, Callable[[SessionStep, Any], None]] = {
    ev.Arrived: SessionStep._arrived,
    ev.Received: SessionStep._received,
    ev.Failed: SessionStep._failed,
    ev.Disconnected: SessionStep._disconnected,
    ev.Agreed: SessionStep._agreed,
    ev.Attached: SessionStep._attached,
    ev.Warm: SessionStep._warm,
    ev.Greeted: SessionStep._greeted,
    ev.Emitted: lambda step, event: step._emit(event.session, event.message),
    ev.Wrong: SessionStep._wrong,
    ev.GaveWay: SessionStep._gave_way,
    ev.Noted: lambda step, event: step._note(event.session, event.line, event.always),
    ev.Commanded: SessionStep._commanded,
    ev.Instructed: SessionStep._instructed,
    ev.Ended: SessionStep._ended,
    ev.Drains: SessionStep._drains,
    ev.Closes: SessionStep._closes,
    ev.Woke: SessionStep._woke,
}
MESSAGES: dict[type, Callable[[SessionStep, Peer, Any], None]] = {
    **dict.fromkeys((Observe, Executed, Reset, Picture, *OF_CROWDS), SessionStep._to_world),
    Ping: SessionStep._ping,
    **dict.fromkeys((Pong, ErrorMessage), lambda step, peer, message: None),  # only show that the client is alive
    Hello: SessionStep._hello,
    Instruct: SessionStep._instruct,
    ControlMessage: SessionStep._control,
    Bye: SessionStep._bye,
}
