"""Manage all sessions of a server. Transports, housekeeping and monitors use the sessions through `SessionManager`.

A transport (ZeroMQ, WebSocket) creates a `sessions.Connection` for each of its connections. The transport calls
`receive` for each message, and `disconnected` for a lost connection. Any thread may call both; neither blocks.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.operator import CONTINUED, SUSPENDED
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
CHECK_INTERVAL_S = 0.05
SUSPEND_S = 0.1  # the process stops this long after the pause, so that its messages are sent


class SessionManager(SessionOwner):
    """The owner of `SessionCore` and of all session threads. `create_thread` creates the thread of a session without
    a crowd. `outlives_client`: a session continues while its client is disconnected."""

    def __init__(
        self,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        log_line: Callable[[str], None] = lambda line: None,
        create_thread: Callable[[Session, SessionOwner], SessionThread] = LoopSession,
        outlives_client: bool = False,
    ) -> None:
        rules, last_number = options.session_rules(outlives_client), options.last_session_number()
        core = SessionCore(rules, secrets.token_bytes(32), last_number, time.monotonic_ns())
        self.dropped = 0  # number of messages that the transports could not send
        super().__init__(
            core, options, pool, watch, log_line, lambda s, me: (CrowdSession if s.crowd else create_thread)(s, me)
        )

    def receive(self, connection: Connection, decode: Callable[[], Message], size: int = 0) -> None:
        """Process a message of `size` bytes, unless the client exceeds a limit of rate or time. `decode` returns the
        decoded message, or raises WireError. Errors are sent to the client."""
        if not self.handle(ev.MessageArrived(connection, size)):
            return
        message: Message | None = None
        started_ns = time.thread_time_ns()
        try:
            message = decode()
            self.handle(ev.MessageReceived(connection, message))
        except WireError as error:
            self.handle(ev.MessageRefused(connection, error))
        except Exception as error:
            log.exception("a message of type %s failed", getattr(message, "type", "unknown"))
            problem = f"The server failed to process the message ({type(error).__name__})."
            self.handle(ev.MessageRefused(connection, WireError(Code.INTERNAL, problem, "Report this error."), message))
        finally:
            self.handle(ev.TimeSpent(connection, time.thread_time_ns() - started_ns))

    def disconnected(self, connection: Connection, reason: str = "") -> None:
        """Park the session of a connection that was lost, or that the server closes for a `reason`."""
        self.handle(ev.ConnectionLost(connection, reason))

    def threads(self) -> list[SessionThread]:
        """Return the threads of all sessions that have not ended."""
        return [session.runner for session in self.core.sessions if session.runner is not None]

    def check(self) -> None:
        """Send due heartbeats, drop silent connections, and end expired sessions. Call this a few times a second."""
        self.handle(ev.TimerFired())
        self.paused_robots.save()

    def drain(self, grace_s: float) -> None:
        """Refuse new sessions, and wait until all sessions are ending. After `grace_s` seconds the sessions end one by
        one. Each sends its client one more call, then a bye that makes the client connect to another server."""
        self.handle(ev.DrainStarted(round(grace_s * 1e9)))
        while any(session.life.end_reason is None for session in self.core.sessions):
            time.sleep(CHECK_INTERVAL_S)

    def suspend(self, halt: Callable[[], None]) -> None:
        """Pause all sessions, call `halt` after their safe calls were sent, and then resume the sessions that no person
        has paused. This is for a signal handler (Ctrl-Z). The main thread must only wait."""
        self._command_running_loops("pause", SUSPENDED)
        time.sleep(SUSPEND_S)
        halt()
        time.sleep(SUSPEND_S)  # if a person has paused the run meanwhile, that pause is handled first
        self._command_running_loops("resume", CONTINUED)

    def _command_running_loops(self, command: str, by: str) -> None:
        for session in self.core.sessions:
            if session.life.has_loop and not session.life.paused:
                session.runner.command_loop(command, by, None)

    def close(self, timeout_s: float = 10.0) -> None:
        """End all sessions. Each sends its safe call and a bye, and writes its report. Wait at most `timeout_s`."""
        sessions = self.threads()
        self.handle(ev.CloseStarted())
        give_up = time.monotonic() + timeout_s
        for session in sessions:
            if session.thread is not None and session.thread is not threading.current_thread():
                session.thread.join(max(0.0, give_up - time.monotonic()))
        self.paused_robots.save()

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

    def decoder_load(self) -> float:
        """Return the fraction of the decoder's time that all sessions need together. It may be above 1."""
        return self.core.decoder_load(self.decoder_needs())

    def has_room(self) -> bool:
        """Return whether another session may open now."""
        return self.core.has_room(self.decoder_needs()) and self.pool.alive()
