"""The sessions of a server: who may come in, who may come back."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from rtcontrol.serve.errors import AGAIN, stopped
from rtcontrol.serve.peer import Peer
from rtcontrol.serve.session import BY_HAND, BYE, LEAVING, Session
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Hello
from rtcontrol_client.wire.pictures import PICTURES

# Beside the sessions: those that are just ending.
SPARE = 16

# So many sessions are remembered that a person stopped.
MAX_STOPPED = 256


class Sessions:
    """At most `limit` sessions that run, and as many that wait for their clients. `make` gives a new session its
    number. Not locked: the admission is. `enter` and `leave` raise WireError."""

    def __init__(self, limit: int, out: Path, make: Callable[[int, Peer[Session], Hello], Session]) -> None:
        self._limit, self._make = limit, make
        self._sessions: dict[str, Session] = {}
        self._stopped: deque[str] = deque(maxlen=MAX_STOPPED)  # tokens of those that a person stopped
        # Numbers go on after those that lie in the folder: a restarted server overwrites no record.
        self._last = max((int(n) for p in out.glob("session-*") if (n := p.name[8:]).isdigit()), default=0)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def states(self) -> dict[str, int]:
        count = Counter(session.state for session in self._sessions.values())
        return {state: count[state] for state in ("opening", "live", "parked")}

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together."""
        needs = (session.need() for session in self.all())
        return sum(need.busy for need in needs if need is not None)

    def send_away(self, session: Session) -> None:
        """End a session whose client is to connect to another server: a live one after its next call."""
        session.leaving = True
        if session.state != "live":
            session.stop(LEAVING)
        if session.state == "parked":
            self.forget(session)

    def forget(self, session: Session) -> None:
        session.state = "over"
        if session.why == BY_HAND:
            self._stopped.append(session.token)
        self._sessions.pop(session.id, None)

    def enter(self, peer: Peer[Session], hello: Hello) -> bool:
        """Whether a new session began."""
        if (session := peer.session) is not None:
            self._again(session, hello)
        elif hello.resume is not None:
            self._resume(peer, hello, hello.resume)
        elif (session := self._vacant(hello, peer.connection.key)) is not None:
            session.succeed(peer, hello)
        else:
            self._open(peer, hello)
            return True
        return False

    def _again(self, session: Session, hello: Hello) -> None:
        """A hello on a connection that has a session: the welcome was lost, or the client is confused."""
        given = {"t_client_ns", "resume"}
        if hello.model_dump(exclude=given) != session.hello.model_dump(exclude=given) and hello.resume is None:
            raise WireError(Code.STATE, "This connection has a session.", "Say bye first, or open another connection.")
        if hello.resume is not None and not same(hello.resume, session.token):
            raise WireError(
                Code.SESSION, "This connection has another session.", "Say bye first.", field="resume", retryable=True
            )
        if session.state == "live":
            session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns})
            session.welcome()

    def _resume(self, peer: Peer[Session], hello: Hello, token: str) -> None:
        session = self._find(token, peer.connection.key)
        self._check_room(besides=session)
        if (old := session.peer) is not None:
            old.session = None
        session.peer, peer.session = peer, session
        session.hello = session.hello.model_copy(update={"t_client_ns": hello.t_client_ns, "resume": token})
        if session.state == "parked":
            session.state = "opening"
            try:
                session.start()
            except RuntimeError:
                session.state, session.peer, peer.session = "parked", None, None
                raise _no_thread() from None
        elif session.state == "live" and session.running:
            session.welcome()
        # Otherwise the loop is just starting, or just ending: then `Admission.ended` starts it anew.

    def _open(self, peer: Peer[Session], hello: Hello) -> None:
        self._check_room()
        self._claim(hello.robot)
        self._last += 1
        session = self._make(self._last, peer, hello)
        peer.session = session
        self._sessions[session.id] = session
        try:
            session.start()
        except RuntimeError:
            self.forget(session)
            session.peer = peer.session = None
            raise _no_thread() from None

    def leave(self, peer: Peer[Session], token: str | None) -> Session | None:
        """A bye: the session ends at once, so that the next hello on this connection finds it free; None where there is
        none.

        Whoever closes right after its bye may be found gone before the bye is read: the token then finds the session,
        which waits for its client or is ending.
        """
        if peer.session is not None:
            session = session_of(peer, token)
        else:
            lost = (s for s in self._sessions.values() if s.peer is None and s.key == peer.connection.key)
            found = next((s for s in lost if token is not None and same(token, s.token)), None)
            if found is None:
                return None
            session = found
        peer.session = session.peer = None
        session.stop(BYE)
        if session.state == "parked":
            self.forget(session)
        return session

    def pictured(self, peer: Peer[Session], token: str) -> Session:
        """Whose picture it is. It may come on a connection of its own, with the session's key. Raises WireError."""
        if peer.session is not None:
            session = session_of(peer, token)
        else:
            alike = (s for s in self._sessions.values() if s.key == peer.connection.key and same(token, s.token))
            if (found := next(alike, None)) is None:
                remedy = "Send pictures with the token of the last welcome."
                raise WireError(Code.SESSION, "There is no such session.", remedy, field="session", retryable=True)
            session = found
        if PICTURES not in session.hello.capabilities:
            raise WireError(Code.STATE, "hello did not announce pictures.", 'Give hello `capabilities: ["pictures"]`.')
        return session

    def _find(self, token: str, key: str | None) -> Session:
        """The session that the client with this CURVE key may resume. Raises WireError."""
        session = next((s for s in self._sessions.values() if same(token, s.token)), None)
        by_hand = session is not None and session.why == BY_HAND
        if by_hand or any(same(token, other) for other in self._stopped):
            raise stopped()
        if session is None or session.why is not None or session.key != key or session.terms is None:
            raise WireError(
                Code.SESSION,
                "There is no such session (any more).",
                "Say hello without `resume`.",
                field="resume",
                retryable=True,
            )
        return session

    def _vacant(self, hello: Hello, key: str | None) -> Session | None:
        """A session that goes on without a client, and lets this one take its place."""
        found = (s for s in self._sessions.values() if s.peer is None and s.why is None and s.key == key)
        return next((s for s in found if s.may_succeed(hello)), None)

    def _check_room(self, besides: Session | None = None) -> None:
        """Raises WireError (busy) when all places are taken, or too many sessions are just ending."""
        others = [s for s in self._sessions.values() if s.state != "parked" and s is not besides]
        if sum(s.why is None for s in others) >= self._limit or len(others) >= self._limit + SPARE:
            raise WireError(Code.BUSY, f"All {self._limit} sessions are taken.", AGAIN, retryable=True, fatal=True)

    def _claim(self, robot: str | None) -> None:
        """A session that only waits for its client loses the robot to a new one. Raises WireError (busy) where it is
        another's."""
        if robot is None:
            return
        for other in [s for s in self._sessions.values() if s.hello.robot == robot and s.why is None]:
            if other.state != "parked":
                raise WireError(
                    Code.BUSY,
                    f"The robot {robot!r} is claimed by another session.",
                    "End that one, or say the same hello again, with growing pauses, until it is gone.",
                    field="robot",
                    retryable=True,
                    fatal=True,
                )
            self.forget(other)

    def park(self, session: Session, now_s: float) -> None:
        session.state, session.parked_s = "parked", now_s
        parked = [s for s in self._sessions.values() if s.state == "parked"]
        if len(parked) > self._limit:
            self.forget(min(parked, key=lambda s: s.parked_s))

    def expire(self, before_s: float) -> list[Session]:
        """Forget the sessions that were parked earlier."""
        gone = [s for s in self._sessions.values() if s.state == "parked" and s.parked_s < before_s]
        for session in gone:
            self.forget(session)
        return gone


def session_of(peer: Peer[Session], token: str | None) -> Session:
    """The connection's session, if the token is its. Raises WireError."""
    session = peer.session
    if session is None:
        raise WireError(
            Code.STATE,
            "This connection has no session.",
            "Say hello first, with `resume` where there was one.",
            retryable=True,
        )
    if token is not None and not same(token, session.token):
        raise WireError(
            Code.SESSION,
            "This session token is not this connection's.",
            "Use the welcome's.",
            field="session",
            retryable=True,
        )
    return session


def same(a: str, b: str) -> bool:
    """Compares secrets in constant time."""
    return secrets.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))


def _no_thread() -> WireError:
    return WireError(Code.BUSY, "The server cannot start another thread.", AGAIN, retryable=True, fatal=True)
