"""What a session's loop reports, as events of the sessions' core."""

from __future__ import annotations

from rtcontrol.loop.events import LoopReport
from rtcontrol.loop.interpreter import Understood
from rtcontrol.loop.options import Listener
from rtcontrol.serve import errors, refusals
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.session import SessionThread


class SessionListener(Listener):
    """Passes on to the core what a session's loop reports."""

    def __init__(self, session: SessionThread) -> None:
        self._session = session

    def report(self, what: LoopReport) -> None:
        session, facts, tell = self._session, self._session.facts, self._session.owner.tell
        if session.loop is None or session.env is None:
            return
        if what.what == "accepted":
            session.env.accepted(what.text)
        elif what.what == "refused":
            tell(ev.InstructionRefused(facts, what.text, what.why, session.loop.instruction))
        elif what.what == "doubted":
            tell(ev.ErrorReported(facts, refusals.unsure(what.why)))
        else:
            tell(ev.ControlChanged(facts, errors.control_of(session.loop.operator, facts.token)))

    def understood(self, result: Understood) -> None:
        session, loop = self._session, self._session.loop
        if loop is None or loop.interpretation is None:
            return
        token, interpreter = session.facts.token, loop.interpretation.interpreter
        known = result.text is not None
        answer = errors.understood_as(result, token) if known else errors.not_understood(result, interpreter)
        session.owner.tell(ev.SentenceUnderstood(session.facts, result.said, result.why == "overtaken", answer))
