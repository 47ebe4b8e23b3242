"""Decide about the clients' sessions: who is welcomed, resumed, parked, refused, stopped, and what is sent to them.

A state machine without thread, socket or clock: what happened is a method, which adds what is to be done to its `Turn`.
Read from top to bottom it is the life of a session: a connection, its hello, opening, the welcome, messages, people,
calls, a bye, the end. Not locked: the caller is. What comes in every tick (an observation, a call) touches one
connection and one session by single reads and writes alone, and needs no lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.serve import refusals
from rtcontrol.serve import sessions as do
from rtcontrol.serve.sessions import (
    BY_HAND,
    BYE,
    HELLOS_PER_S,
    LEAVING,
    LOST,
    STOPPED,
    Agreement,
    Connection,
    LoopStanding,
    Need,
    Peer,
    SessionFacts,
    SessionRules,
    Sessions,
    TokenBucket,
    Turn,
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

# Connections without a session; those that were silent the longest are forgotten.
MAX_STRANGERS = 1024
STRANGER_NS = 120_000_000_000
BETWEEN_NS, LEAVE_NS = 100_000_000, 2_000_000_000  # two sessions that end because the server drains; all of them, about
LINES_PER_S = 2.0  # refusals that are shown to people; all are counted
STAMPED = 1  # from this minor version on an error says which hello it refuses, and a bye is answered

OF_CROWDS = (Join, Leave, ObserveMany)


@dataclass(slots=True)
class Draining:
    """When the next client is sent to another server, and how long after it the one after that."""

    next_ns: int
    between_ns: int


class SessionCore:
    """All sessions of a server. `last`: the highest number of a session that there was; `new_token` gives secrets,
    `plain` an instruction as it is decided by (UserError: it is too long)."""

    def __init__(
        self,
        rules: SessionRules,
        last: int = 0,
        *,
        new_token: Callable[[], str],
        plain: Callable[[str], str] = str,
        now_ns: int = 0,
    ) -> None:
        self.rules, self.sessions = rules, Sessions(rules)
        self.peers: dict[Any, Peer] = {}  # by connection
        self.counts: Counter[str] = Counter()  # sessions, errors_from_clients
        self.refused: Counter[str] = Counter()  # by code
        self.closing = False
        self.drain: Draining | None = None  # new sessions are refused
        self._last, self._new_token, self._plain = last, new_token, plain
        self._lines = TokenBucket(LINES_PER_S, 20.0, now_ns)

    @property
    def draining(self) -> bool:
        """Whether sessions are still to be sent away."""
        return self.drain is not None and any(s.life.why is None for s in self.sessions)

    def busy(self, needs: Mapping[str, Need]) -> float:
        """Return the share of the decoder's time that the sessions need together, of these needs by their ids."""
        return sum(needs[s.id].busy for s in self.sessions if s.life.why is None and s.id in needs)

    def has_room(self, needs: Mapping[str, Need]) -> bool:
        """Return whether another session may open now."""
        states = self.sessions.states()
        free = states["opening"] + states["live"] < self.rules.limit and self.busy(needs) < self.rules.busy_max
        return free and not self.closing and self.drain is None

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

    # -- connections --------------------------------------------------------------------------------------------------

    def arrived(self, turn: Turn, connection: Connection) -> bool:
        """A message is not decoded yet. Return whether it may be."""
        peer = self._peer(turn, connection)
        if peer.gone or peer.messages.take(turn.now_ns):
            return not peer.gone
        self._refuse(turn, peer, refusals.rate(f"{self.rules.messages_per_s:g} messages a second", "Send fewer."))
        return False

    def received(self, turn: Turn, connection: Connection, message: Message) -> None:
        """Take a decoded message; what is wrong with it goes back as an error."""
        peer = self._peer(turn, connection)
        if peer.gone:
            return
        peer.in_ns = turn.now_ns
        take = MESSAGES.get(type(message))
        try:
            if take is None:
                raise refusals.state(f"{message.type} is for servers to send.", "Leave it to the server.")
            take(self, turn, peer, message)
        except WireError as error:
            self._refuse(turn, peer, named(error, message))

    def failed(self, turn: Turn, connection: Connection, message: Message | None, error: WireError) -> None:
        """A message could not be decoded (None), or the world did not take it."""
        peer = self._peer(turn, connection)
        if not peer.gone:
            self._refuse(turn, peer, named(error, message))

    def disconnected(self, turn: Turn, connection: Connection, revoked: bool = False) -> None:
        """The connection is gone, or its key `revoked`: then it has to go."""
        peer = self.peers.get(connection)
        if peer is not None and revoked:
            turn.append(do.NotifyPeople(f"{peer.connection.peer}: its key was revoked"))
            self._drop(turn, peer)
        elif peer is not None:
            self._lose(turn, peer)

    def _peer(self, turn: Turn, connection: Connection) -> Peer:
        """Return what is known of a connection, which may be new. One that was closed stays gone: a message of it that
        its transport had in hand does not make it known again."""
        known = self.peers.get(connection)
        if known is not None:
            return known
        peer = Peer.of(connection, self.rules.messages_per_s, self.rules.errors_per_s, turn.now_ns)
        if getattr(connection, "closed", False):
            peer.gone = True
            return peer
        strangers = [p for p in list(self.peers.values()) if p.session is None]
        if len(strangers) >= MAX_STRANGERS:
            self._drop(turn, min(strangers, key=lambda p: p.in_ns))
        self.peers[connection] = peer
        return peer

    def _drop(self, turn: Turn, peer: Peer) -> None:
        turn.append(do.DropConnection(peer.connection))
        self._lose(turn, peer)

    def _lose(self, turn: Turn, peer: Peer) -> None:
        """The connection is gone: its session is made safe, and parked."""
        self.peers.pop(peer.connection, None)
        peer.gone = True
        session, peer.session = peer.session, None
        if session is not None and session.peer is peer:
            session.peer = None
            if not self.rules.outlives:
                session.life.lost = True
                turn.append(do.StopLoop(session, LOST))

    def _refuse(self, turn: Turn, peer: Peer, error: WireError) -> None:
        """Count the refusal, and inform the client as far as the rate of errors allows. Once there is a session, it
        continues whatever is refused."""
        code = error.code.value
        self.refused[code] += 1
        if peer.session is not None:
            peer.session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable and self._lines.take(turn.now_ns):
            turn.append(do.NotifyPeople(f"{peer.connection.peer}: refused: {error.message[:200]}"))
        self._send_error(turn, peer, error)

    def _send_error(self, turn: Turn, peer: Peer, error: WireError, always: bool = False) -> None:
        message = peer.error(error, turn.now_ns, always)
        if message is not None:
            self._send(turn, peer, message)

    def _send(self, turn: Turn, peer: Peer, message: Message) -> None:
        peer.out_ns = turn.now_ns
        turn.append(do.SendMessage(peer.connection, message))

    # -- hello --------------------------------------------------------------------------------------------------------

    def _hello(self, turn: Turn, peer: Peer, hello: Hello) -> None:
        if not peer.hellos.take(turn.now_ns):
            raise refusals.rate(f"{HELLOS_PER_S:g} hellos a second", "Wait for the answer.")
        if self.closing:
            raise refusals.busy("The server is stopping.")
        if self.drain is not None and peer.session is None and hello.resume is None:
            raise refusals.busy("The server is draining.")
        if peer.session is not None:
            self._greet_again(turn, peer.session, hello)
        elif hello.resume is not None:
            self._resume(turn, peer, hello, hello.resume)
        else:
            self._enter(turn, peer, hello)

    def _greet_again(self, turn: Turn, session: SessionFacts, hello: Hello) -> None:
        """A hello on a connection that has a session: the welcome was lost, or the client is confused."""
        given = {"t_client_ns", "resume"}
        if hello.model_dump(exclude=given) != session.hello.model_dump(exclude=given) and hello.resume is None:
            raise refusals.state("This connection has a session.", "Say bye first, or open another connection.")
        if hello.resume is not None and not same(hello.resume, session.token):
            raise refusals.unknown_token("This connection has another session.", "Say bye first.", "resume")
        if session.life.state == "live":
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            turn.append(do.LookAtLoop(session))

    def _resume(self, turn: Turn, peer: Peer, hello: Hello, token: str) -> None:
        """The client is back, maybe on another connection before the first one was missed."""
        session = self.sessions.resumed(token, peer.connection.key)
        self.sessions.check_room(besides=session)
        if session.peer is not None:
            session.peer.session = None
        peer.join(session)
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": token})
        if session.life.state == "parked":
            self._start(turn, session)
        elif session.life.state == "live":
            turn.append(do.LookAtLoop(session))
        # Otherwise its loop just starts, or just ends: then `ended` starts it again.

    def _enter(self, turn: Turn, peer: Peer, hello: Hello) -> None:
        """A new session."""
        self.sessions.check_room()
        for other in self.sessions.claims(hello.robot):
            self._forget(turn, other)
        self._last += 1
        lines, key = TokenBucket(1.0, 5.0, turn.now_ns), peer.connection.key
        session = SessionFacts(f"session-{self._last:04d}", self._new_token(), hello, lines, key)
        session.crowd = hello.crowd is not None and not self.rules.outlives
        peer.join(session)
        self.sessions.add(session)
        self.counts["sessions"] += 1
        self._start(turn, session)

    # -- opening, and the welcome -------------------------------------------------------------------------------------

    def _start(self, turn: Turn, session: SessionFacts) -> None:
        session.life.state, session.life.lost = "opening", False
        turn.append(do.StartThread(session, session.terms is None))

    def opens(self, turn: Turn, session: SessionFacts, terms: Agreement) -> bool:
        """Its hello became these terms. Return whether it opens by them, with `instructions.began` (None: the terms')
        first; a client that waited for long may have gone meanwhile."""
        session.terms = terms
        if session.life.gone:
            return False
        session.life.runs += 1
        session.instructions.begin(terms.interprets)
        return True

    def attached(self, turn: Turn, session: SessionFacts) -> None:
        """Its loop is made, and will run."""
        life = session.life
        life.attached = True  # before the rest is looked at: who changes it meanwhile finds the loop
        if life.paused:
            turn.append(do.SayToLoop(session, "pause", "before", None))
        if (newer := session.instructions.overtaken()) is not None:
            turn.append(do.InstructLoop(session, newer))
        if life.why is not None or life.lost:
            turn.append(do.StopLoop(session, life.why or LOST))

    def warm(self, turn: Turn, session: SessionFacts, needs: Mapping[str, Need]) -> None:
        """Its loop waits for the first observation: it is live, unless calls of those that were welcomed before would
        be late. `needs`: of all sessions that have decided, by their ids. Raises WireError (busy)."""
        if not session.life.welcomed and session.id in needs:
            others = [s.id for s in self.sessions if s.life.welcomed and s.life.why is None]
            refusal = weigh(needs[session.id], [needs[i] for i in others if i in needs], self.rules.busy_max)
            if refusal is not None:
                raise refusal
        session.life.state, session.life.welcomed = "live", True
        peer, terms = session.peer, session.terms
        if peer is None or terms is None:
            return
        peer.in_ns = turn.now_ns  # until now the client had nothing to say
        resumed = ", resumed" if session.life.runs > 1 else ""
        turn.append(do.LookAtLoop(session))
        turn.append(do.NotifyPeople(f"{session.id}: {peer.connection.peer}, {terms.described()}{resumed}"))

    def looked(self, turn: Turn, session: SessionFacts, standing: LoopStanding) -> None:
        """Welcome the client to what is active in its loop, and tell it what people did."""
        peer, terms = session.peer, session.terms
        if peer is None or terms is None or session.life.state != "live" or session.life.why is not None:
            return
        resumed = session.life.runs > 1 or session.hello.resume is not None
        welcome = terms.welcome(session.token, standing, turn.now_ns, resumed, session.hello.t_client_ns)
        peer.greeted = True
        self._send(turn, peer, welcome)
        control = standing.control
        if control is not None and (control.state != "running" or control.call is not None):
            self._tell_control(turn, session, control)

    # -- messages of a client that is there ---------------------------------------------------------------------------

    def _to_world(self, turn: Turn, peer: Peer, message: Any) -> None:
        """A message of, or about, the client's world."""
        find = self.sessions.pictured if isinstance(message, Picture) else session_of
        session = find(peer, message.session)
        if session.crowd != isinstance(message, OF_CROWDS):
            raise refusals.of_crowds(session.crowd)
        if session.life.state != "live":
            raise refusals.state("The session is not open.", "Wait for the welcome.", retryable=True)
        turn.append(do.ForwardMessage(session, peer.connection, message))

    def _ping(self, turn: Turn, peer: Peer, message: Ping) -> None:
        now_ns = turn.now_ns
        self._send(turn, peer, Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns))

    def _client_error(self, turn: Turn, peer: Peer, message: ErrorMessage) -> None:
        self.counts["errors_from_clients"] += 1

    # -- instructions -------------------------------------------------------------------------------------------------

    def _instruct(self, turn: Turn, peer: Peer, message: Instruct) -> None:
        session = session_of(peer, message.session)
        with refusals.refused_as(Code.INSTRUCTION, "instruction"):
            text = self._plain(message.instruction)
        session.instructions.newest = text
        self._wish(turn, session, text)

    def instruct(self, turn: Turn, session: SessionFacts, text: str) -> None:
        """Take an instruction of a person at the server. Raises UserError where it is too long."""
        self._wish(turn, session, self._plain(text))

    def _wish(self, turn: Turn, session: SessionFacts, text: str) -> None:
        if session.life.attached:
            turn.append(do.InstructLoop(session, text))
        else:
            session.instructions.wanted = text

    def instructed(self, turn: Turn, session: SessionFacts, text: str, taken: bool) -> None:
        """The answer to `InstructLoop`: whether anything comes of it."""
        instructions, terms = session.instructions, session.terms
        if not taken or terms is None or not terms.interprets:
            instructions.wanted = text  # where it is not understood now, the next loop begins so
        elif instructions.wanted == text:
            instructions.wanted = None

    def gave_way(self, turn: Turn, session: SessionFacts, text: str, why: str, now: str) -> None:
        """The decider cannot take the instruction `text`: the one before (`now`) is active again."""
        instructions = session.instructions
        if instructions.wanted == text:
            instructions.wanted = now
        instructions.refusal = instructions.shown = why

    def understood(
        self, turn: Turn, session: SessionFacts, sentence: str, overtaken: bool, answer: Instruct | WireError
    ) -> None:
        """Tell the client what came of a sentence, but for its own that it has overtaken itself."""
        if session.life.state != "live":
            return  # its welcome will tell what is active
        if overtaken and sentence != session.instructions.newest:
            return
        if isinstance(answer, WireError):
            self._tell_error(turn, session, answer)
        else:
            self._tell(turn, session, answer)

    # -- people -------------------------------------------------------------------------------------------------------

    def _control(self, turn: Turn, peer: Peer, message: ControlMessage) -> None:
        session = session_of(peer, message.session)
        word = message.say
        if refusals.CONTROL not in session.hello.capabilities:
            raise refusals.state("hello did not announce control.", 'Give hello `capabilities: ["control"]`.')
        if word is None or (message.instruction is not None and word in ("confirm", "deny")):
            remedy = f"Say one of {', '.join(refusals.SAYINGS)}; confirm and deny are for calls alone."
            raise WireError(Code.INVALID, "control.say is missing, or is for an instruction.", remedy, field="say")
        answer = self.command(turn, session, word, "wire", message.id)
        if answer is None:
            turn.append(do.SayToLoop(session, word, "wire", message.id))
        else:
            self.note(turn, session, answer)

    def command(self, turn: Turn, session: SessionFacts, word: str, by: str, k: int | None = None) -> str | None:
        """Pause, resume, stop, confirm or deny (the call of tick `k`), also in a session that opens or waits for its
        client. A stop ends it for good. Return the answer; None: its loop gives it."""
        life = session.life
        if word not in refusals.SAYINGS:
            raise ValueError(f"{word!r} is none of {', '.join(refusals.SAYINGS)}")
        if session.crowd and (answer := crowd_answer(word, life.why)) is not None:
            return answer
        if word in ("pause", "resume", "stop"):
            life.paused = word != "resume"
        if word == "stop":
            life.why = life.why or BY_HAND
        if session.crowd:
            control = ControlMessage(session=session.token, state="paused" if life.paused else "running")
            if life.why == BY_HAND:
                control = control.model_copy(update={"state": "stopped"})
            self._tell_control(turn, session, control)
        if life.state == "parked" and life.why is not None:
            self._forget(turn, session)
        return None if life.attached else f"{word} ({by})"

    def _tell_control(self, turn: Turn, session: SessionFacts, control: ControlMessage) -> None:
        """Tell a client that wants to know what people did, or what waits for their yes."""
        if refusals.CONTROL in session.hello.capabilities:
            self._tell(turn, session, control)

    # -- what a loop has for its client -------------------------------------------------------------------------------

    def emitted(self, turn: Turn, session: SessionFacts, message: Message) -> None:
        """The loop has a message for the client."""
        if isinstance(message, ControlMessage):
            self._tell_control(turn, session, message)
            return
        peer = session.peer
        if peer is None or not peer.greeted:
            return
        self._send(turn, peer, message)
        if not isinstance(message, CallMessage):
            return
        instructions = session.instructions
        if instructions.refusal is not None:
            # After its tick's call: a client that waits for one must not take it for the refusal of the observation.
            what = f"The instruction was refused: {instructions.refusal}"
            remedy = "Say it in other or fewer words; the instruction before goes on."
            instructions.refusal, seq = None, message.seq_obs
            self._refuse(turn, peer, WireError(Code.INSTRUCTION, what, remedy, field="instruction", seq=seq))
        life = session.life
        if life.leaving and not message.more and life.why in (None, LEAVING):
            # Now the client acts by what is as new as can be.
            self._stop(turn, session, LEAVING)
            self._send(turn, peer, Bye(session=session.token, reason=LEAVING, reconnect=True))
            peer.session = None
            if session.peer is peer:  # the client may be back on another connection just now
                session.peer = None

    def wrong(self, turn: Turn, session: SessionFacts, error: WireError, what: str | None = None) -> None:
        """Inform the client of an error; `what`: why no decision was made of its observation `error.seq`. One
        observation may be looked at in many ticks: it is refused once."""
        instructions = session.instructions
        if what is not None:
            shown, instructions.shown = instructions.shown, None
            newest = error.seq, what
            if session.peer is None or what == shown or newest == instructions.error:
                return
            instructions.error = newest
        self._tell_error(turn, session, error)

    def note(self, turn: Turn, session: SessionFacts, line: str, always: bool = False) -> None:
        """Show people a line of the session, as far as the rate allows: what a client does wrong in every tick must not
        fill the log."""
        if session.lines.take(turn.now_ns) or always:
            turn.append(do.NotifyPeople(f"{session.id}: {line}"))

    def _tell(self, turn: Turn, session: SessionFacts, message: Message) -> None:
        if session.peer is not None and session.peer.greeted:
            self._send(turn, session.peer, message)

    def _tell_error(self, turn: Turn, session: SessionFacts, error: WireError) -> None:
        if session.peer is not None and session.peer.greeted:
            self._refuse(turn, session.peer, error)

    # -- bye, draining, and the end -----------------------------------------------------------------------------------

    def _bye(self, turn: Turn, peer: Peer, message: Bye) -> None:
        """The session ends at once, so that the next hello on this connection finds it free."""
        session = self.sessions.left(peer, message.session)
        if session is None:
            return
        peer.session = session.peer = None
        parked = session.life.state == "parked"
        self._stop(turn, session, BYE)
        if parked:
            turn.append(do.NotifyPeople(f"{session.id}: over ({BYE})"))
        if session.hello.protocol[1] >= STAMPED:
            self._send(turn, peer, Bye(session=session.token, reason=BYE))

    def _stop(self, turn: Turn, session: SessionFacts, why: str) -> None:
        """End it soon, with the safe call: it cannot be resumed."""
        life = session.life
        life.why, life.lost = life.why or why, True
        turn.append(do.StopLoop(session, why))
        if life.state == "parked":
            self._forget(turn, session)

    def _forget(self, turn: Turn, session: SessionFacts) -> None:
        self.sessions.remove(session)
        turn.append(do.ForgetSession(session))

    def unfit(self, turn: Turn, session: SessionFacts, what: str, remedy: str) -> WireError:
        """The decider cannot take the instruction that the run started with. Return what ends the run; a session that
        was live comes back to the instruction before."""
        again = session.life.welcomed and session.instructions.give_way()
        return WireError(Code.INSTRUCTION, what, remedy, field="instruction", retryable=again, fatal=not again)

    def ran(self, turn: Turn, session: SessionFacts, proven: str, newest: str) -> None:
        """Its loop is over; `proven`: the last instruction that something was decided by, `newest`: the last of all."""
        session.instructions.ran(proven, newest, session.terms is not None and session.terms.interprets)

    def ended(self, turn: Turn, session: SessionFacts, error: WireError | None = None, why: str | None = None) -> None:
        """Its thread is done, for good where there is a `why`: start it again, park it, or let it go."""
        life = session.life
        life.attached, life.why = False, life.why or why
        passing = error is None or (error.retryable and not error.fatal)
        kept = passing and life.why is None and life.welcomed and not (self.closing or self.rules.outlives)
        if kept and error is None and session.peer is not None:
            life.parked_ns = turn.now_ns
            self._start(turn, session)
            return
        peer, session.peer = session.peer, None
        if peer is not None:
            peer.session = None
        if kept:
            self._park(turn, session, error)
        else:
            self._forget(turn, session)
        if life.why == BY_HAND and peer is not None:
            # After a bye alone, some clients greet again by themselves.
            self._send_error(turn, peer, refusals.stopped(), always=True)
        if error is not None:
            session.refused[error.code.value] += 1
            if peer is not None:
                self._refuse(turn, peer, named(error, session.hello))
        elif not kept:
            self._part(turn, session, peer)

    def _park(self, turn: Turn, session: SessionFacts, error: WireError | None) -> None:
        session.life.state, session.life.parked_ns = "parked", turn.now_ns
        if (first := self.sessions.beyond()) is not None:
            self._forget(turn, first)
        why = LOST if error is None else error.message[:200]
        turn.append(do.NotifyPeople(f"{session.id}: {why}; kept for {self.rules.grace_ns / 1e9:g} s"))

    def _part(self, turn: Turn, session: SessionFacts, peer: Peer | None) -> None:
        why = session.life.why or LOST
        if peer is not None and why != BYE:
            away = why == LEAVING or None
            self._send(turn, peer, Bye(session=session.token, reason=why, reconnect=away))
        if session.life.welcomed and not self.rules.outlives:
            turn.append(do.NotifyPeople(f"{session.id}: over ({why})"))

    def drains(self, turn: Turn, grace_ns: int) -> None:
        """Refuse new sessions, and send the others away after the grace, one after the other."""
        if self.drain is None:
            count = max(1, sum(1 for _ in self.sessions))
            self.drain = Draining(turn.now_ns + grace_ns, min(BETWEEN_NS, LEAVE_NS // count))

    def _send_away(self, turn: Turn, drain: Draining) -> None:
        """The next client is to connect to another server: after its next call, where it is live. Those without a call
        until all had their turn leave without."""
        drain.next_ns += drain.between_ns
        staying = next((s for s in self.sessions if s.life.why is None and not s.life.leaving), None)
        for session in [s for s in self.sessions if s.life.why is None] if staying is None else [staying]:
            if session.life.leaving or session.life.state != "live":
                self._stop(turn, session, LEAVING)
            session.life.leaving = True

    def close(self, turn: Turn) -> None:
        """The server ends, and all sessions with it."""
        self.closing = True
        for session in self.sessions:
            self._stop(turn, session, STOPPED)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _patience_ns(self, peer: Peer) -> int:
        return self.rules.silent_beats * self.rules.beat_ns if peer.live else STRANGER_NS

    def woke(self, turn: Turn) -> None:
        """Look after heartbeats, dead connections, sessions no client came back to, and those that are sent away."""
        now_ns = turn.now_ns
        for session in self.sessions.expired(now_ns):
            turn.append(do.NotifyPeople(f"{session.id}: over (nobody came back)"))
            self._forget(turn, session)
        for peer in list(self.peers.values()):
            if now_ns - peer.in_ns > self._patience_ns(peer):
                self._drop(turn, peer)
            elif peer.live and now_ns - peer.out_ns >= self.rules.beat_ns:
                peer.pings += 1
                self._send(turn, peer, Ping(id=peer.pings, t_ns=now_ns))
        if self.drain is not None and now_ns >= self.drain.next_ns:
            self._send_away(turn, self.drain)


def crowd_answer(word: str, why: str | None) -> str | None:
    """Return what is answered to people who say it to a crowd that ends for this reason; None: it is done."""
    if word in ("confirm", "deny"):
        return "Nobody is asked for a crowd: calls that wait for a yes are held back."
    return None if why is None else "It is stopped: a stop is final."


def named(error: WireError, message: Message | None) -> WireError:
    """Return the error with which hello or observation it refuses."""
    if isinstance(message, Hello) and message.protocol[1] >= STAMPED:
        error.t_client_ns = message.t_client_ns
    elif isinstance(message, Observe):
        error.seq = message.seq
    return error


MESSAGES: dict[type, Callable[[SessionCore, Turn, Peer, Any], None]] = {
    **dict.fromkeys((Observe, Executed, Reset, Picture, *OF_CROWDS), SessionCore._to_world),
    Ping: SessionCore._ping,
    Pong: lambda core, turn, peer, message: None,  # it shows that the client is there
    ErrorMessage: SessionCore._client_error,
    Hello: SessionCore._hello,
    Instruct: SessionCore._instruct,
    ControlMessage: SessionCore._control,
    Bye: SessionCore._bye,
}
