"""The shell of the sessions' core: passes events to the core and carries out the actions that it returns."""

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
from rtcontrol.serve.runs import Totals
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import Need, Session
from rtcontrol_client.wire import Code, WireError

OPENING_AT_ONCE = 2  # sessions that compile schemas and open decoders at the same time


class SessionOwner:
    """Carries out the core's actions, from any thread. `kind` creates the `SessionThread` of a session."""

    def __init__(
        self,
        core: SessionCore,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        say: Callable[[str], None],
        kind: Callable[[Session, Any], Any],
    ) -> None:
        self.core, self.options, self.pool, self.watch, self.say, self._kind = core, options, pool, watch, say, kind
        # New sessions and resumed ones have separate slots: a returning client does not wait for new ones.
        self.opening_slots = {first: threading.Semaphore(OPENING_AT_ONCE) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.stats = Totals()
        self.lock = threading.Lock()  # held only while the core takes an event

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def tell(self, event: Any) -> Any:
        """Pass the event to the core, carry out its actions, and pass on their results. Return the core's answer."""
        answer, events = None, [event]
        for event in events:  # the list grows while actions return events
            if self.core.is_independent(event):
                actions = self.core.advance(event, self.now_ns())
            else:
                with self.lock:
                    actions = self.core.advance(event, self.now_ns())
            for action in actions:
                result = DO[type(action)](self, action)
                if type(result) is ev.Answer:
                    answer = result.value
                elif result is not None:
                    events.append(result)
        return answer

    def needs(self) -> dict[Session, Need | None]:
        """Return for each session how much decoder time it needs (None: not known yet)."""
        return {session: session.runner.need() for session in self.core.sessions if session.runner is not None}

    def _start(self, action: ev.Start) -> ev.Ended | None:
        session = action.session
        if session.runner is None:
            session.runner = self._kind(session, self)
        try:
            session.runner.start(action.first)
            return None
        except RuntimeError as error:  # no thread could be started; a welcomed session is kept
            refusal = WireError(Code.BUSY, f"{error}.", refusals.AGAIN, retryable=True, fatal=not session.life.welcomed)
            return ev.Ended(session, refusal)

    def _deliver(self, action: ev.Deliver) -> ev.Failed | None:
        try:
            action.session.runner.take(action.message)
            return None
        except WireError as error:
            return ev.Failed(action.connection, error, action.message)

    def _instruct(self, action: ev.InstructLoop) -> ev.Instructed | None:
        taken = action.session.runner.instruct_loop(action.text)
        return None if taken else ev.Instructed(action.session, action.text, missed=True)

    def _command(self, action: ev.CommandLoop) -> ev.Noted | ev.Answer:
        text = action.session.runner.say_to_loop(action.word, action.by, action.k)
        return ev.Noted(action.session, text) if action.noted else ev.Answer(text)

    def _stop(self, action: ev.StopLoop) -> None:
        if action.session.runner is not None:  # else it is just about to start, and will not
            action.session.runner.stop_loop(action.why)


# Each function returns another event for the core, an answer, or None.
DO: dict[type, Callable[[SessionOwner, Any], Any]] = {
    ev.Answer: lambda self, action: action,
    ev.Send: lambda self, action: action.connection.send(action.message),
    ev.Close: lambda self, action: action.connection.close(),
    ev.Say: lambda self, action: self.say(action.line),
    ev.Start: SessionOwner._start,
    ev.Deliver: SessionOwner._deliver,
    ev.InstructLoop: SessionOwner._instruct,
    ev.CommandLoop: SessionOwner._command,
    ev.StopLoop: SessionOwner._stop,
    ev.Greet: lambda self, action: ev.Greeted(action.session, action.session.runner.welcome(action.resumed)),
}
