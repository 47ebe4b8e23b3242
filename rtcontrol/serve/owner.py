"""Run `SessionCore`: pass events to the core, and execute the actions that the core returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import refusals
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.paused import PausedRobots, default_folder
from rtcontrol.serve.runs import ServerTotals
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import FLOODED, DecoderNeed, Session
from rtcontrol_client.wire import Code, WireError

MAX_OPENING = 2  # maximum number of sessions that compile schemas and open decoders at the same time


class SessionOwner:
    """The owner of a `SessionCore`. Any thread may call `handle`. `create_runner` returns the `SessionThread` of a
    session. `log_line` prints a line to the server's log."""

    def __init__(
        self,
        core: SessionCore,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        log_line: Callable[[str], None],
        create_runner: Callable[[Session, Any], Any],
    ) -> None:
        self.core, self.options, self.pool, self.watch, self.log_line = core, options, pool, watch, log_line
        self._create_runner = create_runner
        # New sessions (True) and resumed sessions (False) have separate slots, so that resumed sessions need not wait.
        self.opening_slots = {first: threading.Semaphore(MAX_OPENING) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.stats = ServerTotals()
        self.paused_robots = PausedRobots(options.paused_robots or default_folder(), log_line)
        self.lock = threading.Lock()  # held only while the core processes an event

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def handle(self, event: Any) -> Any:
        """Pass the event to the core, and execute the core's actions. An action may return another event, which also
        goes to the core. Return the value of the action `ReturnValue`, or None."""
        answer, events = None, [event]
        for event in events:  # the actions append events to this list
            if self.core.needs_no_lock(event):
                actions = self.core.advance(event, self.now_ns())
            else:
                with self.lock:
                    actions = self.core.advance(event, self.now_ns())
            for action in actions:
                result = ACTION_HANDLERS[type(action)](self, action)
                if type(result) is ev.ReturnValue:
                    answer = result.value
                elif result is not None:
                    events.append(result)
        return answer

    def decoder_needs(self) -> dict[Session, DecoderNeed | None]:
        """Return how much decoder time each session needs (None if the session has not decided yet)."""
        return {session: session.runner.decoder_need() for session in self.core.sessions if session.runner is not None}

    def _start_session(self, action: ev.StartSession) -> ev.SessionEnded | None:
        session = action.session
        if session.runner is None:
            session.runner = self._create_runner(session, self)
        try:
            session.runner.start(action.first)
            return None
        except RuntimeError as error:  # no thread can be started; a welcomed session continues later
            refusal = WireError(
                Code.BUSY, f"{error}.", refusals.RETRY_HINT, retryable=True, fatal=not session.life.welcomed
            )
            return ev.SessionEnded(session, refusal)

    def _deliver_message(self, action: ev.DeliverMessage) -> ev.MessageRefused | None:
        try:
            action.session.runner.deliver(action.message)
            return None
        except WireError as error:
            return ev.MessageRefused(action.connection, error, action.message)

    def _instruct_loop(self, action: ev.InstructLoop) -> ev.InstructionReceived | None:
        accepted = action.session.runner.instruct_loop(action.text)
        return None if accepted else ev.InstructionReceived(action.session, action.text, missed=True)

    def _command_loop(self, action: ev.CommandLoop) -> ev.LogRequested | ev.ReturnValue:
        text = action.session.runner.command_loop(action.command, action.by, action.k)
        return ev.LogRequested(action.session, text) if action.logged else ev.ReturnValue(text)

    def _stop_loop(self, action: ev.StopLoop) -> None:
        if action.session.runner is not None:  # without a runner, the session will not start
            action.session.runner.stop_loop(action.reason)


# By class of an action: the function that executes it, and returns an event for the core, a `ReturnValue`, or None.
ACTION_HANDLERS: dict[type, Callable[[SessionOwner, Any], Any]] = {
    ev.ReturnValue: lambda self, action: action,
    ev.SendMessage: lambda self, action: action.connection.send(action.message),
    ev.CloseConnection: lambda self, action: action.connection.close(),
    ev.DisconnectClient: lambda self, action: ev.ConnectionLost(action.connection, FLOODED),
    ev.WriteLogLine: lambda self, action: self.log_line(action.line),
    ev.StartSession: SessionOwner._start_session,
    ev.DeliverMessage: SessionOwner._deliver_message,
    ev.InstructLoop: SessionOwner._instruct_loop,
    ev.CommandLoop: SessionOwner._command_loop,
    ev.StoreCommand: lambda self, action: self.paused_robots.change(action.robot, action.command, action.by),
    ev.StopLoop: SessionOwner._stop_loop,
    ev.RequestWelcome: lambda self, action: ev.WelcomeReady(
        action.session, action.session.runner.welcome_messages(action.resumed)
    ),
}
