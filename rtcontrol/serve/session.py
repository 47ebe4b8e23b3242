"""One client's session, as its thread runs it. Decides nothing: the core does."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rtcontrol.loop.loop import ControlLoop
from rtcontrol.serve import refusals
from rtcontrol.serve.negotiate import Terms, negotiate
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.runs import CountedLoop, finish
from rtcontrol.serve.sessions import Need, Session, SessionRunner
from rtcontrol_client.wire import Message, WireError

log = logging.getLogger("rtcontrol.serve")


class SessionThread(SessionRunner, ABC):
    """A session's thread: its turn, its terms, one run of its loop."""

    loop: ControlLoop | None = None  # what a viewer may look at

    def __init__(self, facts: Session, owner: SessionOwner) -> None:
        self.facts, self.owner = facts, owner
        self.agreed: Terms | None = None
        self.thread: threading.Thread | None = None
        self.needed: Need | None = None  # once it has decided
        self.record = Path()  # of its newest run

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

    @property
    def terms(self) -> Terms:
        """What was agreed."""
        assert self.agreed is not None, "it is open"
        return self.agreed

    def described(self) -> str:
        return self.terms.described()

    # -- for the loop, and for viewers --------------------------------------------------------------------------------

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Do what a person says (`OperatorControl.say`), also in a session that opens or waits for its client, and
        return one sentence about it."""
        return self.owner.tell(self.owner.core.command, self.facts, word, by, k)

    def instruct(self, text: str) -> None:
        """Decide by it. Raises UserError for one that is too long."""
        self.owner.report(self.owner.core.instruct, self.facts, text)

    def note(self, line: str) -> None:
        """Log the line, as far as the rate allows; how a run ended (its safe call!) always."""
        always = self.loop is not None and self.loop.phase == "ending"
        self.owner.report(self.owner.core.note, self.facts, line, always)

    def send(self, message: Message) -> None:
        """Send what the loop has for its client."""
        self.owner.report(self.owner.core.emitted, self.facts, message)

    def warm(self) -> None:
        """The loop waits for the first observation. Raises WireError where there is no room for its ticks."""
        self.owner.tell(self.owner.core.warm, self.facts)

    # -- its thread ---------------------------------------------------------------------------------------------------

    def start(self, first: bool) -> bool:
        self.thread = threading.Thread(target=self._work, args=(self.owner.turns[first],), name=self.id, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            return False
        return True

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
            log.exception("%s failed", self.id)
            error = refusals.failure(fault)
        finally:
            self.owner.tell(self.owner.core.ended, self.facts, error)

    def opened(self) -> CountedLoop | None:
        """Return a loop by the session's terms; None if its client has gone. Raises WireError."""
        if self.facts.life.gone:
            return None
        if self.agreed is None:
            self.agreed = self.negotiate()
        opens = self.owner.tell(self.owner.core.opens, self.facts)
        return self.open(self.facts.instructions.first) if opens else None

    def _run(self, loop: CountedLoop) -> None:
        try:
            self.run()
        finally:
            wire = {"client": self.facts.hello.client.model_dump(), "session": self.id}
            if failed := finish(loop, self.record, wire | {"refused": dict(self.facts.refused)} | self.traffic()):
                self.owner.say(f"{self.id}: {failed}")
            self.owner.stats.end(loop)

    def negotiate(self) -> Terms:
        """Return the terms of its hello. Raises WireError."""
        options = self.owner.options
        return negotiate(self.facts.hello, options, options.out / self.id)

    def restart(self) -> None:
        """Expect another process of the client; a crowd ends with its client."""

    # -- of one loop, or of a crowd -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self, instruction: str | None) -> CountedLoop:
        """Return a loop that starts with the instruction, and its record in `record`. Raises WireError."""

    @abstractmethod
    def run(self) -> None:
        """Run the loop to its end. Raises WireError."""

    @abstractmethod
    def traffic(self) -> dict[str, Any]:
        """Return counts of its messages, for the report."""
