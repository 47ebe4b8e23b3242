"""What the sessions' core takes (events), and returns for its shell to do (actions). Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.serve.sessions import Connection, Need, Session
from rtcontrol_client.wire import Message, WireError


@dataclass(slots=True)
class OfConnection:
    """An event or action of one connection."""

    connection: Connection


@dataclass(slots=True)
class OfSession:
    """An event or action of one session."""

    session: Session


# -- events of a connection -------------------------------------------------------------------------------------------


class Arrived(OfConnection):
    """A message came, not decoded yet. Answer: True if its rate allows it."""

    __slots__ = ()


@dataclass(slots=True)
class Received(OfConnection):
    """A message was decoded."""

    message: Message


@dataclass(slots=True)
class Failed(OfConnection):
    """A message could not be decoded (None), or not be taken."""

    error: WireError
    message: Message | None = None


@dataclass(slots=True)
class Disconnected(OfConnection):
    """The connection is gone, or its key was `revoked`."""

    revoked: bool = False


# -- events of a session ----------------------------------------------------------------------------------------------


class Agreed(OfSession):
    """The hello became terms. Answer: True if the session is to open by them, with `instructions.first`."""

    __slots__ = ()


class Attached(OfSession):
    """The loop exists, and will run."""

    __slots__ = ()


@dataclass(slots=True)
class Warm(OfSession):
    """The loop waits for its first observation. Answer: a WireError (busy) if it must not run. `described`: the terms
    in words; `needs`: of all sessions."""

    described: str
    needs: Mapping[Session, Need | None]


@dataclass(slots=True)
class Greeted(OfSession):
    """Answers `Greet`: the welcome, then what people did; nothing if the loop is over."""

    messages: list[Message]


@dataclass(slots=True)
class Emitted(OfSession):
    """The loop has a message for its client."""

    message: Message


@dataclass(slots=True)
class Wrong(OfSession):
    """The loop has an error for its client. `undecided`: why no decision was made of observation `error.seq`."""

    error: WireError
    undecided: str | None = None


@dataclass(slots=True)
class GaveWay(OfSession):
    """The decider cannot take an instruction; the one before is active again."""

    why: str


@dataclass(slots=True)
class Noted(OfSession):
    """The loop has a line for people, to be shown `always`, or as far as the rate of lines allows."""

    line: str
    always: bool = False


@dataclass(slots=True)
class Commanded(OfSession):
    """A person pauses, resumes, stops, confirms or denies (the call of tick `k`). Answer: a sentence about it."""

    word: str
    by: str
    k: int | None = None


@dataclass(slots=True)
class Instructed(OfSession):
    """A person at the server gives an instruction; or `missed`: the loop was over when `InstructLoop` came."""

    text: str
    missed: bool = False


@dataclass(slots=True)
class Ended(OfSession):
    """The session's thread is done, for good if there is a `why`. `ran`: if there was a loop, the last instruction that
    a decision was made by, and the last of all."""

    error: WireError | None = None
    why: str | None = None
    ran: tuple[str, str] | None = None


# -- events of the server ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Drains:
    """The server takes no new sessions, and sends the others away after the grace."""

    grace_ns: int


class Closes:
    """The server ends, and all sessions with it."""


class Woke:
    """`wake_ns` is reached."""


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """Return this to the caller who reported the event."""

    value: Any


@dataclass(slots=True)
class Say:
    """Show people a line."""

    line: str


@dataclass(slots=True)
class Send(OfConnection):
    """Send a message, without blocking."""

    message: Message


class Close(OfConnection):
    """Close the connection after what was sent."""

    __slots__ = ()


@dataclass(slots=True)
class Deliver(OfConnection):
    """Pass a message to the world of a session. `Failed` if it is refused there."""

    session: Session
    message: Message


@dataclass(slots=True)
class Start(OfSession):
    """Open the session on a thread, for the `first` time or again. `Ended` where no thread starts."""

    first: bool


@dataclass(slots=True)
class InstructLoop(OfSession):
    """Decide by the text from now on. `Instructed`, `missed` if the loop is over."""

    text: str


@dataclass(slots=True)
class CommandLoop(OfSession):
    """Carry out a person's command now. The sentence about it is the answer, or `Noted` where no caller waits."""

    word: str
    by: str
    k: int | None
    noted: bool


@dataclass(slots=True)
class StopLoop(OfSession):
    """End the loop soon, with the safe call."""

    why: str


@dataclass(slots=True)
class Greet(OfSession):
    """Answer with `Greeted`: what is active in the loop."""

    resumed: bool
