"""What a hello leads to: a new session, an old one resumed, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable

from rtcontrol.bridges.wire import Code, WireError
from rtcontrol.bridges.wire.messages import Hello
from rtcontrol.serve.peer import Peer
from rtcontrol.serve.rooms import Rooms, same
from rtcontrol.serve.session import AGAIN, Session


class Entrance:
    """Its methods are called under the lobby's lock, and raise WireError. `make` gives a new session its number."""

    def __init__(self, rooms: Rooms, make: Callable[[int, Peer, Hello], Session]) -> None:
        self._rooms, self._make = rooms, make

    def enter(self, peer: Peer, hello: Hello) -> bool:
        """Whether a new session began."""
        if (session := peer.session) is not None:
            self._again(session, hello)
        elif hello.resume is not None:
            self._resume(peer, hello, hello.resume)
        elif (session := self._rooms.vacant(hello, peer.connection.key)) is not None:
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

    def _resume(self, peer: Peer, hello: Hello, token: str) -> None:
        session = self._rooms.find(token, peer.connection.key)
        self._rooms.check_room(besides=session)
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
        elif session.state == "live" and session.loop is not None and session.loop.ended_by is None:
            session.welcome()
        # Otherwise the loop is just starting, or just ending: then `Lobby.ended` starts it anew.

    def _open(self, peer: Peer, hello: Hello) -> None:
        self._rooms.check_room()
        self._rooms.claim(hello.robot)
        session = self._make(self._rooms.number(), peer, hello)
        peer.session = session
        self._rooms.add(session)
        try:
            session.start()
        except RuntimeError:
            self._rooms.forget(session)
            session.peer = peer.session = None
            raise _no_thread() from None


def _no_thread() -> WireError:
    return WireError(Code.BUSY, "The server cannot start another thread.", AGAIN, retryable=True, fatal=True)
