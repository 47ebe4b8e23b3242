"""Does what the sessions' core says, under one lock, and tells it what came of it. Decides nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.crowd.session import CrowdSession
from rtcontrol.serve.loop_session import LoopSession
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.runs import Totals
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import Need, SessionFacts
from rtcontrol_client.wire import WireError

OPENING_AT_ONCE = 2  # sessions whose schemas are compiled and decoders opened


class SessionShell:
    """The threads of all sessions of a server, by the core that decides about them. `single`: it is given the one
    session, which goes on while its client is away, and runs it."""

    def __init__(
        self,
        options: ServeOptions,
        pool: DecoderPool,
        watch: PauseWatch,
        say: Callable[[str], None] = lambda line: None,
        single: Callable[[LoopSession], None] | None = None,
    ) -> None:
        self.options, self.pool, self.watch, self.say = options, pool, watch, say
        # By whether it opens for the first time: nobody waits behind strangers to come back.
        self.turns = {first: threading.Semaphore(OPENING_AT_ONCE) for first in (True, False)}
        self.interpreters = Interpreters(options.interpreter, options.engine)
        self.core = SessionCore(
            options.session_rules(outlives=single is not None),
            options.last_session(),
            new_token=lambda: secrets.token_urlsafe(24),
            plain=instruction_text,
            now_ns=time.monotonic_ns(),
        )
        self.stats = Totals()
        self._single = single
        self._lock = threading.RLock()
        self._sessions: dict[str, SessionThread] = {}

    def tell(self, event: ev.Event, free: bool = False) -> list[ev.Action]:
        """Let the core take the event, do what it says, and return what is the caller's to do. `free`: without the
        lock, for what is about one connection and its session alone."""
        if free or isinstance(event, ev.LoopEvent):
            return self._dispatch(event)
        with self._lock:
            return self._dispatch(event)

    def _dispatch(self, event: ev.Event) -> list[ev.Action]:
        rest, events = list[ev.Action](), deque([event])
        while events:
            for action in self.core.advance(events.popleft(), time.monotonic_ns()):
                do = DO.get(type(action))
                if do is None:
                    rest.append(action)
                elif (answer := do(self, action)) is not None:
                    events.append(answer)
        return rest

    def all(self) -> list[SessionThread]:
        """Return the sessions that are not over."""
        with self._lock:
            return list(self._sessions.values())

    def needs(self) -> dict[str, Need]:
        """Return what each session needs of the decoder, as far as it is known, by their ids."""
        needs = {session.id: session.need() for session in self.all()}
        return {name: need for name, need in needs.items() if need is not None}

    # -- actions ------------------------------------------------------------------------------------------------------

    def thread_of(self, facts: SessionFacts) -> SessionThread | None:
        """Return the session; None: it is over."""
        return self._sessions.get(facts.id)

    def _start(self, action: ev.StartThread) -> ev.Event | None:
        facts = action.session
        session = self._sessions.get(facts.id)
        if session is None:
            session = CrowdSession(facts, self) if facts.crowd else LoopSession(facts, self)
            self._sessions[facts.id] = session
        if self._single is not None and isinstance(session, LoopSession):
            self._single(session)
            return None
        try:
            session.start(action.first)
        except RuntimeError:
            return ev.NoThread(facts, action.peer)
        return None

    def _forward(self, action: ev.ForwardMessage) -> ev.Event | None:
        session = self.thread_of(action.session)
        try:
            if session is not None:
                session.take(action.message)
        except WireError as error:
            return ev.MessageFailed(action.connection, action.message, error)
        return None

    def _instruct(self, action: ev.InstructLoop) -> ev.Event:
        session = self.thread_of(action.session)
        return ev.InstructionHeard(action.session, action.text, session is not None and session.hear(action.text))

    def _look(self, action: ev.LookAtLoop) -> ev.Event | None:
        session = self.thread_of(action.session)
        standing = None if session is None else session.look()
        return None if standing is None else ev.LoopSeen(action.session, standing)

    def _forget(self, action: ev.ForgetSession) -> None:
        self._sessions.pop(action.session.id, None)

    def _stop(self, action: ev.StopLoop) -> None:
        if (session := self.thread_of(action.session)) is not None:
            session.stop_loop(action.why)

    def _succeed(self, action: ev.SucceedClient) -> None:
        session = self.thread_of(action.session)
        if session is not None and session.env is not None:
            session.env.succeed()


DO: dict[type, Callable[[SessionShell, Any], ev.Event | None]] = {
    ev.SendMessage: lambda shell, action: action.connection.send(action.message),
    ev.DropConnection: lambda shell, action: action.connection.close(),
    ev.NotifyPeople: lambda shell, action: shell.say(action.text),
    ev.ForgetSession: SessionShell._forget,
    ev.StartThread: SessionShell._start,
    ev.ForwardMessage: SessionShell._forward,
    ev.InstructLoop: SessionShell._instruct,
    ev.LookAtLoop: SessionShell._look,
    ev.StopLoop: SessionShell._stop,
    ev.SucceedClient: SessionShell._succeed,
}
