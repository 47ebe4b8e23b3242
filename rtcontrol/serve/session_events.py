"""Data classes for the events that the sessions' core takes and the actions that it returns to its shell."""

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
    """A message has arrived, not decoded yet. Answer: True if the rate limit allows it."""

    __slots__ = ()


@dataclass(slots=True)
class Received(OfConnection):
    """A message was decoded."""

    message: Message


@dataclass(slots=True)
class Failed(OfConnection):
    """A message could not be decoded (`message` is None), or the session refused it."""

    error: WireError
    message: Message | None = None


@dataclass(slots=True)
class Disconnected(OfConnection):
    """The connection is gone, or its key was `revoked`."""

    revoked: bool = False


# -- events of a session ----------------------------------------------------------------------------------------------


class Agreed(OfSession):
    """The settings are negotiated. Answer: True if the session is to open, with `instructions.first`."""

    __slots__ = ()


class Attached(OfSession):
    """The loop has been created and will run."""

    __slots__ = ()


@dataclass(slots=True)
class Warm(OfSession):
    """The loop waits for its first observation. Answer: a WireError (busy) if the loop must not run. `described` is a
    line about the settings; `needs` is the decoder time of all sessions."""

    described: str
    needs: Mapping[Session, Need | None]


@dataclass(slots=True)
class Greeted(OfSession):
    """The answer to `Greet`: the welcome and the control state; empty if the loop has ended."""

    messages: list[Message]


@dataclass(slots=True)
class Emitted(OfSession):
    """The loop has a message for its client."""

    message: Message


@dataclass(slots=True)
class Wrong(OfSession):
    """The loop has an error for its client. `undecided`: why no decision was made on observation `error.seq`."""

    error: WireError
    undecided: str | None = None


@dataclass(slots=True)
class GaveWay(OfSession):
    """The decider rejected an instruction; the previous one is active again."""

    why: str


@dataclass(slots=True)
class Noted(OfSession):
    """The loop has a log line for people, which is shown `always`, or if the rate limit allows."""

    line: str
    always: bool = False


@dataclass(slots=True)
class Commanded(OfSession):
    """A person gives a command; confirm and deny are about tick `k`. Answer: a sentence about the result."""

    word: str
    by: str
    k: int | None = None


@dataclass(slots=True)
class Instructed(OfSession):
    """A person at the server gives an instruction. `missed`: the loop had ended when `InstructLoop` arrived."""

    text: str
    missed: bool = False


@dataclass(slots=True)
class Ended(OfSession):
    """The session's thread has ended, for good if `why` is given. `ran`: after a run, the last instruction that a
    decision was based on, and the newest instruction."""

    error: WireError | None = None
    why: str | None = None
    ran: tuple[str, str] | None = None


# -- events of the server ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Drains:
    """The server refuses new sessions, and sends existing ones to other servers after the grace."""

    grace_ns: int


class Closes:
    """The server shuts down and ends all sessions."""


class Woke:
    """The core's `wake_ns` has been reached."""


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """Return this to the caller who reported the event."""

    value: Any


@dataclass(slots=True)
class Say:
    """Show people a log line."""

    line: str


@dataclass(slots=True)
class Send(OfConnection):
    """Send a message, without blocking."""

    message: Message


class Close(OfConnection):
    """Close the connection once sent messages have left."""

    __slots__ = ()


@dataclass(slots=True)
class Deliver(OfConnection):
    """Pass a message to the world of a session. Results in `Failed` if the world refuses the message."""

    session: Session
    message: Message


@dataclass(slots=True)
class Start(OfSession):
    """Open the session on a thread, for the `first` time or again. Results in `Ended` if no thread starts."""

    first: bool


@dataclass(slots=True)
class InstructLoop(OfSession):
    """Give the loop a new instruction. Results in a `missed` `Instructed` if the loop has ended."""

    text: str


@dataclass(slots=True)
class CommandLoop(OfSession):
    """Carry out a person's command in the loop. The result is the answer, or is `noted` if no caller waits."""

    word: str
    by: str
    k: int | None
    noted: bool


@dataclass(slots=True)
class StopLoop(OfSession):
    """Ask the loop to end with the safe call."""

    why: str


@dataclass(slots=True)
class Greet(OfSession):
    """Ask the session for its welcome message; results in `Greeted`."""

    resumed: bool
