"""The thread that runs one client's session; the decisions are in the sessions' core."""

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
    """A session's thread, which negotiates and runs the loop. Methods that the owner calls do not block."""

    terms: Terms  # set once they are negotiated
    loop: ControlLoop | None = None  # also read by viewers

    def __init__(self, facts: Session, owner: SessionOwner) -> None:
        self.facts, self.owner, self.id = facts, owner, facts.id
        self.thread: threading.Thread | None = None
        self.needed: Need | None = None  # set after the first decisions
        self.record = Path()  # the record of the newest run
        self.ran: tuple[str, str] | None = None  # the proven and the newest instruction of a run that ended

    # -- for the loop, and for viewers --------------------------------------------------------------------------------

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Carry out a person's command, even if no loop runs. Return a sentence about the result."""
        return self.owner.tell(ev.Commanded(self.facts, word, by, k))

    def instruct(self, text: str) -> None:
        """Give the session a new instruction. Raises UserError if the text is too long."""
        self.owner.tell(ev.Instructed(self.facts, instruction_text(text)))

    def note(self, line: str) -> None:
        """Log the line if the rate limit allows; lines about the end of a run are always logged."""
        always = self.loop is not None and self.loop.phase == "ending"
        self.owner.tell(ev.Noted(self.facts, line, always))

    def send(self, message: Message) -> None:
        """Send a message of the loop to the client."""
        self.owner.tell(ev.Emitted(self.facts, message))

    def warm(self) -> None:
        """Report that the loop waits for the first observation. Raises WireError if the decoder has no time for it."""
        refusal = self.owner.tell(ev.Warm(self.facts, self.terms.described(), self.owner.needs()))
        if refusal is not None:
            raise refusal

    # -- its thread ---------------------------------------------------------------------------------------------------

    def start(self, first: bool) -> None:
        """Open the session on a new thread, for the `first` time or again. Raises RuntimeError if no thread starts."""
        slot = self.owner.opening_slots[first]
        thread = threading.Thread(target=self._work, args=(slot,), name=self.id, daemon=True)
        thread.start()
        self.thread = thread

    def _work(self, slot: threading.Semaphore) -> None:
        error: WireError | None = None
        try:
            with slot:
                loop = self.open_agreed()
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

    def open_agreed(self) -> CountedLoop | None:
        """Negotiate if necessary and open the loop. Return None if the client has gone. Raises WireError."""
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
        """Return the settings for the client's hello. Raises WireError."""
        options = self.owner.options
        return negotiate(self.facts.hello, options, options.out / self.id)

    @abstractmethod
    def open(self, instruction: str | None) -> CountedLoop:
        """Return a loop that starts with the instruction, and set `record` to its file. Raises WireError."""

    @abstractmethod
    def run(self) -> None:
        """Run the loop to its end. Raises WireError."""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Pass a message to the client's world. Raises WireError."""

    @abstractmethod
    def instruct_loop(self, text: str) -> bool:
        """Give the loop a new instruction. Return False if the loop has ended."""

    @abstractmethod
    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        """Carry out a person's command in the loop, and return a sentence about the result."""

    @abstractmethod
    def stop_loop(self, why: str) -> None:
        """Ask the loop to end with the safe call."""

    @abstractmethod
    def welcome(self, resumed: bool) -> list[Message]:
        """Return the welcome message and the control state of the loop; nothing if the loop has ended."""

    @abstractmethod
    def need(self) -> Need | None:
        """Return how much decoder time the session needs; None before the first decision."""

    @abstractmethod
    def traffic(self) -> dict[str, Any]:
        """Return the counts of messages for the report."""
