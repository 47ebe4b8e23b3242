"""Run `SessionCore`: pass events to the core, and carry out the actions that the core returns."""

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
from rtcontrol.serve.sessions import DecoderNeed, Session
from rtcontrol_client.wire import Code, WireError

MAX_OPENING = 2  # sessions that may compile schemas and open decoders at the same time


class SessionOwner:
    """The owner of a `SessionCore`. Any thread may call `handle`. `create_runner` returns a session's `SessionThread`;
    `log_line` shows a log line to people."""

    def __init__(
        self,
        core: SessionCore,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        log_line: Callable[[str], None],
        create_runner: Callable[[Session, Any], Any],
    ) -> None:
        self.core, self.options, self.pool, self.watch, self.log_line, self._create_runner = (
            core,
            options,
            pool,
            watch,
            log_line,
            create_runner,
        )
        # New sessions (True) and resumed sessions (False) have separate slots, so that resumed ones start at once.
        self.opening_slots = {first: threading.Semaphore(MAX_OPENING) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.stats = ServerTotals()
        self.paused_robots = PausedRobots(options.paused_robots or default_folder(), log_line)
        self.lock = threading.Lock()  # locked only while the core processes an event

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def handle(self, event: Any) -> Any:
        """Pass the event to the core, and carry out the core's actions. Events that result from the actions are passed
        to the core as well. Return the value of the core's `Answer`, or None."""
        answer, events = None, [event]
        for event in events:  # actions append events to this list
            if self.core.needs_no_lock(event):
                actions = self.core.advance(event, self.now_ns())
            else:
                with self.lock:
                    actions = self.core.advance(event, self.now_ns())
            for action in actions:
                result = ACTION_HANDLERS[type(action)](self, action)
                if type(result) is ev.Answer:
                    answer = result.value
                elif result is not None:
                    events.append(result)
        return answer

    def decoder_needs(self) -> dict[Session, DecoderNeed | None]:
        """Return how much decoder time each session needs (None if the session has not decided yet)."""
        return {session: session.runner.decoder_need() for session in self.core.sessions if session.runner is not None}

    def _start_session(self, action: ev.Start) -> ev.Ended | None:
        session = action.session
        if session.runner is None:
            session.runner = self._create_runner(session, self)
        try:
            session.runner.start(action.first)
            return None
        except RuntimeError as error:  # the system has no more threads; a session that was welcomed continues later
            refusal = WireError(
                Code.BUSY, f"{error}.", refusals.RETRY_HINT, retryable=True, fatal=not session.life.welcomed
            )
            return ev.Ended(session, refusal)

    def _deliver_message(self, action: ev.Deliver) -> ev.Failed | None:
        try:
            action.session.runner.deliver(action.message)
            return None
        except WireError as error:
            return ev.Failed(action.connection, error, action.message)

    def _instruct_loop(self, action: ev.InstructLoop) -> ev.Instructed | None:
        accepted = action.session.runner.instruct_loop(action.text)
        return None if accepted else ev.Instructed(action.session, action.text, missed=True)

    def _command_loop(self, action: ev.CommandLoop) -> ev.LogRequested | ev.Answer:
        text = action.session.runner.command_loop(action.command, action.by, action.k)
        return ev.LogRequested(action.session, text) if action.logged else ev.Answer(text)

    def _stop_loop(self, action: ev.StopLoop) -> None:
        if action.session.runner is not None:  # otherwise the session has not started, and will not start
            action.session.runner.stop_loop(action.reason)


# Each function carries out one kind of action, and returns an event for the core, an `Answer`, or None.
ACTION_HANDLERS: dict[type, Callable[[SessionOwner, Any], Any]] = {
    ev.Answer: lambda self, action: action,
    ev.Send: lambda self, action: action.connection.send(action.message),
    ev.Close: lambda self, action: action.connection.close(),
    ev.Say: lambda self, action: self.log_line(action.line),
    ev.Start: SessionOwner._start_session,
    ev.Deliver: SessionOwner._deliver_message,
    ev.InstructLoop: SessionOwner._instruct_loop,
    ev.CommandLoop: SessionOwner._command_loop,
    ev.KeepCommand: lambda self, action: self.paused_robots.change(action.robot, action.command, action.by),
    ev.StopLoop: SessionOwner._stop_loop,
    ev.RequestWelcome: lambda self, action: ev.WelcomeReady(
        action.session, action.session.runner.welcome(action.resumed)
    ),
}
