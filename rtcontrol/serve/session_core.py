"""Decide about the clients' sessions: who is welcomed, resumed, parked, refused, stopped, and what is sent to them.

A state machine without thread, socket or clock: events and the time in, actions out. Read from top to bottom it is the
life of a session: a connection, its hello, opening, the welcome, messages, people, calls, a bye, the end. Not locked:
the caller is. What comes in every tick (an observation, a call) touches one connection and one session by single reads
and writes alone, and needs no lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    Need,
    Peer,
    SessionFacts,
    SessionRules,
    Sessions,
    TokenBucket,
    same,
    session_of,
    weigh,
)
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.crowd import Join, Leave, ObserveMany
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ControlMessage,
    ErrorMessage,
    Executed,
    Hello,
    Instruct,
    Observe,
    Picture,
    Ping,
    Pong,
    Reset,
)

# Without a session; those that were silent the longest are forgotten.
MAX_STRANGERS = 1024
STRANGER_NS = 120_000_000_000
BETWEEN_NS, LEAVE_NS = 100_000_000, 2_000_000_000  # two sessions that end because the server drains; all of them, about
LINES_PER_S = 2.0  # refusals that are shown to people; the others are counted
STAMPED = 1  # from this minor version on an error says which hello it refuses, and a bye is answered

OF_CROWDS = (Join, Leave, ObserveMany)

Out = list[ev.Action]


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
        self._lines, self._hidden = TokenBucket(LINES_PER_S, 20.0, now_ns), 0

    def advance(self, event: ev.Event, now_ns: int) -> Out:
        """Take an event. Returns what is to be done, in order."""
        out: Out = []
        HANDLERS[type(event)](self, event, now_ns, out)
        return out

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

    def peer(self, connection: Any, now_ns: int, out: Out) -> Peer:
        """Return what is known of a connection, which may be new. One that was closed stays gone: a message of it that
        its transport had in hand does not make it known again."""
        known = self.peers.get(connection)
        if known is not None:
            return known
        made = Peer.of(connection, self.rules.messages_per_s, self.rules.errors_per_s, now_ns)
        if getattr(connection, "closed", False):
            made.gone = True
            return made
        strangers = [p for p in list(self.peers.values()) if p.session is None]
        if len(strangers) >= MAX_STRANGERS:
            self._drop(min(strangers, key=lambda p: p.in_ns), out)
        self.peers[connection] = made
        return made

    def _arrived(self, event: ev.MessageArrived, now_ns: int, out: Out) -> None:
        peer = self.peer(event.connection, now_ns, out)
        if not peer.gone and peer.messages.take(now_ns):
            return
        out.append(ev.IgnoreMessage())
        if not peer.gone:
            error = refusals.rate(f"{self.rules.messages_per_s:g} messages a second", "Send fewer.")
            self._refuse(peer, error, now_ns, out)

    def _received(self, event: ev.MessageReceived, now_ns: int, out: Out) -> None:
        peer, message = self.peer(event.connection, now_ns, out), event.message
        if peer.gone:
            return
        peer.in_ns = now_ns
        take = MESSAGES.get(type(message))
        try:
            if take is None:
                raise refusals.state(f"{message.type} is for servers to send.", "Leave it to the server.")
            take(self, peer, message, now_ns, out)
        except WireError as error:
            self._refuse(peer, named(error, message), now_ns, out)

    def _failed(self, event: ev.MessageFailed, now_ns: int, out: Out) -> None:
        peer = self.peer(event.connection, now_ns, out)
        if not peer.gone:
            self._refuse(peer, named(event.error, event.message), now_ns, out)

    def _disconnected(self, event: ev.Disconnected, now_ns: int, out: Out) -> None:
        peer = self.peers.get(event.connection)
        if peer is not None and event.revoked:
            out.append(ev.NotifyPeople(f"{peer.connection.peer}: its key was revoked"))
            self._drop(peer, out)
        elif peer is not None:
            self._lose(peer, out)

    def _drop(self, peer: Peer, out: Out) -> None:
        out.append(ev.DropConnection(peer.connection))
        self._lose(peer, out)

    def _lose(self, peer: Peer, out: Out) -> None:
        """The connection is gone: its session is made safe, and parked."""
        self.peers.pop(peer.connection, None)
        peer.gone = True
        session, peer.session = peer.session, None
        if session is not None and session.peer is peer:
            session.peer = None
            if not self.rules.outlives:
                session.life.lost = True
                out.append(ev.StopLoop(session, LOST))

    def _refuse(self, peer: Peer, error: WireError, now_ns: int, out: Out) -> None:
        """Count the refusal, and inform the client as far as the rate of errors allows. Once there is a session, it
        continues whatever is refused."""
        code = error.code.value
        self.refused[code] += 1
        if peer.session is not None:
            peer.session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable:
            self._show(f"{peer.connection.peer}: refused: {error.message[:200]}", now_ns, out)
        self._send_error(peer, error, now_ns, out)

    def _send_error(self, peer: Peer, error: WireError, now_ns: int, out: Out, always: bool = False) -> None:
        message = peer.error(error, now_ns, always)
        if message is not None:
            self._send(peer, message, now_ns, out)

    def _show(self, line: str, now_ns: int, out: Out) -> None:
        if not self._lines.take(now_ns):
            self._hidden += 1
            return
        more = f" ({self._hidden} more refusals were not shown)" if self._hidden else ""
        self._hidden = 0
        out.append(ev.NotifyPeople(line + more))

    def _send(self, peer: Peer, message: Message, now_ns: int, out: Out) -> None:
        peer.out_ns = now_ns
        out.append(ev.SendMessage(peer.connection, message))

    # -- hello --------------------------------------------------------------------------------------------------------

    def _hello(self, peer: Peer, hello: Hello, now_ns: int, out: Out) -> None:
        if not peer.hellos.take(now_ns):
            raise refusals.rate(f"{HELLOS_PER_S:g} hellos a second", "Wait for the answer.")
        if self.closing:
            raise refusals.busy("The server is stopping.")
        if self.drain is not None and peer.session is None and hello.resume is None:
            raise refusals.busy("The server is draining.")
        if peer.session is not None:
            self._again(peer.session, hello, out)
        elif hello.resume is not None:
            self._resume(peer, hello, hello.resume, out)
        elif (session := self.sessions.vacant(hello, peer.connection.key)) is not None:
            self._succeed(session, peer, hello, now_ns, out)
        else:
            self._enter(peer, hello, now_ns, out)

    def _again(self, session: SessionFacts, hello: Hello, out: Out) -> None:
        """A hello on a connection that has a session: the welcome was lost, or the client is confused."""
        given = {"t_client_ns", "resume"}
        if hello.model_dump(exclude=given) != session.hello.model_dump(exclude=given) and hello.resume is None:
            raise refusals.state("This connection has a session.", "Say bye first, or open another connection.")
        if hello.resume is not None and not same(hello.resume, session.token):
            raise refusals.unknown_token("This connection has another session.", "Say bye first.", "resume")
        if session.life.state == "live":
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            out.append(ev.LookAtLoop(session))

    def _resume(self, peer: Peer, hello: Hello, token: str, out: Out) -> None:
        """The client is back, maybe on another connection before the first one was missed."""
        session = self.sessions.resumed(token, peer.connection.key)
        self.sessions.check_room(besides=session)
        if session.peer is not None:
            session.peer.session = None
        peer.join(session)
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": token})
        if session.life.state == "parked":
            self._start(session, peer, out)
        elif session.life.state == "live":
            out.append(ev.LookAtLoop(session))
        # Otherwise its loop just starts, or just ends: then `_ended` starts it again.

    def _succeed(self, session: SessionFacts, peer: Peer, hello: Hello, now_ns: int, out: Out) -> None:
        """Another client takes the place of the one that is gone: for it the session is a new one."""
        peer.join(session)
        session.hello = hello
        out.append(ev.SucceedClient(session))
        if session.life.state == "live":
            peer.in_ns = now_ns
            out.append(ev.LookAtLoop(session))

    def _enter(self, peer: Peer, hello: Hello, now_ns: int, out: Out) -> None:
        """A new session."""
        self.sessions.check_room()
        for other in self.sessions.claims(hello.robot):
            self._forget(other, out)
        self._last += 1
        lines, key = TokenBucket(1.0, 5.0, now_ns), peer.connection.key
        session = SessionFacts(f"session-{self._last:04d}", self._new_token(), hello, lines, key)
        session.crowd = hello.crowd is not None and not self.rules.outlives
        peer.join(session)
        self.sessions.add(session)
        self.counts["sessions"] += 1
        self._start(session, peer, out)

    # -- opening, and the welcome -------------------------------------------------------------------------------------

    def _start(self, session: SessionFacts, peer: Peer | None, out: Out) -> None:
        session.life.state, session.life.lost = "opening", False
        out.append(ev.StartThread(session, peer, session.terms is None))

    def _no_thread(self, event: ev.NoThread, now_ns: int, out: Out) -> None:
        """A new session is none; one that there was waits on, and its client asks again."""
        session, peer = event.session, event.session.peer
        if peer is not None:
            peer.session = session.peer = None
        if session.life.welcomed:
            session.life.state = "parked"
        else:
            self.counts["sessions"] -= 1
            self._forget(session, out)
        if event.peer is not None:
            error = refusals.busy("The server cannot start another thread.")
            self._refuse(event.peer, named(error, session.hello), now_ns, out)

    def _turn(self, event: ev.TurnCame, now_ns: int, out: Out) -> None:
        """Agree upon terms, and open by them. A client that waited here for long may have gone meanwhile."""
        session = event.session
        session.terms = terms = event.terms or session.terms
        if session.life.gone:
            return
        if terms is None:
            out.append(ev.NegotiateTerms(session))
            return
        session.life.runs += 1
        out.append(ev.OpenHost(session, session.instructions.begin(terms.interprets)))

    def _attached(self, event: ev.LoopAttached, now_ns: int, out: Out) -> None:
        session, life = event.session, event.session.life
        life.attached = True  # before the rest is looked at: who changes it meanwhile finds the loop
        if life.paused:
            out.append(ev.SayToLoop(session, "pause", "before", None))
        if (newer := session.instructions.overtaken()) is not None:
            out.append(ev.InstructLoop(session, newer))
        if life.why is not None or life.lost:
            out.append(ev.StopLoop(session, life.why or LOST))

    def _warm(self, event: ev.LoopWarm, now_ns: int, out: Out) -> None:
        """It is live from now on, unless calls of those that were welcomed before would be late: of several that are
        warm at once, one after the other is let in."""
        session, needs = event.session, event.needs
        if not session.life.welcomed and session.id in needs:
            others = [s.id for s in self.sessions if s.life.welcomed and s.life.why is None]
            refusal = weigh(needs[session.id], [needs[i] for i in others if i in needs], self.rules.busy_max)
            if refusal is not None:
                out.append(ev.RefuseLoop(refusal))
                return
        session.life.state, session.life.welcomed = "live", True
        peer, terms = session.peer, session.terms
        if peer is None or terms is None:
            return
        peer.in_ns = now_ns  # until now the client had nothing to say
        resumed = ", resumed" if session.life.runs > 1 else ""
        out.append(ev.LookAtLoop(session))
        out.append(ev.NotifyPeople(f"{session.id}: {peer.connection.peer}, {terms.described()}{resumed}"))

    def _seen(self, event: ev.LoopSeen, now_ns: int, out: Out) -> None:
        """Welcome the client, and tell it what people did."""
        session, standing = event.session, event.standing
        peer, terms = session.peer, session.terms
        if peer is None or terms is None or session.life.state != "live" or session.life.why is not None:
            return
        resumed = session.life.runs > 1 or session.hello.resume is not None
        welcome = terms.welcome(session.token, standing, now_ns, resumed, session.hello.t_client_ns)
        peer.greeted = True
        self._send(peer, welcome, now_ns, out)
        control = standing.control
        if control is not None and (control.state != "running" or control.call is not None):
            self._tell_control(session, control, now_ns, out)

    # -- messages of a client that is there ---------------------------------------------------------------------------

    def _to_world(self, peer: Peer, message: Any, now_ns: int, out: Out) -> None:
        """A message of, or about, the client's world."""
        find = self.sessions.pictured if isinstance(message, Picture) else session_of
        session = find(peer, message.session)
        if session.crowd != isinstance(message, OF_CROWDS):
            raise refusals.of_crowds(session.crowd)
        if session.life.state != "live":
            raise refusals.not_open()
        out.append(ev.ForwardMessage(session, peer.connection, message))

    def _ping(self, peer: Peer, message: Ping, now_ns: int, out: Out) -> None:
        pong = Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now_ns)
        self._send(peer, pong, now_ns, out)

    def _client_error(self, peer: Peer, message: ErrorMessage, now_ns: int, out: Out) -> None:
        self.counts["errors_from_clients"] += 1

    def _pong(self, peer: Peer, message: Pong, now_ns: int, out: Out) -> None:
        """It shows that the client is there; nothing else comes of it."""

    # -- instructions -------------------------------------------------------------------------------------------------

    def _instruct(self, peer: Peer, message: Instruct, now_ns: int, out: Out) -> None:
        session = session_of(peer, message.session)
        with refusals.refused_as(Code.INSTRUCTION, "instruction"):
            text = self._plain(message.instruction)
        session.instructions.newest = text
        self._wish(session, text, out)

    def _told(self, event: ev.InstructionGiven, now_ns: int, out: Out) -> None:
        self._wish(event.session, self._plain(event.text), out)

    def _wish(self, session: SessionFacts, text: str, out: Out) -> None:
        if session.life.attached:
            out.append(ev.InstructLoop(session, text))
        else:
            session.instructions.wanted = text

    def _heard(self, event: ev.InstructionHeard, now_ns: int, out: Out) -> None:
        told, terms = event.session.instructions, event.session.terms
        if not event.heard or terms is None or not terms.interprets:
            told.wanted = event.text  # where nobody understands it now, the next loop begins so
        elif told.wanted == event.text:
            told.wanted = None

    def _gave_way(self, event: ev.InstructionRefused, now_ns: int, out: Out) -> None:
        told = event.session.instructions
        if told.wanted == event.text:
            told.wanted = event.now
        told.refusal = told.shown = event.why

    def _understood(self, event: ev.SentenceUnderstood, now_ns: int, out: Out) -> None:
        """Tell the client what came of a sentence, but for its own that it has overtaken itself."""
        session, answer = event.session, event.answer
        if session.life.state != "live":
            return  # its welcome will tell what is in force
        if event.overtaken and event.sentence != session.instructions.newest:
            return
        if isinstance(answer, WireError):
            self._tell_error(session, answer, now_ns, out)
        else:
            self._tell(session, answer, now_ns, out)

    # -- people -------------------------------------------------------------------------------------------------------

    def _control(self, peer: Peer, message: ControlMessage, now_ns: int, out: Out) -> None:
        session = session_of(peer, message.session)
        word = refusals.saying_of(message, session.hello.capabilities)
        self._said(ev.OperatorRequest(session, word, "wire", message.id), now_ns, out)

    def _said(self, event: ev.OperatorRequest, now_ns: int, out: Out) -> None:
        """In force also in a session that opens or waits for its client. A stop ends it for good."""
        session, word, life = event.session, event.word, event.session.life
        if word not in refusals.SAYINGS:
            raise ValueError(f"{word!r} is none of {', '.join(refusals.SAYINGS)}")
        if session.crowd and (answer := crowd_answer(word, life.why)) is not None:
            out.append(ev.AnswerPerson(session, answer))
            return
        if word in ("pause", "resume", "stop"):
            life.paused = word != "resume"
        if word == "stop":
            life.why = life.why or BY_HAND
        if life.attached:
            out.append(ev.SayToLoop(session, word, event.by, event.k))
        else:
            out.append(ev.AnswerPerson(session, f"{word} ({event.by})"))
        if session.crowd:
            told = ControlMessage(session=session.token, state="paused" if life.paused else "running")
            told = told.model_copy(update={"state": "stopped"}) if life.why == BY_HAND else told
            self._tell_control(session, told, now_ns, out)
        if life.state == "parked" and life.why is not None:
            self._forget(session, out)

    def _tell_control(self, session: SessionFacts, control: ControlMessage, now_ns: int, out: Out) -> None:
        """Tell a client that wants to know what people did, or what waits for their yes."""
        if refusals.CONTROL in session.hello.capabilities:
            self._tell(session, control, now_ns, out)

    # -- what a loop has for its client -------------------------------------------------------------------------------

    def _emitted(self, event: ev.LoopEmitted, now_ns: int, out: Out) -> None:
        session, message = event.session, event.message
        if isinstance(message, ControlMessage):
            self._tell_control(session, message, now_ns, out)
            return
        peer = session.peer
        if peer is None or not peer.greeted:
            return
        self._send(peer, message, now_ns, out)
        told = session.instructions
        if told.refusal is not None and isinstance(message, CallMessage):
            # After its tick's call: a client that waits for one must not take it for the refusal of the observation.
            error, told.refusal = refusals.refused_instruction(told.refusal, message.seq_obs), None
            self._refuse(peer, error, now_ns, out)
        life = session.life
        if life.leaving and isinstance(message, CallMessage) and not message.more and life.why in (None, LEAVING):
            # Now the client acts by what is as new as can be.
            self._stop(session, LEAVING, out)
            self._send(peer, Bye(session=session.token, reason=LEAVING, reconnect=True), now_ns, out)
            peer.session = None
            if session.peer is peer:  # the client may be back on another connection just now
                session.peer = None

    def _wrong(self, event: ev.ErrorReported, now_ns: int, out: Out) -> None:
        """One observation may be looked at in many ticks: it is refused once."""
        told = event.session.instructions
        if event.what is not None:
            shown, told.shown = told.shown, None
            error = event.error.seq, event.what
            if event.session.peer is None or event.what == shown or error == told.error:
                return
            told.error = error
        self._tell_error(event.session, event.error, now_ns, out)

    def _noted(self, event: ev.LineNoted, now_ns: int, out: Out) -> None:
        """What a client does wrong in every tick must not fill the log."""
        if event.session.lines.take(now_ns) or event.always:
            out.append(ev.NotifyPeople(f"{event.session.id}: {event.line}"))

    def _tell(self, session: SessionFacts, message: Message, now_ns: int, out: Out) -> None:
        if session.peer is not None and session.peer.greeted:
            self._send(session.peer, message, now_ns, out)

    def _tell_error(self, session: SessionFacts, error: WireError, now_ns: int, out: Out) -> None:
        if session.peer is not None and session.peer.greeted:
            self._refuse(session.peer, error, now_ns, out)

    # -- bye, draining, and the end -----------------------------------------------------------------------------------

    def _bye(self, peer: Peer, message: Bye, now_ns: int, out: Out) -> None:
        """The session ends at once, so that the next hello on this connection finds it free."""
        session = self.sessions.left(peer, message.session)
        if session is None:
            return
        peer.session = session.peer = None
        parked = session.life.state == "parked"
        self._stop(session, BYE, out)
        if parked:
            out.append(ev.NotifyPeople(f"{session.id}: over ({BYE})"))
        if session.hello.protocol[1] >= STAMPED:
            self._send(peer, Bye(session=session.token, reason=BYE), now_ns, out)

    def _stop(self, session: SessionFacts, why: str, out: Out) -> None:
        """End it soon, with the safe call: it cannot be resumed."""
        life = session.life
        life.why, life.lost = life.why or why, True
        out.append(ev.StopLoop(session, why))
        if life.state == "parked":
            self._forget(session, out)

    def _forget(self, session: SessionFacts, out: Out) -> None:
        self.sessions.remove(session)
        out.append(ev.ForgetSession(session))

    def _unfit(self, event: ev.LoopUnfit, now_ns: int, out: Out) -> None:
        """One that was wanted while the client was going: the session comes back to the one before."""
        session = event.session
        again = session.life.welcomed and session.instructions.give_way()
        out.append(ev.RefuseLoop(refusals.lost_instruction(event.what, event.remedy, again)))

    def _ran(self, event: ev.LoopRan, now_ns: int, out: Out) -> None:
        terms = event.session.terms
        event.session.instructions.ran(event.proven, event.newest, terms is not None and terms.interprets)

    def _ended(self, event: ev.SessionEnded, now_ns: int, out: Out) -> None:
        """Its thread is done: start it again, park it, or let it go."""
        session, life, error = event.session, event.session.life, event.error
        life.attached, life.why = False, life.why or event.why
        passing = error is None or (error.retryable and not error.fatal)
        kept = passing and life.why is None and life.welcomed and not (self.closing or self.rules.outlives)
        if kept and error is None and session.peer is not None:
            life.parked_ns = now_ns
            self._start(session, None, out)
            return
        peer, session.peer = session.peer, None
        if peer is not None:
            peer.session = None
        if kept:
            self._park(session, error, now_ns, out)
        else:
            self._forget(session, out)
        if life.why == BY_HAND and peer is not None:
            # After a bye alone, some clients greet again by themselves.
            self._send_error(peer, refusals.stopped(), now_ns, out, always=True)
        if error is not None:
            session.refused[error.code.value] += 1
            if peer is not None:
                self._refuse(peer, named(error, session.hello), now_ns, out)
        elif not kept:
            self._part(session, peer, now_ns, out)

    def _park(self, session: SessionFacts, error: WireError | None, now_ns: int, out: Out) -> None:
        session.life.state, session.life.parked_ns = "parked", now_ns
        if (first := self.sessions.beyond()) is not None:
            self._forget(first, out)
        why = LOST if error is None else error.message[:200]
        out.append(ev.NotifyPeople(f"{session.id}: {why}; kept for {self.rules.grace_ns / 1e9:g} s"))

    def _part(self, session: SessionFacts, peer: Peer | None, now_ns: int, out: Out) -> None:
        why = session.life.why or LOST
        if peer is not None and why != BYE:
            away = why == LEAVING or None
            self._send(peer, Bye(session=session.token, reason=why, reconnect=away), now_ns, out)
        if session.life.welcomed and not self.rules.outlives:
            out.append(ev.NotifyPeople(f"{session.id}: over ({why})"))

    def _drains(self, event: ev.Drain, now_ns: int, out: Out) -> None:
        if self.drain is None:
            count = max(1, sum(1 for _ in self.sessions))
            self.drain = Draining(now_ns + event.grace_ns, min(BETWEEN_NS, LEAVE_NS // count))

    def _send_away(self, drain: Draining, out: Out) -> None:
        """The next client is to connect to another server: after its next call, where it is live. Those without a call
        until all had their turn leave without."""
        drain.next_ns += drain.between_ns
        staying = next((s for s in self.sessions if s.life.why is None and not s.life.leaving), None)
        for session in [s for s in self.sessions if s.life.why is None] if staying is None else [staying]:
            if session.life.leaving or session.life.state != "live":
                self._stop(session, LEAVING, out)
            session.life.leaving = True

    def _close(self, event: ev.Close, now_ns: int, out: Out) -> None:
        self.closing = True
        for session in self.sessions:
            self._stop(session, STOPPED, out)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _patience_ns(self, peer: Peer) -> int:
        return self.rules.silent_beats * self.rules.beat_ns if peer.live else STRANGER_NS

    def _woke(self, event: ev.TimePassed, now_ns: int, out: Out) -> None:
        """Heartbeats, dead connections, sessions no client came back to, and those that are sent away."""
        for session in self.sessions.expired(now_ns):
            out.append(ev.NotifyPeople(f"{session.id}: over (nobody came back)"))
            self._forget(session, out)
        for peer in list(self.peers.values()):
            if now_ns - peer.in_ns > self._patience_ns(peer):
                self._drop(peer, out)
            elif peer.live and now_ns - peer.out_ns >= self.rules.beat_ns:
                peer.pings += 1
                self._send(peer, Ping(id=peer.pings, t_ns=now_ns), now_ns, out)
        if self.drain is not None and now_ns >= self.drain.next_ns:
            self._send_away(self.drain, out)


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


HANDLERS: dict[type, Callable[[SessionCore, Any, int, Out], None]] = {
    ev.MessageArrived: SessionCore._arrived,
    ev.MessageReceived: SessionCore._received,
    ev.MessageFailed: SessionCore._failed,
    ev.Disconnected: SessionCore._disconnected,
    ev.TimePassed: SessionCore._woke,
    ev.Drain: SessionCore._drains,
    ev.Close: SessionCore._close,
    ev.OperatorRequest: SessionCore._said,
    ev.InstructionGiven: SessionCore._told,
    ev.NoThread: SessionCore._no_thread,
    ev.TurnCame: SessionCore._turn,
    ev.LoopAttached: SessionCore._attached,
    ev.LoopWarm: SessionCore._warm,
    ev.LoopUnfit: SessionCore._unfit,
    ev.LoopRan: SessionCore._ran,
    ev.SessionEnded: SessionCore._ended,
    ev.LoopEmitted: SessionCore._emitted,
    ev.ErrorReported: SessionCore._wrong,
    ev.InstructionRefused: SessionCore._gave_way,
    ev.SentenceUnderstood: SessionCore._understood,
    ev.LineNoted: SessionCore._noted,
    ev.InstructionHeard: SessionCore._heard,
    ev.LoopSeen: SessionCore._seen,
}
MESSAGES: dict[type, Callable[[SessionCore, Peer, Any, int, Out], None]] = {
    **dict.fromkeys((Observe, Executed, Reset, Picture, *OF_CROWDS), SessionCore._to_world),
    Ping: SessionCore._ping,
    Pong: SessionCore._pong,
    ErrorMessage: SessionCore._client_error,
    Hello: SessionCore._hello,
    Instruct: SessionCore._instruct,
    ControlMessage: SessionCore._control,
    Bye: SessionCore._bye,
}
