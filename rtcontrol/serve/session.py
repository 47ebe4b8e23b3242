"""One client's session, as its thread runs it. Decides nothing: the core does."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.models.errors import UserError
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.negotiate import Terms, failure, negotiate
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.runs import CountedLoop, finish
from rtcontrol.serve.sessions import Need, Session
from rtcontrol_client.wire import Message, WireError

log = logging.getLogger("rtcontrol.serve")


class SessionThread(ABC):
    """A session's thread: its turn, its terms, one run of its loop. What the owner calls does not block."""

    terms: Terms  # once they are agreed on
    loop: ControlLoop | None = None  # what a viewer may look at

    def __init__(self, facts: Session, owner: SessionOwner) -> None:
        self.facts, self.owner, self.id = facts, owner, facts.id
        self.thread: threading.Thread | None = None
        self.needed: Need | None = None  # once it has decided
        self.record = Path()  # of its newest run
        self.ran: tuple[str, str] | None = None  # the instructions of a run that ended

    # -- for the loop, and for viewers --------------------------------------------------------------------------------

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Carry out a person's command, also where no loop runs. Return a sentence about it."""
        return self.owner.tell(ev.Commanded(self.facts, word, by, k))

    def instruct(self, text: str) -> None:
        """Decide by it. Raises UserError for one that is too long."""
        self.owner.tell(ev.Instructed(self.facts, instruction_text(text)))

    def note(self, line: str) -> None:
        """Log the line, as far as the rate allows; how a run ended (its safe call!) always."""
        always = self.loop is not None and self.loop.phase == "ending"
        self.owner.tell(ev.Noted(self.facts, line, always))

    def send(self, message: Message) -> None:
        """Send what the loop has for its client."""
        self.owner.tell(ev.Emitted(self.facts, message))

    def warm(self) -> None:
        """The loop waits for the first observation. Raises WireError where there is no room for its ticks."""
        refusal = self.owner.tell(ev.Warm(self.facts, self.terms.described(), self.owner.needs()))
        if refusal is not None:
            raise refusal

    # -- its thread ---------------------------------------------------------------------------------------------------

    def start(self, first: bool) -> None:
        """Open the session on its thread, for the `first` time or again. Raises RuntimeError without a thread."""
        turn = self.owner.turns[first]
        thread = threading.Thread(target=self._work, args=(turn,), name=self.id, daemon=True)
        thread.start()
        self.thread = thread

    def _work(self, turn: threading.Semaphore) -> None:
        error: WireError | None = None
        try:
            with turn:
                loop = self.opened()
            if loop is not None:
                self._run(loop)
        except WireError as refusal:
            error = refusal
        except BaseException as fault:  # also SystemExit of a user's agent
            if not isinstance(fault, UserError):
                log.exception("%s failed", self.id)
            error = failure(fault, self.facts.life.welcomed)
        finally:
            self.owner.tell(ev.Ended(self.facts, error, ran=self.ran))

    def opened(self) -> CountedLoop | None:
        """Return a loop by the session's terms; None if its client has gone. Raises WireError."""
        if self.facts.life.gone:
            return None
        if not self.facts.agreed:
            self.terms = self.negotiate()
        self.ran = None
        opens = self.owner.tell(ev.Agreed(self.facts))
        return self.open(self.facts.instructions.first) if opens else None

    def _run(self, loop: CountedLoop) -> None:
        try:
            self.run()
        finally:
            facts = self.facts
            wire = {"client": facts.hello.client.model_dump(), "session": facts.id, "refused": dict(facts.refused)}
            if failed := finish(loop, self.record, wire | self.traffic()):
                self.owner.say(f"{self.id}: {failed}")
            self.owner.stats.end(loop)

    def negotiate(self) -> Terms:
        """Return the terms of its hello. Raises WireError."""
        options = self.owner.options
        return negotiate(self.facts.hello, options, options.out / self.id)

    @abstractmethod
    def open(self, instruction: str | None) -> CountedLoop:
        """Return a loop that starts with the instruction, and its record in `record`. Raises WireError."""

    @abstractmethod
    def run(self) -> None:
        """Run the loop to its end. Raises WireError."""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Pass a message to the client's world. Raises WireError."""

    @abstractmethod
    def instruct_loop(self, text: str) -> bool:
        """Decide by this text from now on. Return False if the loop is over."""

    @abstractmethod
    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        """Carry out a person's command now, and return a sentence about it."""

    @abstractmethod
    def stop_loop(self, why: str) -> None:
        """End the loop soon, with the safe call."""

    @abstractmethod
    def welcome(self, resumed: bool) -> list[Message]:
        """Return the welcome to what is active in the loop, then what people did; nothing if the loop is over."""

    @abstractmethod
    def need(self) -> Need | None:
        """Return what it needs of the decoder, or needed last; None before its first decision."""

    @abstractmethod
    def traffic(self) -> dict[str, Any]:
        """Return counts of its messages, for the report."""
