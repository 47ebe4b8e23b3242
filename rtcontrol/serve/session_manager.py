"""Where every transport hands in its messages: who is who, what is refused, which session gets what."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.hosts.protocol import DecoderPool, DecoderUnavailable
from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.models.errors import UserError
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve.crowd.session import CrowdSession, of_crowd
from rtcontrol.serve.errors import AGAIN, stopped
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.peer import HELLOS_PER_S, Connection, Peer, TokenBucket
from rtcontrol.serve.session import BY_HAND, BYE, LEAVING, LOST, STOPPED, Need, Session
from rtcontrol.serve.sessions import Sessions, session_of
from rtcontrol.serve.stats import CountedLoop, ServerStats
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.crowd import Join, Leave, ObserveMany
from rtcontrol_client.wire.messages import (
    Bye,
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

log = logging.getLogger("rtcontrol.serve")
# Without a session; those that were silent the longest are forgotten.
MAX_STRANGERS = 1024
STRANGER_NS = 120_000_000_000
OPENING_AT_ONCE = 2  # sessions whose schemas are compiled and decoders opened
BETWEEN_S, LEAVE_S = 0.1, 2.0  # between two sessions that end because the server drains; all of them, about
LINES_PER_S = 2.0  # refusals that are said; the others are counted


class SessionManager:
    """All sessions of a server. Its methods are quick, never block and may be called from any transport's thread.

    A transport calls, for each message: `admit` (before it decodes it; False: drop it), then `receive`, or `refuse`
    with the decoder's WireError; and `disconnected` when the connection is gone.
    """

    def __init__(
        self,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        say: Callable[[str], None] = lambda line: None,
        make: Callable[[int, Peer[Session], Hello, SessionManager], Session] | None = None,
    ) -> None:
        self.options, self.pool, self.watch, self.say = options, pool, watch, say
        self.opening = threading.Semaphore(OPENING_AT_ONCE)
        self.resuming = threading.Semaphore(OPENING_AT_ONCE)  # nobody waits behind strangers to come back
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._peers: dict[Connection, Peer[Session]] = {}
        self._sessions = Sessions(
            options.max_sessions,
            options.out,
            lambda number, peer, hello: (make or open_session)(number, peer, hello, self),
        )
        self._refused: Counter[str] = Counter()
        self._ended = ServerStats()
        self._lines, self._unsaid = TokenBucket(LINES_PER_S, 20.0), 0
        self._began_s = time.monotonic()
        self._closing = False
        self.leaving = False  # new sessions are refused

    # -- from the transports ------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Whether this peer may send another message now; False is counted as a refusal (`rate`)."""
        peer = self._peers.get(connection) or self._meet(connection)
        if peer.gone:
            return False
        if peer.messages.take():
            return True
        rate = f"{self.options.messages_per_s:g} messages a second"
        self.refused(peer, WireError(Code.RATE, f"More than {rate}.", "Send fewer.", retryable=True))
        return False

    def receive(self, connection: Connection, message: Message) -> None:
        """A decoded message; whatever is wrong with it goes back as an `error`."""
        peer = self._peers.get(connection) or self._meet(connection)
        if peer.gone:
            return
        peer.in_ns = time.monotonic_ns()
        try:
            self._handle(peer, message)
        except Exception as error:
            if not isinstance(error, WireError):
                log.exception("a message of type %s failed", message.type)
                error = WireError(Code.INTERNAL, f"{type(error).__name__}.", "Tell the server's author.")
            if isinstance(message, Hello) and message.protocol[1] >= 1:
                error.t_client_ns = message.t_client_ns
            elif isinstance(message, Observe):
                error.seq = message.seq
            self.refused(peer, error)

    def refuse(self, connection: Connection, error: WireError) -> None:
        """A message that could not be decoded: counted, and told to its sender as far as the error rate allows."""
        peer = self._peers.get(connection) or self._meet(connection)
        if not peer.gone:
            self.refused(peer, error)

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone: its session is parked."""
        with self._lock:
            peer = self._peers.pop(connection, None)
            if peer is None:
                return
            peer.gone = True
            session, peer.session = peer.session, None
            if session is not None and session.peer is peer:
                session.peer = None
                session.stop(LOST, final=False)

    # -- for people and monitors --------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Counts of the whole server, for /health."""
        with self._lock:
            states = self._sessions.states()
        return {
            "uptime_s": round(time.monotonic() - self._began_s, 1),
            "sessions": states,
            "sessions_total": self.counts["sessions"],
            "max_sessions": self.options.max_sessions,
            "connections": len(self._peers),
            "refused": dict(self._refused),
            "errors_from_clients": self.counts["errors_from_clients"],
            "decoder": self.pool.alive(),
            "messages_dropped": self.counts["dropped"],
        }

    def totals(self) -> ServerStats:
        """Over all sessions there ever were."""
        with self._lock:
            totals = self._ended.copy()
            for session in self._sessions.all():
                if (loop := _counted(session)) is not None and session.counting:
                    totals.add(loop.account)
        return totals

    def counted(self, session: Session) -> None:
        """A loop of the session is over: its counts stay."""
        with self._lock:
            if (loop := _counted(session)) is not None and session.counting:
                session.counting = False
                self._ended.add(loop.account)

    def all(self) -> list[Session]:
        """The sessions that are not over."""
        with self._lock:
            return self._sessions.all()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _handle(self, peer: Peer[Session], message: Message) -> None:
        if isinstance(message, Observe):
            self._world(peer, message.session).observe(message)
        elif isinstance(message, Join | Leave | ObserveMany):
            of_crowd(session_of(peer, message.session)).take(message)
        elif isinstance(message, Executed):
            self._world(peer, message.session).executed(message)
        elif isinstance(message, Ping):
            now = time.monotonic_ns()
            peer.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))
        elif isinstance(message, Hello):
            self._hello(peer, message)
        elif isinstance(message, Instruct):
            session = session_of(peer, message.session)
            try:
                session.instruct(message.instruction, by_client=True)
            except UserError as error:
                raise WireError(Code.INSTRUCTION, error.what, error.remedy, field="instruction") from None
        elif isinstance(message, ControlMessage):
            session_of(peer, message.session).control(message)
        elif isinstance(message, Picture):
            with self._lock:
                session = self._sessions.pictured(peer, message.session)
            _world_of(session).pictures.take(message)
        elif isinstance(message, Reset):
            self._world(peer, message.session).reset(message)
        elif isinstance(message, Bye):
            self._bye(peer, message.session)
        elif isinstance(message, ErrorMessage):
            self.counts["errors_from_clients"] += 1
        elif not isinstance(message, Pong):
            raise WireError(Code.STATE, f"{message.type} is for servers to send.", "Leave it to the server.")

    def _bye(self, peer: Peer[Session], token: str | None) -> None:
        with self._lock:
            session = self._sessions.leave(peer, token)
        if session is not None:
            if session.state == "over":
                self.say(f"{session.id}: over ({BYE})")
            if session.hello.protocol[1] >= 1:
                peer.send(Bye(session=session.token, reason=BYE))

    def _world(self, peer: Peer[Session], token: str) -> RemoteEnvironment:
        return _world_of(session_of(peer, token))

    def _hello(self, peer: Peer[Session], hello: Hello) -> None:
        if not peer.hellos.take():
            raise WireError(
                Code.RATE, f"More than {HELLOS_PER_S:g} hellos a second.", "Wait for the answer.", retryable=True
            )
        with self._lock:
            if peer.gone:
                return
            if self._closing:
                raise WireError(Code.BUSY, "The server is stopping.", AGAIN, retryable=True, fatal=True)
            if self.leaving and peer.session is None and hello.resume is None:
                raise WireError(Code.BUSY, "The server is draining.", AGAIN, retryable=True, fatal=True)
            self.counts["sessions"] += self._sessions.enter(peer, hello)

    # -- from the sessions --------------------------------------------------------------------------------------------

    def refused(self, peer: Peer[Session], error: WireError) -> None:
        """Count the refusal, and tell it. Whatever is refused once there is a session, the session goes on."""
        code = error.code.value
        self._refused[code] += 1
        if (session := peer.session) is not None:
            session.refused[code] += 1
            error.fatal = False
        if error.fatal and not error.retryable:
            if self._lines.take():
                more = f" ({self._unsaid} more refusals were not shown)" if self._unsaid else ""
                self._unsaid = 0
                self.say(f"{peer.name}: refused: {error.message[:200]}{more}")
            else:
                self._unsaid += 1
        peer.tell(error)

    def welcome(self, session: Session) -> None:
        """It is live from now on. Raises DecoderUnavailable where there is no room for its ticks beside those that were
        welcomed before: of several that are warm at once, one after the other is let in."""
        with self._lock:
            if not session.welcomed and (need := session.need()) is not None:
                others = [other for other in self._sessions.all() if other.welcomed]
                needs = [n for other in others if (n := other.need()) is not None]
                weigh(need, needs, self.options.busy_max)
            session.state, session.welcomed = "live", True

    def ended(self, session: Session, error: WireError | None) -> None:
        """The session's thread is done: start it again, park it, or let it go."""
        with self._lock:
            passing = error is None or (error.retryable and not error.fatal)
            kept = passing and session.why is None and session.welcomed and not self._closing
            if kept and error is None and (waiting := session.peer) is not None:
                session.state = "opening"
                try:
                    session.start()
                except RuntimeError:  # no thread is to be had: its client asks again
                    waiting.session = session.peer = None
                else:
                    return
            peer, session.peer = session.peer, None
            if peer is not None:
                peer.session = None
            if kept:
                self._sessions.park(session, time.monotonic())
            else:
                self._sessions.forget(session)
        if kept:
            why = "client lost" if error is None else error.message[:200]
            self.say(f"{session.id}: {why}; kept for {self.options.session_grace_s:g} s")
        if session.why == BY_HAND and peer is not None:
            peer.tell(stopped(), always=True)  # after a bye alone, some greet anew by themselves
        if error is not None:
            if session.hello.protocol[1] >= 1:
                error.t_client_ns = session.hello.t_client_ns
            session.refused[error.code.value] += 1
            if peer is not None:
                self.refused(peer, error)
        elif not kept:
            if peer is not None and session.why != BYE:
                away = session.why == LEAVING or None
                peer.send(Bye(session=session.token, reason=session.why or LOST, reconnect=away))
            if session.welcomed:
                self.say(f"{session.id}: over ({session.why or LOST})")

    # -- time ---------------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Housekeeping, a few times a second: heartbeats, dead connections, sessions nobody came back to."""
        now = time.monotonic_ns()
        beat_ns = round(self.options.heartbeat_s * 1e9)
        with self._lock:
            peers = list(self._peers.values())
            for session in self._sessions.expire(time.monotonic() - self.options.session_grace_s):
                self.say(f"{session.id}: over (nobody came back)")
        for peer in peers:
            live = peer.session is not None and peer.session.state == "live"
            if now - peer.in_ns > (self.options.silent_heartbeats * beat_ns if live else STRANGER_NS):
                self.drop(peer.connection)
            elif live and now - peer.out_ns >= beat_ns:
                peer.pings += 1
                peer.send(Ping(id=peer.pings, t_ns=now))

    def drop(self, connection: Connection) -> None:
        """Forget a connection that is silent, or not allowed any more."""
        # In this order: a message of it that the transport has in hand must not make it known again.
        connection.close()
        self.disconnected(connection)

    def connections(self) -> list[Connection]:
        with self._lock:
            return list(self._peers)

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together."""
        return self._sessions.busy()

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        with self._lock:
            states = self._sessions.states()
        free = states["opening"] + states["live"] < self.options.max_sessions and self.busy() < self.options.busy_max
        return free and self.pool.alive() and not (self.leaving or self._closing)

    def drain(self, grace_s: float) -> None:
        """Refuse new sessions. After the grace end the others in turn, as their next servers open them, each
        after a call, with a bye that tells its client to connect again. Return at once where that was done before."""
        if self.leaving:
            return
        self.leaving = True
        time.sleep(grace_s)
        sessions = self.all()
        for session in sessions:
            with self._lock:
                self._sessions.send_away(session)
            time.sleep(min(BETWEEN_S, LEAVE_S / len(sessions)))
        for session in self.all():
            session.stop(LEAVING)  # such as one that makes a call every few seconds

    def close(self, timeout_s: float = 10.0) -> None:
        """End every session with its safe call, its report and a bye."""
        with self._lock:
            self._closing = True
            sessions = self._sessions.all()
        for session in sessions:
            session.stop(STOPPED)
        self.interpreters.close()
        give_up = time.monotonic() + timeout_s
        for session in sessions:
            if session.thread is not None and session.thread is not threading.current_thread():
                session.thread.join(max(0.0, give_up - time.monotonic()))

    def _meet(self, connection: Connection) -> Peer[Session]:
        with self._lock:
            peer = self._peers.get(connection)
            if peer is not None:
                return peer
            if getattr(connection, "closed", False):
                peer = Peer(connection, self.options)
                peer.gone = True
                return peer
            strangers = [p for p in self._peers.values() if p.session is None]
            if len(strangers) >= MAX_STRANGERS:
                self.drop(min(strangers, key=lambda p: p.in_ns).connection)
            peer = self._peers[connection] = Peer(connection, self.options)
            return peer


def open_session(number: int, peer: Peer[Session], hello: Hello, owner: SessionManager) -> Session:
    """Make a session of the kind that the hello asks for."""
    return (Session if hello.crowd is None else CrowdSession)(number, peer, hello, owner)


def _counted(session: Session) -> CountedLoop | None:
    return session.crowd if isinstance(session, CrowdSession) else session.loop


def _world_of(session: Session) -> RemoteEnvironment:
    if isinstance(session, CrowdSession):
        raise WireError(Code.STATE, "This session is a crowd.", "Send join, leave and observe_many.")
    if session.env is None or session.state != "live":
        raise WireError(Code.STATE, "The session is not open.", "Wait for the welcome.", retryable=True)
    return session.env


def weigh(need: Need, others: Iterable[Need], most: float) -> None:
    """Raises DecoderUnavailable (full) where one more session would make calls of the others late: where they ask for
    more than `most` of the decoder's time together. The rest is for messages, and for ticks that fall together; those
    that ask for more than there is are late anyway."""
    taken = [other.busy for other in others if 0 < other.busy <= most]
    if not taken or sum(taken) + need.busy <= most:
        return
    hz = (most - sum(taken)) / need.share_s
    slower = f"Ask for at most {hz:.2g} Hz, or come" if hz >= 1 else "Come"
    raise DecoderUnavailable(
        f"The decoder is taken for {sum(taken):.0%} of its time by {len(taken)} other session(s), and this one needs "
        f"{need.busy:.0%} ({need.hz:g} Hz, {1e3 * need.share_s:.2g} ms a decision): calls of others would be late.",
        f"{slower} again when another session has ended: {most:.0%} are given away.",
        full=True,
    )
