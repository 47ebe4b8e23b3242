"""Where every transport hands in its messages, and what people and monitors see of the sessions. Decides nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

from rtcontrol.serve import session_events as ev
from rtcontrol.serve.runs import ServerStats
from rtcontrol.serve.session_shell import SessionShell
from rtcontrol.serve.sessions import Connection
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import Bye, ControlMessage, Hello, Picture

log = logging.getLogger("rtcontrol.serve")
# What is about more than one connection and its session is taken under the lock.
LOCKED = frozenset({Hello, Bye, ControlMessage, Picture})


class SessionManager(SessionShell):
    """All sessions of a server. Its methods are quick, never block and may be called from any transport's thread.

    A transport calls, for each message: `admit` (before it decodes it; False: drop it), then `receive`, or `refuse`
    with the decoder's WireError; and `disconnected` when the connection is gone.
    """

    # -- from the transports ------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Return whether this peer may send another message now; False is counted as a refusal (`rate`)."""
        return not self.tell(ev.MessageArrived(connection), self._known(connection))

    def receive(self, connection: Connection, message: Message) -> None:
        """Take a decoded message; whatever is wrong with it goes back as an `error`."""
        free = type(message) not in LOCKED and self._known(connection)
        try:
            for action in self.tell(ev.MessageReceived(connection, message), free):
                self._said(action)
        except Exception as error:
            log.exception("a message of type %s failed", message.type)
            unforeseen = WireError(Code.INTERNAL, f"{type(error).__name__}.", "Tell the server's author.")
            self.tell(ev.MessageFailed(connection, message, unforeseen), self._known(connection))

    def refuse(self, connection: Connection, error: WireError) -> None:
        """Refuse a message that could not be decoded."""
        self.tell(ev.MessageFailed(connection, None, error), self._known(connection))

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone: its session is parked."""
        self.tell(ev.Disconnected(connection))

    def _known(self, connection: Connection) -> bool:
        return connection in self.core.peers

    def _said(self, action: ev.Action) -> None:
        """Do what a person said over the wire."""
        if isinstance(action, ev.SayToLoop | ev.AnswerPerson):
            session = self.thread_of(action.session)
            if session is not None:
                session.note(session.answer(action))

    # -- from the housekeeping, and whoever runs the server -----------------------------------------------------------

    def keep(self) -> None:
        """Look after heartbeats, dead connections and sessions no client came back to, a few times a second."""
        self.tell(ev.TimePassed())

    def drop(self, connection: Connection) -> None:
        """Forget a connection that is not allowed any more."""
        self.tell(ev.Disconnected(connection, revoked=True))

    def connections(self) -> list[Connection]:
        """Return those there are."""
        return list(self.core.peers)

    def drain(self, grace_s: float) -> None:
        """Refuse new sessions. After the grace end the others in turn, as their next servers open them, each after a
        call, with a bye that tells its client to connect again. Return at once where that was done before."""
        if self.core.drain is not None:
            return
        self.tell(ev.Drain(round(grace_s * 1e9)))
        while (drain := self.core.drain) is not None and self.core.draining:
            time.sleep(max(0.0, (drain.next_ns - time.monotonic_ns()) / 1e9))
            self.keep()

    def close(self, timeout_s: float = 10.0) -> None:
        """End every session with its safe call, its report and a bye."""
        sessions = self.all()
        self.tell(ev.Close())
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

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together."""
        return self.core.busy(self.needs())

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        return self.core.has_room(self.needs()) and self.pool.alive()
