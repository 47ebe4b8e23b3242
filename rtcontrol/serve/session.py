"""The thread of a client's session. It negotiates the settings, and runs the control loop."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.models.errors import UserError
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.negotiate import SessionTerms, negotiate, session_error
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.runs import CountedLoop, write_report
from rtcontrol.serve.sessions import DecoderNeed, Session
from rtcontrol_client.wire import Message, WireError

log = logging.getLogger("rtcontrol.serve")


class SessionThread(ABC):
    """The thread of a session. The methods that `SessionOwner` calls do not block."""

    terms: SessionTerms  # the negotiated settings, which are set by the negotiation
    loop: ControlLoop | None = None  # the current or last loop, which the live view also reads

    def __init__(self, session: Session, owner: SessionOwner) -> None:
        self.session, self.owner, self.id = session, owner, session.id
        self.thread: threading.Thread | None = None
        self.last_need: DecoderNeed | None = None  # None before the first decision
        self.record = Path()  # the record file of the newest run
        self.run_instructions: tuple[str, str] | None = None  # becomes this field of `ev.SessionEnded` after a run

    def command(self, command: str, by: str, k: int | None = None) -> str:
        """Execute a person's command, such as `pause`, even if no loop runs. Return a sentence about the result."""
        return self.owner.handle(ev.CommandReceived(self.session, command, by, k))

    def instruct(self, text: str) -> None:
        """Set a new instruction for the session. Raises UserError if the text is too long."""
        self.owner.handle(ev.InstructionReceived(self.session, instruction_text(text)))

    def log_line(self, line: str) -> None:
        """Log the line, unless the rate limit is exceeded. Lines about the end of a run are always logged."""
        always = self.loop is not None and self.loop.phase == "ending"
        self.owner.handle(ev.LogRequested(self.session, line, always))

    def send(self, message: Message) -> None:
        """Send a message to the client."""
        self.owner.handle(ev.LoopMessage(self.session, message))

    def slow_down(self) -> None:
        """Pause this thread, whose client sets the pace, if it uses more than its part of the time."""
        if pause_s := self.owner.handle(ev.ThreadTime(self.session, time.thread_time_ns())):
            time.sleep(pause_s)

    def report_warmed_up(self) -> None:
        """Report that the loop is warmed up. Raises WireError (busy) if the decoder is too busy for this session."""
        refusal = self.owner.handle(
            ev.LoopWarmedUp(self.session, self.terms.summary(), self.owner.decoder_needs(), self.terms.ticks_per_s)
        )
        if refusal is not None:
            raise refusal

    def start(self, first: bool) -> None:
        """Start a thread that opens the session. `first`: False if the session resumes. Raises RuntimeError."""
        slot = self.owner.opening_slots[first]
        thread = threading.Thread(target=self._run_thread, args=(slot,), name=self.id, daemon=True)
        thread.start()
        self.thread = thread

    def _run_thread(self, slot: threading.Semaphore) -> None:
        error: WireError | None = None
        try:
            with slot:
                loop = self.negotiate_and_open()
            if loop is not None:
                self._run(loop)
        except WireError as refusal:
            error = refusal
        except BaseException as fault:  # a user's agent may raise any error, even SystemExit
            if not isinstance(fault, UserError):
                log.exception("%s failed", self.id)
            error = session_error(fault, self.session.life.welcomed)
        finally:
            self.owner.handle(ev.SessionEnded(self.session, error, run_instructions=self.run_instructions))

    def negotiate_and_open(self) -> CountedLoop | None:
        """Negotiate if necessary, and create the loop. Return None if the client has disconnected. Raises WireError."""
        if self.session.life.client_gone:
            return None
        if not self.session.negotiated:
            self.terms = self.negotiate()
        self.run_instructions = None
        robot = self.session.hello.robot
        paused = "" if robot is None else self.owner.paused_robots.reason(robot)
        should_open = self.owner.handle(ev.SettingsNegotiated(self.session, paused))
        return self.create_loop(self.session.instructions.first) if should_open else None

    def _run(self, loop: CountedLoop) -> None:
        try:
            self.run()
        finally:
            session = self.session
            client = session.hello.client.model_dump()
            wire = {"client": client, "session": session.id, "refused": dict(session.refused)}
            if failed := write_report(loop, self.record, wire | self.message_counts()):
                self.owner.log_line(f"{self.id}: {failed}")
            self.owner.stats.move_to_ended(loop)

    def negotiate(self) -> SessionTerms:
        """Return the settings for the client's hello. Raises WireError."""
        options = self.owner.options
        return negotiate(self.session.hello, options, options.out / self.id)

    @abstractmethod
    def create_loop(self, instruction: str | None) -> CountedLoop:
        """Create a loop that starts with the instruction, and set `record` to the loop's file. Raises WireError."""

    @abstractmethod
    def run(self) -> None:
        """Run the loop until it ends. Raises WireError."""

    @abstractmethod
    def deliver(self, message: Message) -> None:
        """Pass a message of the client, such as an observation, to the session's environment. Raises WireError."""

    @abstractmethod
    def instruct_loop(self, text: str) -> bool:
        """Pass a new instruction to the loop. Return False if the loop has ended."""

    @abstractmethod
    def command_loop(self, command: str, by: str, k: int | None) -> str:
        """Execute a person's command in the loop. Return a sentence about the result."""

    @abstractmethod
    def stop_loop(self, reason: str) -> None:
        """Make the loop end soon, after the safe call."""

    @abstractmethod
    def welcome_messages(self, resumed: bool) -> list[Message]:
        """Return the welcome message, and a control message if the loop is paused or a call waits for confirmation.
        Return an empty list if the loop has ended."""

    @abstractmethod
    def decoder_need(self) -> DecoderNeed | None:
        """Return how much of the decoder's time the session needs, or None before the first decision."""

    @abstractmethod
    def message_counts(self) -> dict[str, Any]:
        """Return the counts of sent and received messages for the report."""
