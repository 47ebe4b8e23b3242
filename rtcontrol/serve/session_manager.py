"""All sessions of a server: where transports hand in their messages, and what people and monitors see. Does what the
sessions' core says, under one lock, and decides nothing."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Concatenate

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import refusals
from rtcontrol.serve import sessions as do
from rtcontrol.serve.crowd.session import CrowdSession
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.runs import ServerStats, Totals
from rtcontrol.serve.session import P, SessionThread, T
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import Connection, Need, SessionFacts, Turn
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Bye, ControlMessage, Hello, Picture

log = logging.getLogger("rtcontrol.serve")
OPENING_AT_ONCE = 2  # sessions whose schemas are compiled and decoders opened
# What is about more than one connection and its session is taken under the lock.
LOCKED = frozenset({Hello, Bye, ControlMessage, Picture})


class SessionManager:
    """The threads of all sessions. Its methods are quick, never block and may be called from any transport's thread.

    A transport calls, for each message: `admit` (before it decodes it; False: drop it), then `receive`, or `refuse`
    with the decoder's WireError; and `disconnected` when the connection is gone. `kind`: of the sessions that are no
    crowd; `outlives`: they continue while their client is away.
    """

    def __init__(
        self,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        say: Callable[[str], None] = lambda line: None,
        kind: Callable[[SessionFacts, SessionManager], SessionThread] = LoopSession,
        outlives: bool = False,
    ) -> None:
        self.options, self.pool, self.watch, self.say, self._kind = options, pool, watch, say, kind
        # By whether it opens for the first time: who comes back does not wait for new ones.
        self.turns = {first: threading.Semaphore(OPENING_AT_ONCE) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.core = SessionCore(
            options.session_rules(outlives),
            options.last_session(),
            new_token=lambda: secrets.token_urlsafe(24),
            plain=instruction_text,
            now_ns=time.monotonic_ns(),
        )
        self.stats = Totals()
        self._lock = threading.RLock()
        self._sessions: dict[str, SessionThread] = {}

    def tell(self, take: Callable[Concatenate[Turn, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Let this method of the core take what happened, and do what it says."""
        with self._lock:
            return self.report(take, *given, **named)

    def report(self, take: Callable[Concatenate[Turn, P], T], *given: P.args, **named: P.kwargs) -> T:
        """The same without the lock: what is about one connection and its session alone."""
        turn = Turn(time.monotonic_ns())
        answer = take(turn, *given, **named)
        for action in turn:  # it grows by what the core makes of answers
            DO[type(action)](self, turn, action)
        return answer

    # -- from the transports ------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Return whether this peer may send another message now; False is counted as a refusal (`rate`)."""
        tell = self.report if connection in self.core.peers else self.tell
        return tell(self.core.arrived, connection)

    def receive(self, connection: Connection, message: Message) -> None:
        """Take a decoded message; whatever is wrong with it goes back as an `error`."""
        free = type(message) not in LOCKED and connection in self.core.peers
        try:
            (self.report if free else self.tell)(self.core.received, connection, message)
        except Exception as error:
            log.exception("a message of type %s failed", message.type)
            self.refuse(connection, WireError(Code.INTERNAL, f"{type(error).__name__}.", "Report it."), message)

    def refuse(self, connection: Connection, error: WireError, message: Message | None = None) -> None:
        """Refuse a message; None: it could not be decoded."""
        tell = self.report if connection in self.core.peers else self.tell
        tell(self.core.failed, connection, message, error)

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone: its session is parked."""
        self.tell(self.core.disconnected, connection)

    # -- from the housekeeping, and whoever runs the server -----------------------------------------------------------

    def all(self) -> list[SessionThread]:
        """Return the sessions that are not over."""
        with self._lock:
            return list(self._sessions.values())

    def keep(self) -> None:
        """Look after heartbeats, dead connections and sessions no client came back to, a few times a second."""
        self.tell(self.core.woke)

    def drop(self, connection: Connection) -> None:
        """Forget a connection that is not allowed any more."""
        self.tell(self.core.disconnected, connection, revoked=True)

    def connections(self) -> list[Connection]:
        """Return those there are."""
        return list(self.core.peers)

    def drain(self, grace_s: float) -> None:
        """Refuse new sessions. After the grace end the others in turn, as their next servers open them, each after a
        call, with a bye that tells its client to connect again. Return at once where that was done before."""
        if self.core.drain is not None:
            return
        self.tell(self.core.drains, round(grace_s * 1e9))
        while (drain := self.core.drain) is not None and self.core.draining:
            time.sleep(max(0.0, (drain.next_ns - time.monotonic_ns()) / 1e9))
            self.keep()

    def close(self, timeout_s: float = 10.0) -> None:
        """End every session with its safe call, its report and a bye."""
        sessions = self.all()
        self.tell(self.core.close)
        give_up = time.monotonic() + timeout_s
        for session in sessions:
            if session.thread is not None and session.thread is not threading.current_thread():
                session.thread.join(max(0.0, give_up - time.monotonic()))

    # -- for monitors -------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[str]:
        """Sessions, errors from clients, messages that were dropped."""
        return self.core.counts

    def health(self) -> dict[str, Any]:
        """Return counts of the whole server, for /health."""
        core = self.core
        return {
            "uptime_s": round(time.monotonic() - self.stats.began_s, 1),
            "sessions": core.sessions.states(),
            "sessions_total": core.counts["sessions"],
            "max_sessions": self.options.max_sessions,
            "connections": len(core.peers),
            "refused": dict(core.refused),
            "errors_from_clients": core.counts["errors_from_clients"],
            "decoder": self.pool.alive(),
            "messages_dropped": core.counts["dropped"],
        }

    def totals(self) -> ServerStats:
        """Return what all sessions there ever were came to."""
        return self.stats.now()

    def needs(self) -> dict[str, Need]:
        """Return what each session needs of the decoder, as far as it is known, by their ids."""
        needs = {session.id: session.need() for session in self.all()}
        return {name: need for name, need in needs.items() if need is not None}

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together."""
        return self.core.busy(self.needs())

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        return self.core.has_room(self.needs()) and self.pool.alive()

    # -- what the core wants done -------------------------------------------------------------------------------------

    def _start(self, turn: Turn, action: do.StartThread) -> None:
        facts = action.session
        session = self._sessions.get(facts.id)
        if session is None:
            session = self._sessions[facts.id] = (CrowdSession if facts.crowd else self._kind)(facts, self)
        try:
            session.start(action.first)
        except RuntimeError:
            self.core.ended(turn, facts, refusals.no_thread(facts.life.welcomed))

    def _forward(self, turn: Turn, action: do.ForwardMessage) -> None:
        session = self._sessions.get(action.session.id)
        try:
            if session is not None:
                session.take(action.message)
        except WireError as error:
            self.core.failed(turn, action.connection, action.message, error)

    def _instruct(self, turn: Turn, action: do.InstructLoop) -> None:
        session = self._sessions.get(action.session.id)
        taken = session is not None and session.instruct_loop(action.text)
        self.core.instructed(turn, action.session, action.text, taken)

    def _look(self, turn: Turn, action: do.LookAtLoop) -> None:
        session = self._sessions.get(action.session.id)
        standing = None if session is None else session.look()
        if standing is not None:
            turn.now_ns = time.monotonic_ns()  # what the welcome tells is the clock's reading as it leaves
            self.core.looked(turn, action.session, standing)

    def _say(self, turn: Turn, action: do.SayToLoop) -> None:
        if (session := self._sessions.get(action.session.id)) is not None:
            session.note(session.say_to_loop(action.word, action.by, action.k))

    def _stop(self, turn: Turn, action: do.StopLoop) -> None:
        if (session := self._sessions.get(action.session.id)) is not None:
            session.stop_loop(action.why)

    def _forget(self, turn: Turn, action: do.ForgetSession) -> None:
        self._sessions.pop(action.session.id, None)


DO: dict[type, Callable[[SessionManager, Turn, Any], None]] = {
    do.SendMessage: lambda manager, turn, action: action.connection.send(action.message),
    do.DropConnection: lambda manager, turn, action: action.connection.close(),
    do.NotifyPeople: lambda manager, turn, action: manager.say(action.text),
    do.ForgetSession: SessionManager._forget,
    do.StartThread: SessionManager._start,
    do.ForwardMessage: SessionManager._forward,
    do.InstructLoop: SessionManager._instruct,
    do.LookAtLoop: SessionManager._look,
    do.SayToLoop: SessionManager._say,
    do.StopLoop: SessionManager._stop,
}
