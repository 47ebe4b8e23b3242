"""One client's session as threads run it: the one that opens it and runs its loop, and all that speak to it."""

from __future__ import annotations

import logging
import threading
from typing import Any

from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.serve import errors
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.capacity import Need
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.runs import SessionOwner
from rtcontrol.serve.session_state import LoopStanding, SessionFacts
from rtcontrol_client.wire import Message, WireError

log = logging.getLogger("rtcontrol.serve")


class SessionThread:
    """A session's thread: its turn, its terms, one life of its loop. Decides nothing: `facts` are the core's."""

    env: RemoteEnvironment | None = None
    loop: ControlLoop | None = None  # what a viewer may look at

    def __init__(self, facts: SessionFacts, owner: SessionOwner) -> None:
        self.facts, self.owner = facts, owner
        self.thread: threading.Thread | None = None
        self.needed: Need | None = None  # once it has decided

    @property
    def id(self) -> str:
        """Its name in logs, records and for viewers."""
        return self.facts.id

    @property
    def state(self) -> str:
        """Opening, live, parked or over."""
        return self.facts.life.state

    @property
    def shown_name(self) -> str:
        """What its client calls itself."""
        return self.facts.hello.client.name

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Do what a person says (`OperatorControl.say`), also in a session that opens or waits for its client."""
        return "".join(map(self.answer, self.owner.tell(ev.OperatorRequest(self.facts, word, by, k))))

    def answer(self, action: ev.Action) -> str:
        """Do on this thread what a person said, and return one sentence about it."""
        if isinstance(action, ev.SayToLoop):
            return self.say_to_loop(action)
        return action.text if isinstance(action, ev.AnswerPerson) else ""

    def instruct(self, text: str) -> None:
        """Decide by it. Raises UserError for one that is too long."""
        self.owner.tell(ev.InstructionGiven(self.facts, text))

    def note(self, line: str) -> None:
        """Log the line, as far as the rate allows; how a run ended (its safe call!) always."""
        self.owner.tell(ev.LineNoted(self.facts, line, self.loop is not None and self.loop.phase == "ending"))

    def send(self, message: Message) -> None:
        """Send what the loop has for its client."""
        self.owner.tell(ev.LoopEmitted(self.facts, message))

    def start(self, first: bool) -> None:
        """Open it on a thread of its own, for the `first` time or again. Raises RuntimeError where there is none."""
        self.thread = threading.Thread(target=self._work, args=(self.owner.turns[first],), name=self.id, daemon=True)
        self.thread.start()

    def _work(self, turn: threading.Semaphore) -> None:
        error: WireError | None = None
        try:
            with turn:
                run = self._open()
            if run is not None:
                self.run(run)
        except WireError as refusal:
            error = refusal
        except BaseException as fault:  # also SystemExit of a user's agent
            log.exception("%s failed", self.id)
            error = errors.failure(fault)
        finally:
            self.owner.tell(ev.SessionEnded(self.facts, error))

    def _open(self) -> Any:
        actions = self.owner.tell(ev.TurnCame(self.facts))
        if actions and isinstance(actions[0], ev.NegotiateTerms):
            actions = self.owner.tell(ev.TermsAgreed(self.facts, self.negotiate()))
        return self.open(actions[0].instruction) if actions and isinstance(actions[0], ev.OpenHost) else None

    def warm(self) -> None:
        """The loop waits for the first observation. Raises WireError where there is no room for its ticks."""
        for action in self.owner.tell(ev.LoopWarm(self.facts, self.owner.needs())):
            if isinstance(action, ev.RefuseLoop):
                raise action.error

    @property
    def terms(self) -> Terms:
        """What was agreed."""
        assert isinstance(self.facts.terms, Terms), "it is open"
        return self.facts.terms

    # -- of one loop, or of a crowd -----------------------------------------------------------------------------------

    def negotiate(self) -> Terms:
        """Return the terms of its hello. Raises WireError."""
        raise NotImplementedError

    def open(self, instruction: str | None) -> Any:
        """Return a run that begins with the instruction. Raises WireError."""
        raise NotImplementedError

    def run(self, run: Any) -> None:
        """Run the loop to its end. Raises WireError."""
        raise NotImplementedError

    def take(self, message: Message) -> None:
        """Give a message to its world. Raises WireError."""
        raise NotImplementedError

    def hear(self, text: str) -> bool:
        """Pass on an instruction; returns whether anything comes of it."""
        raise NotImplementedError

    def say_to_loop(self, action: ev.SayToLoop) -> str:
        """Do what a person says, now."""
        raise NotImplementedError

    def look(self) -> LoopStanding | None:
        """Return what is active in its loop; None: that is over."""
        raise NotImplementedError

    def stop_loop(self, why: str) -> None:
        """End its loop soon, if there is one."""
        raise NotImplementedError

    def need(self) -> Need | None:
        """Return what it needs of the decoder, or needed last; None before its first decision."""
        raise NotImplementedError
