"""One client's session as threads run it: the one that opens it and runs its loop, and all that speak to it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import refusals
from rtcontrol.serve.negotiate import Terms, negotiate
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.runs import CountedLoop, Totals, finish
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import LoopStanding, Need, SessionFacts, Turn
from rtcontrol_client.wire import Message, WireError

log = logging.getLogger("rtcontrol.serve")
P = ParamSpec("P")
T = TypeVar("T")


class SessionOwner(Protocol):
    """What a session's threads need of the server that it belongs to."""

    options: ServeOptions
    pool: DecoderPool
    watch: PauseWatch
    core: SessionCore
    stats: Totals
    say: Callable[[str], None]
    interpreters: Interpreters
    turns: dict[bool, threading.Semaphore]  # of those that open for the first time (True), or again

    def tell(self, take: Callable[Concatenate[Turn, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Let this method of the core take what happened, and do what it says."""

    def report(self, take: Callable[Concatenate[Turn, P], T], *given: P.args, **named: P.kwargs) -> T:
        """The same without the server's lock: what happens in every tick, or with locks of the loop's."""

    def needs(self) -> dict[str, Need]:
        """Return what each session needs of the decoder, as far as it is known, by their ids."""


class SessionThread(ABC):
    """A session's thread: its turn, its terms, one life of its loop. Decides nothing: `facts` are the core's."""

    loop: ControlLoop | None = None  # what a viewer may look at

    def __init__(self, facts: SessionFacts, owner: SessionOwner) -> None:
        self.facts, self.owner = facts, owner
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
        assert isinstance(self.facts.terms, Terms), "it is open"
        return self.facts.terms

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Do what a person says (`OperatorControl.say`), also in a session that opens or waits for its client, and
        return one sentence about it."""
        answer = self.owner.tell(self.owner.core.command, self.facts, word, by, k)
        return self.say_to_loop(word, by, k) if answer is None else answer

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

    def start(self, first: bool) -> None:
        """Open it on its own thread, for the `first` time or again. Raises RuntimeError where there is none."""
        self.thread = threading.Thread(target=self._work, args=(self.owner.turns[first],), name=self.id, daemon=True)
        self.thread.start()

    def _work(self, turn: threading.Semaphore) -> None:
        error: WireError | None = None
        try:
            with turn:
                loop = self._open()
            if loop is not None:
                self._run(loop)
        except WireError as refusal:
            error = refusal
        except BaseException as fault:  # also SystemExit of a user's agent
            log.exception("%s failed", self.id)
            error = refusals.failure(fault)
        finally:
            self.owner.tell(self.owner.core.ended, self.facts, error)

    def _open(self) -> CountedLoop | None:
        facts, owner = self.facts, self.owner
        if facts.life.gone or not owner.tell(owner.core.opens, facts, facts.terms or self.negotiate()):
            return None
        return self.open(facts.instructions.began)

    def _run(self, loop: CountedLoop) -> None:
        try:
            self.run()
        finally:
            wire = {"client": self.facts.hello.client.model_dump(), "session": self.id}
            if failed := finish(loop, self.record, wire | {"refused": dict(self.facts.refused)} | self.traffic()):
                self.owner.say(f"{self.id}: {failed}")
            self.owner.stats.end(loop)

    def warm(self) -> None:
        """The loop waits for the first observation. Raises WireError where there is no room for its ticks."""
        self.owner.tell(self.owner.core.warm, self.facts, self.owner.needs())

    def negotiate(self) -> Terms:
        """Return the terms of its hello. Raises WireError."""
        options = self.owner.options
        return negotiate(self.facts.hello, options, options.out / self.id)

    # -- of one loop, or of a crowd -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self, instruction: str | None) -> CountedLoop:
        """Return a loop that starts with the instruction, and its record in `record`. Raises WireError."""

    @abstractmethod
    def run(self) -> None:
        """Run the loop to its end. Raises WireError."""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Give a message to its world. Raises WireError."""

    @abstractmethod
    def instruct_loop(self, text: str) -> bool:
        """Pass on an instruction; returns whether anything comes of it."""

    @abstractmethod
    def say_to_loop(self, word: str, by: str, k: int | None) -> str:
        """Do what a person says, now."""

    @abstractmethod
    def look(self) -> LoopStanding | None:
        """Return what is active in its loop; None: that is over."""

    @abstractmethod
    def stop_loop(self, why: str) -> None:
        """End its loop soon, if there is one."""

    @abstractmethod
    def need(self) -> Need | None:
        """Return what it needs of the decoder, or needed last; None before its first decision."""

    @abstractmethod
    def traffic(self) -> dict[str, Any]:
        """Return counts of its messages, for the report."""
