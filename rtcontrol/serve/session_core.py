"""Decide about the clients' sessions: who is admitted or refused, welcomed, parked, resumed and ended.

Read from top to bottom it is a client's life: a connection, its hello, opening, the welcome, messages, people, calls,
parking, a bye, the end. A method takes what happened at `now_ns` (CLOCK_MONOTONIC) and acts through the ports of
`sessions.py`, which never block; `wake_ns` says when to call `woke`. No thread, socket or clock. Not locked: the caller
is. What comes in every tick (an observation, a call) touches one connection and one session by single reads and writes
alone, and needs no lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.serve import refusals
from rtcontrol.serve.sessions import (
    BY_HAND,
    BYE,
    HELLOS_PER_S,
    LEAVING,
    LOST,
    STOPPED,
    Connection,
    Peer,
    ServerPort,
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

# Connections without a session; the one that was silent the longest makes room.
MAX_WITHOUT_SESSION = 1024
WITHOUT_SESSION_NS = 120_000_000_000  # such a connection is dropped after so much silence
BETWEEN_NS, LEAVE_NS = 100_000_000, 2_000_000_000  # two sessions that end because the server drains; all of them, about
LINES_PER_S = 2.0  # refusals that are shown to people; all are counted
STAMPED = 1  # from this minor version on an error says which hello it refuses, and a bye is answered
COMMANDS = ("pause", "resume", "stop", "confirm", "deny")  # what people, or a client for them, may say to a session
CONTROL = "control"
OF_CROWDS = (Join, Leave, ObserveMany)


@dataclass(slots=True)
class Draining:
    """When the next client is sent to another server, and how long after it the one after that."""

    next_ns: int
    between_ns: int


class SessionCore:
    """All sessions of a server. `last`: the highest number that a session ever had."""

    def __init__(self, rules: SessionRules, server: ServerPort, last: int = 0, now_ns: int = 0) -> None:
        self.rules, self.server = rules, server
        self.sessions = Sessions(rules)
        self.peers: dict[Any, Peer] = {}  # by connection
        self.counts: Counter[str] = Counter()  # sessions, errors_from_clients
        self.refused: Counter[str] = Counter()  # by code
        self.closing = False
        self.drain: Draining | None = None  # new sessions are refused
        self._last = last
        self._lines = TokenBucket(LINES_PER_S, 20.0, now_ns)

    @property
    def draining(self) -> bool:
        """Whether sessions are still to be sent away."""
        return self.drain is not None and any(s.life.why is None for s in self.sessions)

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together, as far as it is known."""
        needs = [s.runner.need() for s in self.sessions if s.life.why is None]
        return sum(need.busy for need in needs if need is not None)

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        states = self.sessions.states()
        free = states["opening"] + states["live"] < self.rules.limit and self.busy() < self.rules.busy_max
        return free and not self.closing and self.drain is None

    # -- connections --------------------------------------------------------------------------------------------------

    def admits(self, now_ns: int, connection: Connection) -> bool:
        """Return whether a message that is not decoded yet may be."""
        peer = self._peer(now_ns, connection)
        if peer.gone or peer.messages.take(now_ns):
            return not peer.gone
        self._refuse(now_ns, peer, refusals.rate(f"{self.rules.messages_per_s:g} messages a second", "Send fewer."))
        return False

    def received(self, now_ns: int, connection: Connection, message: Message) -> None:
        """Take a decoded message; what is wrong with it goes back as an error."""
        peer = self._peer(now_ns, connection)
        if peer.gone:
            return
        peer.in_ns = now_ns
        take = MESSAGES.get(type(message))
        try:
            if take is None:
                raise refusals.state(f"{message.type} is for servers to send.", "Leave it to the server.")
            take(self, now_ns, peer, message)
        except WireError as error:
            self._refuse(now_ns, peer, stamped(error, message))

    def failed(self, now_ns: int, connection: Connection, error: WireError, message: Message | None = None) -> None:
        """Refuse a message that could not be decoded (None), or taken."""
        peer = self._peer(now_ns, connection)
        if not peer.gone:
            self._refuse(now_ns, peer, stamped(error, message))

    def disconnected(self, now_ns: int, connection: Connection, revoked: bool = False) -> None:
        """Lose the client of a connection that is gone, or whose key was `revoked`: then it is closed."""
        peer = self.peers.get(connection)
        if peer is not None and revoked:
            self.server.say(f"{connection.peer}: its key was revoked")
            self._drop(peer)
        elif peer is not None:
            self._lose(peer)

    def _peer(self, now_ns: int, connection: Connection) -> Peer:
        """Return what is known of a connection, which may be new. One that was closed stays gone: a message that its
        transport still delivers does not make it known again."""
        known = self.peers.get(connection)
        if known is not None:
            return known
        peer = Peer.of(connection, self.rules, now_ns)
        if connection.closed:
            peer.gone = True
            return peer
        without = [p for p in list(self.peers.values()) if p.session is None]
        if len(without) >= MAX_WITHOUT_SESSION:
            self._drop(min(without, key=lambda p: p.in_ns))
        self.peers[connection] = peer
        return peer

    def _drop(self, peer: Peer) -> None:
        peer.connection.close()
        self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        """Make the session of a connection that is gone safe; its end parks it."""
        self.peers.pop(peer.connection, None)
        peer.gone = True
        session, peer.session = peer.session, None
        if session is not None and session.peer is peer:
            session.peer = None
            if not self.rules.outlives:
                session.life.lost = True
                session.runner.stop_loop(LOST)

    def _refuse(self, now_ns: int, peer: Peer, error: WireError) -> None:
        """Count the refusal, and inform the client as far as the rate of errors allows. Once there is a session, it
        continues whatever is refused."""
        code = error.code.value
        self.refused[code] += 1
        if peer.session is not None:
            peer.session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable and self._lines.take(now_ns):
            self.server.say(f"{peer.connection.peer}: refused: {error.message[:200]}")
        self._send_error(now_ns, peer, error)

    def _send_error(self, now_ns: int, peer: Peer, error: WireError, always: bool = False) -> None:
        if not (peer.errors.take(now_ns) or always):
            peer.unsent += 1
            return
        dropped, peer.unsent = peer.unsent, 0
        self._send(now_ns, peer, refusals.error_message(error, dropped))

    def _send(self, now_ns: int, peer: Peer, message: Message) -> None:
        peer.out_ns = now_ns
        peer.connection.send(message)

    # -- hello: admitted or refused -----------------------------------------------------------------------------------

    def _hello(self, now_ns: int, peer: Peer, hello: Hello) -> None:
        if not peer.hellos.take(now_ns):
            raise refusals.rate(f"{HELLOS_PER_S:g} hellos a second", "Wait for the answer.")
        if self.closing:
            raise refusals.busy("The server is stopping.")
        if self.drain is not None and peer.session is None and hello.resume is None:
            raise refusals.busy("The server is draining.")
        if peer.session is not None:
            self._greet_again(now_ns, peer.session, hello)
        elif hello.resume is not None:
            self._resume(now_ns, peer, hello, hello.resume)
        elif (session := self.sessions.restarted(hello, peer.connection.key)) is not None:
            session.hello = hello
            peer.join(session)
            session.runner.restart()
            self._welcome(now_ns, session)
        else:
            self._enter(now_ns, peer, hello)

    def _greet_again(self, now_ns: int, session: Session, hello: Hello) -> None:
        """Answer a hello on a connection that has a session: the welcome was lost, or the client is confused."""
        if hello.resume is None and not session.wishes(hello):
            raise refusals.state("This connection has a session.", "Say bye first, or open another connection.")
        if hello.resume is not None and not same(hello.resume, session.token):
            raise refusals.unknown_token("This connection has another session.", "Say bye first.", "resume")
        if session.life.state == "live":
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            self._welcome(now_ns, session)

    def _resume(self, now_ns: int, peer: Peer, hello: Hello, token: str) -> None:
        """Take a client back, maybe on another connection before the first one was missed."""
        session = self.sessions.resumed(token, peer.connection.key)
        self.sessions.check_room(besides=session)
        peer.join(session)
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": token})
        if session.life.state == "parked":
            self._open(now_ns, session)
        elif session.life.state == "live":
            self._welcome(now_ns, session)
        # Otherwise its loop just starts, or just ends: then `ended` starts it again.

    def _enter(self, now_ns: int, peer: Peer, hello: Hello) -> None:
        """Start a new session."""
        self.sessions.check_room()
        for other in self.sessions.claims(hello.robot):
            self.sessions.remove(other)
        self._last += 1
        lines = TokenBucket(1.0, 5.0, now_ns)
        crowd = hello.crowd is not None and not self.rules.outlives
        token, key = self.server.new_token(), peer.connection.key
        session = Session(f"session-{self._last:04d}", token, hello, lines, key, crowd)
        session.runner = self.server.runner(session)
        peer.join(session)
        self.sessions.add(session)
        self.counts["sessions"] += 1
        self._open(now_ns, session)

    # -- opening, and the welcome -------------------------------------------------------------------------------------

    def _open(self, now_ns: int, session: Session) -> None:
        session.life.state, session.life.lost = "opening", False
        if not session.runner.start(not session.agreed):
            self.ended(now_ns, session, refusals.no_thread(session.life.welcomed))

    def opens(self, now_ns: int, session: Session) -> bool:
        """Its hello became terms. Return whether it opens by them, with `instructions.first` (None: the terms'); a
        client that waited for long may have gone meanwhile."""
        session.agreed = True
        if session.life.gone:
            return False
        session.life.runs += 1
        session.instructions.first = session.instructions.next
        return True

    def attached(self, now_ns: int, session: Session) -> None:
        """Its loop is there, and will run."""
        life, instructions = session.life, session.instructions
        life.attached = True  # before the rest is looked at: who changes it meanwhile finds the loop
        if life.paused:
            self.note(now_ns, session, session.runner.say_to_loop("pause", "before", None))
        if instructions.next is not None and instructions.next != instructions.first:  # a newer one
            session.runner.instruct_loop(instructions.next)
        if life.why is not None or life.lost:
            session.runner.stop_loop(life.why or LOST)

    def warm(self, now_ns: int, session: Session) -> None:
        """Its loop waits for the first observation: it is live, unless calls of those that were welcomed before would
        be late. Raises WireError (busy)."""
        life, peer = session.life, session.peer
        if not life.welcomed and (need := session.runner.need()) is not None:
            others = [s.runner.need() for s in self.sessions if s.life.welcomed and s.life.why is None]
            refusal = weigh(need, [other for other in others if other is not None], self.rules.busy_max)
            if refusal is not None:
                raise refusal
        life.state, life.welcomed = "live", True
        if peer is not None:
            peer.in_ns = now_ns  # until now the client had nothing to say
            resumed = ", resumed" if life.runs > 1 else ""
            self.server.say(f"{session.id}: {peer.connection.peer}, {session.runner.described()}{resumed}")
            self._welcome(now_ns, session)

    def _welcome(self, now_ns: int, session: Session) -> None:
        """Welcome the client to what is active in its loop, and inform it of what people did."""
        peer, life = session.peer, session.life
        if peer is None or life.state != "live" or life.why is not None:
            return
        resumed = life.runs > 1 or session.hello.resume is not None
        for message in session.runner.welcome(now_ns, resumed):
            peer.greeted = True
            self.emitted(now_ns, session, message)

    # -- messages of a client that is there ---------------------------------------------------------------------------

    def _to_world(self, now_ns: int, peer: Peer, message: Any) -> None:
        """Pass on a message of, or about, the client's world."""
        find = self.sessions.pictured if isinstance(message, Picture) else session_of
        session = find(peer, message.session)
        if session.crowd != isinstance(message, OF_CROWDS):
            raise refusals.of_crowds(session.crowd)
        if session.life.state != "live":
            raise refusals.state("The session is not open.", "Wait for the welcome.", retryable=True)
        session.runner.take(message)

    def _ping(self, now_ns: int, peer: Peer, message: Ping) -> None:
        self._send(now_ns, peer, Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))

    def _client_error(self, now_ns: int, peer: Peer, message: ErrorMessage) -> None:
        self.counts["errors_from_clients"] += 1

    def _instruct(self, now_ns: int, peer: Peer, message: Instruct) -> None:
        session = session_of(peer, message.session)
        with refusals.refused_as(Code.INSTRUCTION, "instruction"):
            text = self.server.plain(message.instruction)
        session.instructions.newest = text
        self._instruct_loop(session, text)

    def instruct(self, now_ns: int, session: Session, text: str) -> None:
        """Take an instruction of a person at the server. Raises UserError where it is too long."""
        self._instruct_loop(session, self.server.plain(text))

    def _instruct_loop(self, session: Session, text: str) -> None:
        """Decide by the text from now on, or from the next run on."""
        if not (session.life.attached and session.runner.instruct_loop(text)):
            session.instructions.next = text

    # -- people -------------------------------------------------------------------------------------------------------

    def _control(self, now_ns: int, peer: Peer, message: ControlMessage) -> None:
        session = session_of(peer, message.session)
        word = message.say
        if CONTROL not in session.hello.capabilities:
            raise refusals.state("hello did not announce control.", 'Give hello `capabilities: ["control"]`.')
        if word is None or (message.instruction is not None and word in ("confirm", "deny")):
            hint = f"Say one of {', '.join(COMMANDS)}; confirm and deny are for calls alone."
            raise WireError(Code.INVALID, "control.say is missing, or is for an instruction.", hint, field="say")
        self.note(now_ns, session, self.command(now_ns, session, word, "wire", message.id))

    def command(self, now_ns: int, session: Session, word: str, by: str, k: int | None = None) -> str:
        """Pause, resume, stop, confirm or deny (the call of tick `k`), also in a session that opens or waits for its
        client. A stop ends it for good. Return one sentence about it."""
        life = session.life
        if word not in COMMANDS:
            raise ValueError(f"{word!r} is none of {', '.join(COMMANDS)}")
        if session.crowd and (answer := crowd_answer(word, life.why)) is not None:
            return answer
        if word in ("pause", "resume", "stop"):
            life.paused = word != "resume"
        if word == "stop":
            life.why = life.why or BY_HAND
        if session.crowd:
            state: Any = "stopped" if life.why == BY_HAND else "paused" if life.paused else "running"
            self._send_control(now_ns, session, ControlMessage(session=session.token, state=state))
        if life.state == "parked" and life.why is not None:
            self.sessions.remove(session)
        return session.runner.say_to_loop(word, by, k) if life.attached else f"{word} ({by})"

    def _send_control(self, now_ns: int, session: Session, control: ControlMessage) -> None:
        """Inform a client that wants to know of what people did, or of what waits for their yes."""
        if CONTROL in session.hello.capabilities and session.client is not None:
            self._send(now_ns, session.client, control)

    # -- what a loop has for its client -------------------------------------------------------------------------------

    def emitted(self, now_ns: int, session: Session, message: Message) -> None:
        """Send the client a message of the loop."""
        peer = session.peer
        if isinstance(message, ControlMessage):
            self._send_control(now_ns, session, message)
        elif peer is not None and peer.greeted:
            self._send(now_ns, peer, message)
            if isinstance(message, CallMessage):
                self._after_call(now_ns, session, peer, message)

    def _after_call(self, now_ns: int, session: Session, peer: Peer, message: CallMessage) -> None:
        life, instructions = session.life, session.instructions
        if (why := instructions.refusal) is not None:
            # After its tick's call: a client that waits for one must not take it for the refusal of the observation.
            instructions.refusal = None
            self._refuse(now_ns, peer, refusals.instruction_refused(why, message.seq_obs))
        if life.leaving and not message.more and life.why in (None, LEAVING):
            # Now the client acts by what is as new as can be.
            self._stop(now_ns, session, LEAVING)
            self._send(now_ns, peer, Bye(session=session.token, reason=LEAVING, reconnect=True))
            peer.session = None
            if session.peer is peer:  # the client may be back on another connection just now
                session.peer = None

    def wrong(self, now_ns: int, session: Session, error: WireError, undecided: str | None = None) -> None:
        """Inform the client of an error; `undecided`: why no decision was made of its observation `error.seq`. One
        observation may be looked at in many ticks: it is refused once."""
        connected = session.peer is not None
        if undecided is None or session.instructions.reports(error.seq, undecided, connected):
            self._refuse_client(now_ns, session, error)

    def gave_way(self, now_ns: int, session: Session, why: str) -> None:
        """The decider cannot take an instruction: the one before is active again."""
        session.instructions.refusal = session.instructions.shown = why

    def understood(
        self, now_ns: int, session: Session, sentence: str, overtaken: bool, answer: Instruct | WireError
    ) -> None:
        """Inform the client of what a sentence was understood as, unless it has overtaken its own sentence itself. If
        the session is not live, the next welcome says what is active."""
        if session.life.state != "live" or (overtaken and sentence != session.instructions.newest):
            return
        if isinstance(answer, WireError):
            self._refuse_client(now_ns, session, answer)
        elif session.client is not None:
            self._send(now_ns, session.client, answer)

    def note(self, now_ns: int, session: Session, line: str, always: bool = False) -> None:
        """Show people a line of the session, as far as the rate allows: what a client does wrong in every tick must not
        fill the log."""
        if session.lines.take(now_ns) or always:
            self.server.say(f"{session.id}: {line}")

    def _refuse_client(self, now_ns: int, session: Session, error: WireError) -> None:
        if session.client is not None:
            self._refuse(now_ns, session.client, error)

    # -- the end of a run: parked, resumed or ended -------------------------------------------------------------------

    def unfit(self, now_ns: int, session: Session, problem: str, hint: str) -> WireError:
        """The decider cannot take the instruction that the run started with. Return what ends the run; a session that
        was live comes back to the instruction before."""
        again = session.life.welcomed and session.instructions.give_way()
        return WireError(Code.INSTRUCTION, problem, hint, field="instruction", retryable=again, fatal=not again)

    def ran(self, now_ns: int, session: Session, proven: str, newest: str) -> None:
        """Its loop is over; `proven`: the last instruction that something was decided by, `newest`: the last of all."""
        session.instructions.ran(proven, newest)

    def ended(self, now_ns: int, session: Session, error: WireError | None = None, why: str | None = None) -> None:
        """Its thread is done, for good where there is a `why`: start it again, park it, or end it."""
        life = session.life
        life.attached, life.why = False, life.why or why
        passing = error is None or (error.retryable and not error.fatal)
        kept = passing and life.why is None and life.welcomed and not (self.closing or self.rules.outlives)
        if kept and error is None and session.peer is not None:
            life.parked_ns = now_ns
            self._open(now_ns, session)
            return
        peer, session.peer = session.peer, None
        if peer is not None:
            peer.session = None
        if kept:
            self._park(now_ns, session, LOST if error is None else error.message[:200])
        else:
            self.sessions.remove(session)
        if life.why == BY_HAND and peer is not None:
            # After a bye alone, some clients greet again by themselves.
            self._send_error(now_ns, peer, refusals.stopped(), always=True)
        if error is not None:
            session.refused[error.code.value] += 1
            if peer is not None:
                self._refuse(now_ns, peer, stamped(error, session.hello))
        elif not kept:
            self._part(now_ns, session, peer)

    def _park(self, now_ns: int, session: Session, why: str) -> None:
        """Let it wait for its client; the one that waits longest makes room."""
        session.life.state, session.life.parked_ns = "parked", now_ns
        if (first := self.sessions.beyond()) is not None:
            self.sessions.remove(first)
        self.server.say(f"{session.id}: {why}; kept for {self.rules.grace_ns / 1e9:g} s")

    def _part(self, now_ns: int, session: Session, peer: Peer | None) -> None:
        """Say bye to the client of a session that is over."""
        why = session.life.why or LOST
        if peer is not None and why != BYE:
            away = why == LEAVING or None
            self._send(now_ns, peer, Bye(session=session.token, reason=why, reconnect=away))
        if session.life.welcomed and not self.rules.outlives:
            self.server.say(f"{session.id}: over ({why})")

    def _bye(self, now_ns: int, peer: Peer, message: Bye) -> None:
        """End the session at once, so that the next hello on this connection finds it free."""
        session = self.sessions.left(peer, message.session)
        if session is None:
            return
        peer.session = session.peer = None
        parked = session.life.state == "parked"
        self._stop(now_ns, session, BYE)
        if parked:
            self.server.say(f"{session.id}: over ({BYE})")
        if session.hello.protocol[1] >= STAMPED:
            self._send(now_ns, peer, Bye(session=session.token, reason=BYE))

    def _stop(self, now_ns: int, session: Session, why: str) -> None:
        """End it soon, with the safe call: it cannot be resumed."""
        life = session.life
        life.why, life.lost = life.why or why, True
        session.runner.stop_loop(why)
        if life.state == "parked":
            self.sessions.remove(session)

    # -- the end of the server ----------------------------------------------------------------------------------------

    def drains(self, now_ns: int, grace_ns: int) -> None:
        """Refuse new sessions, and send the others away after the grace, one after the other."""
        if self.drain is None:
            count = max(1, sum(1 for _ in self.sessions))
            self.drain = Draining(now_ns + grace_ns, min(BETWEEN_NS, LEAVE_NS // count))

    def _send_away(self, now_ns: int, drain: Draining) -> None:
        """Let the next client connect to another server: after its next call, where it is live. Those without a call
        until all had their turn leave without."""
        drain.next_ns += drain.between_ns
        remaining = [s for s in self.sessions if s.life.why is None]
        staying = [s for s in remaining if not s.life.leaving][:1]
        for session in staying or remaining:
            if session.life.leaving or session.life.state != "live":
                self._stop(now_ns, session, LEAVING)
            session.life.leaving = True

    def close(self, now_ns: int) -> None:
        """End the server, and all sessions with it."""
        self.closing = True
        for session in self.sessions:
            self._stop(now_ns, session, STOPPED)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def wake_ns(self) -> int | None:
        """When something becomes due by itself; None: nothing does."""
        rules = self.rules
        times = [s.life.parked_ns + rules.grace_ns + 1 for s in self.sessions if s.life.state == "parked"]
        for peer in list(self.peers.values()):
            times.append(peer.in_ns + self._patience_ns(peer) + 1)
            if peer.live:
                times.append(peer.out_ns + rules.beat_ns)
        if self.draining and self.drain is not None:
            times.append(self.drain.next_ns)
        return min(times, default=None)

    def _patience_ns(self, peer: Peer) -> int:
        return self.rules.silent_beats * self.rules.beat_ns if peer.live else WITHOUT_SESSION_NS

    def woke(self, now_ns: int) -> None:
        """Look after heartbeats, dead connections, sessions whose client did not return, and those that are sent
        away."""
        for session in self.sessions.expired(now_ns):
            self.server.say(f"{session.id}: over (its client did not return)")
            self.sessions.remove(session)
        for peer in list(self.peers.values()):
            if now_ns - peer.in_ns > self._patience_ns(peer):
                self._drop(peer)
            elif peer.live and now_ns - peer.out_ns >= self.rules.beat_ns:
                peer.pings += 1
                self._send(now_ns, peer, Ping(id=peer.pings, t_ns=now_ns))
        if self.drain is not None and now_ns >= self.drain.next_ns:
            self._send_away(now_ns, self.drain)


def crowd_answer(word: str, why: str | None) -> str | None:
    """Return the answer to a person who says it to a crowd that ends for this reason; None: it is done."""
    if word in ("confirm", "deny"):
        return "No question is asked for a crowd: calls that wait for a yes are held back."
    return None if why is None else "It is stopped: a stop is final."


def stamped(error: WireError, message: Message | None) -> WireError:
    """Return the error with the hello or observation that it refuses."""
    if isinstance(message, Hello) and message.protocol[1] >= STAMPED:
        error.t_client_ns = message.t_client_ns
    elif isinstance(message, Observe):
        error.seq = message.seq
    return error


MESSAGES: dict[type, Callable[[SessionCore, int, Peer, Any], None]] = {
    **dict.fromkeys((Observe, Executed, Reset, Picture, *OF_CROWDS), SessionCore._to_world),
    Ping: SessionCore._ping,
    Pong: lambda core, now_ns, peer, message: None,  # it shows that the client is there
    ErrorMessage: SessionCore._client_error,
    Hello: SessionCore._hello,
    Instruct: SessionCore._instruct,
    ControlMessage: SessionCore._control,
    Bye: SessionCore._bye,
}
