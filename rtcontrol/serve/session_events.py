"""What the sessions' core takes (events), and what it answers with (actions): data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rtcontrol.serve.sessions import Agreement, Connection, LoopStanding, Need, Peer, SessionFacts
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import Instruct


@dataclass(slots=True)
class Event:
    """What the core takes."""


@dataclass(slots=True)
class WireEvent(Event):
    """Of one connection."""

    connection: Connection


@dataclass(slots=True)
class SessionEvent(Event):
    """Of one session."""

    session: SessionFacts


@dataclass(slots=True)
class LoopEvent(SessionEvent):
    """Of a session's loop: taken without the server's lock, as it comes in every tick, or with locks of the loop's."""


@dataclass(slots=True)
class Action:
    """What is to be done."""


@dataclass(slots=True)
class SessionAction(Action):
    """The same, to one session."""

    session: SessionFacts


# -- events of connections, of time, and of who runs the server -------------------------------------------------------


@dataclass(slots=True)
class MessageArrived(WireEvent):
    """A message is not decoded yet: may it be?"""


@dataclass(slots=True)
class MessageReceived(WireEvent):
    """A decoded message."""

    message: Message


@dataclass(slots=True)
class MessageFailed(WireEvent):
    """A message could not be decoded (None), or not be taken."""

    message: Message | None
    error: WireError


@dataclass(slots=True)
class Disconnected(WireEvent):
    """The connection is gone, or its key `revoked`: then it has to go."""

    revoked: bool = False


@dataclass(slots=True)
class TimePassed(Event):
    """Time has passed."""


@dataclass(slots=True)
class Drain(Event):
    """Refuse new sessions, and send the others away after the grace, one after the other."""

    grace_ns: int


@dataclass(slots=True)
class Close(Event):
    """The server ends."""


@dataclass(slots=True)
class OperatorRequest(SessionEvent):
    """A person wants pause, resume, stop, confirm or deny. `k`: the tick that is answered."""

    word: str
    by: str
    k: int | None = None


@dataclass(slots=True)
class InstructionGiven(LoopEvent):
    """An instruction of a person at the server."""

    text: str


# -- events of a session's thread -------------------------------------------------------------------------------------


@dataclass(slots=True)
class NoThread(SessionEvent):
    """The session's thread could not be started; `peer` asked for it."""

    peer: Peer | None


@dataclass(slots=True)
class TurnCame(SessionEvent):
    """It is the session's turn to open; `terms`: its hello became these."""

    terms: Agreement | None = None


@dataclass(slots=True)
class LoopAttached(LoopEvent):
    """Its loop is made, and will run."""


@dataclass(slots=True)
class LoopWarm(SessionEvent):
    """Its loop waits for the first observation. `needs`: of all sessions that have decided, by their ids."""

    needs: Mapping[str, Need]


@dataclass(slots=True)
class LoopUnfit(SessionEvent):
    """The decider cannot take the instruction that the run started with."""

    what: str
    remedy: str


@dataclass(slots=True)
class LoopRan(SessionEvent):
    """Its loop is over; `proven`: the last instruction that something was decided by, `newest`: the last of all."""

    proven: str
    newest: str


@dataclass(slots=True)
class SessionEnded(SessionEvent):
    """Its thread is done; `why`: for good."""

    error: WireError | None = None
    why: str | None = None


# -- events of a session's loop ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class LoopEmitted(LoopEvent):
    """The loop has a message for the client."""

    message: Message


@dataclass(slots=True)
class ErrorReported(LoopEvent):
    """The client is to be informed of an error; `what`: why no decision was made of its observation `error.seq`."""

    error: WireError
    what: str | None = None


@dataclass(slots=True)
class InstructionRefused(LoopEvent):
    """The decider cannot take this instruction: the one before (`now`) is active again."""

    text: str
    why: str
    now: str


@dataclass(slots=True)
class SentenceUnderstood(LoopEvent):
    """The interpreter's result for a sentence, for the client. `overtaken`: there is a newer one."""

    sentence: str
    overtaken: bool
    answer: Instruct | WireError


@dataclass(slots=True)
class LineNoted(LoopEvent):
    """A line for the log; `always`: whatever the rate."""

    line: str
    always: bool = False


@dataclass(slots=True)
class InstructionHeard(LoopEvent):
    """The answer to `InstructLoop`: whether anything comes of it."""

    text: str
    heard: bool


@dataclass(slots=True)
class LoopSeen(SessionEvent):
    """The answer to `LookAtLoop`."""

    standing: LoopStanding


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SendMessage(Action):
    """Send it."""

    connection: Connection
    message: Message


@dataclass(slots=True)
class DropConnection(Action):
    """Close the connection."""

    connection: Connection


@dataclass(slots=True)
class NotifyPeople(Action):
    """A line for people."""

    text: str


@dataclass(slots=True)
class ForwardMessage(SessionAction):
    """Give the message to the session's world; what that refuses is `MessageFailed`."""

    connection: Connection
    message: Message


@dataclass(slots=True)
class InstructLoop(SessionAction):
    """Decide by this text from now on. The answer: `InstructionHeard`."""

    text: str


@dataclass(slots=True)
class LookAtLoop(SessionAction):
    """What is active in the session's loop? The answer: `LoopSeen`, or none where the loop is over."""


@dataclass(slots=True)
class StartThread(SessionAction):
    """Open the session on its own thread, `first` or again. Where there is none to be had: `NoThread`."""

    peer: Peer | None
    first: bool


@dataclass(slots=True)
class StopLoop(SessionAction):
    """End the loop soon, with the safe call."""

    why: str


@dataclass(slots=True)
class SucceedClient(SessionAction):
    """Another client takes the place of the one that is gone, in a new epoch."""


@dataclass(slots=True)
class ForgetSession(SessionAction):
    """The session is over."""


# Actions for the caller of `advance` alone.


@dataclass(slots=True)
class IgnoreMessage(Action):
    """Do not decode the message."""


@dataclass(slots=True)
class NegotiateTerms(SessionAction):
    """Make the hello terms: `TurnCame` with them, or `SessionEnded`."""


@dataclass(slots=True)
class OpenHost(SessionAction):
    """Open the session's host and run its loop, by this instruction first (None: the terms')."""

    instruction: str | None


@dataclass(slots=True)
class RefuseLoop(Action):
    """Raise it where the loop waits: its run is over."""

    error: WireError


@dataclass(slots=True)
class SayToLoop(SessionAction):
    """Do what a person says now, on this thread."""

    word: str
    by: str
    k: int | None


@dataclass(slots=True)
class AnswerPerson(SessionAction):
    """Answer the person."""

    text: str
