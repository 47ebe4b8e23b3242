"""All sessions of a server: the interface for transports, housekeeping and monitors.

A transport (ZeroMQ, WebSocket) creates a `sessions.Connection` for each of its connections, calls `take` for each
message, and `disconnected` when a connection is lost. Any thread may call these methods; none blocks.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.crowd.session import CrowdSession
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import Connection, Session
from rtcontrol_client.wire import Code, Message, WireError

log = logging.getLogger("rtcontrol.serve")
LOOK_S = 0.05


class SessionManager(SessionOwner):
    """The owner of the sessions' core and of all session threads. `kind` creates a session that is not a crowd; with
    `outlives`, sessions continue while their client is away."""

    def __init__(
        self,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        say: Callable[[str], None] = lambda line: None,
        kind: Callable[[Session, SessionOwner], SessionThread] = LoopSession,
        outlives: bool = False,
    ) -> None:
        rules, seed, last = options.session_rules(outlives), secrets.token_bytes(32), options.last_session()
        core = SessionCore(rules, seed, last, time.monotonic_ns())
        self.dropped = 0  # messages that a transport could not send
        super().__init__(core, options, pool, watch, say, lambda s, me: (CrowdSession if s.crowd else kind)(s, me))

    # -- for the transports -------------------------------------------------------------------------------------------

    def take(self, connection: Connection, decode: Callable[[], Message]) -> None:
        """Process a message of the connection if the rate limit allows. `decode` returns the message or raises
        WireError; errors are sent back to the client."""
        message: Message | None = None
        try:
            if not self.tell(ev.Arrived(connection)):
                return
            message = decode()
            self.tell(ev.Received(connection, message))
        except WireError as error:
            self.tell(ev.Failed(connection, error))
        except Exception as error:
            log.exception("a message of type %s failed", getattr(message, "type", "unknown"))
            fault = WireError(Code.INTERNAL, f"{type(error).__name__}.", "Report it.")
            self.tell(ev.Failed(connection, fault, message))

    def disconnected(self, connection: Connection, revoked: bool = False) -> None:
        """Park the session of a connection that was lost, or whose key was `revoked`."""
        self.tell(ev.Disconnected(connection, revoked))

    # -- for the housekeeping, and for the process that runs the server ---------------------------------------------

    def all(self) -> list[SessionThread]:
        """Return the threads of all sessions that have not ended."""
        return [session.runner for session in self.core.sessions if session.runner is not None]

    def keep(self) -> None:
        """Check heartbeats, dead connections and expired sessions; to be called a few times a second."""
        self.tell(ev.Woke())

    def drain(self, grace_s: float) -> None:
        """Refuse new sessions, and wait until all sessions are ending. After the grace they end one by one, each after
        a call and with a bye that makes the client reconnect."""
        self.tell(ev.Drains(round(grace_s * 1e9)))
        while any(session.life.why is None for session in self.core.sessions):
            time.sleep(LOOK_S)

    def close(self, timeout_s: float = 10.0) -> None:
        """End every session with its safe call, a report and a bye."""
        sessions = self.all()
        self.tell(ev.Closes())
        give_up = time.monotonic() + timeout_s
        for session in sessions:
            if session.thread is not None and session.thread is not threading.current_thread():
                session.thread.join(max(0.0, give_up - time.monotonic()))

    # -- for monitors -------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the counts of the whole server for /health."""
        core = self.core
        return {
            "uptime_s": round(time.monotonic() - self.stats.started_s, 1),
            "sessions": core.sessions.states(),
            "sessions_total": core.count,
            "max_sessions": self.options.max_sessions,
            "connections": len(core.peers),
            "refused": dict(core.refused),
            "decoder": self.pool.alive(),
            "messages_dropped": self.dropped,
        }

    def busy(self) -> float:
        """Return the share of the decoder's time that the sessions need together."""
        return self.core.busy(self.needs())

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        return self.core.has_room(self.needs()) and self.pool.alive()
