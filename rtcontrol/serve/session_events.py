"""The events that `SessionCore` processes, and the actions that it returns and `SessionOwner` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.serve.sessions import Connection, DecoderNeed, Session
from rtcontrol_client.wire import Message, WireError


@dataclass(slots=True)
class WithConnection:
    """The base of events and actions that concern one connection."""

    connection: Connection


@dataclass(slots=True)
class WithSession:
    """The base of events and actions that concern one session."""

    session: Session


# -- events of a connection -------------------------------------------------------------------------------------------


class Arrived(WithConnection):
    """A message has arrived, and is not decoded yet. `Answer` is True if no limit of rate and time is exceeded."""

    __slots__ = ()


@dataclass(slots=True)
class Received(WithConnection):
    """A message was decoded."""

    message: Message


@dataclass(slots=True)
class TimeSpent(WithConnection):
    """Reading and processing a message took this processor time."""

    ns: int


@dataclass(slots=True)
class Failed(WithConnection):
    """A message could not be decoded (`message` is None), or the session refused it."""

    error: WireError
    message: Message | None = None


@dataclass(slots=True)
class Disconnected(WithConnection):
    """The connection was lost, or the client's CURVE key was `revoked`."""

    revoked: bool = False


# -- events of a session ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Negotiated(WithSession):
    """The settings were negotiated. `Answer` is True if the session must open, with `instructions.first`. `paused`: who
    paused or stopped the robot of this name, so that the session starts paused; empty if it may act."""

    paused: str = ""


class LoopCreated(WithSession):
    """The session's control loop was created, and will run."""

    __slots__ = ()


@dataclass(slots=True)
class WarmedUp(WithSession):
    """The loop made its warm-up decisions, and waits for the first observation. `Answer` is a WireError (busy) if the
    loop must not run. `summary` describes the settings, `hz` is the rate; `decoder_needs` has the decoder time of all
    sessions."""

    summary: str
    decoder_needs: Mapping[Session, DecoderNeed | None]
    hz: float = 0.0


@dataclass(slots=True)
class WelcomeReady(WithSession):
    """The session returned its welcome, perhaps with a control message; `messages` is empty if the loop has ended."""

    messages: list[Message]


@dataclass(slots=True)
class LoopMessage(WithSession):
    """The loop sends a message to its client."""

    message: Message


@dataclass(slots=True)
class LoopError(WithSession):
    """The loop sends an error to its client. `undecided` is the reason if observation `error.seq` got no decision."""

    error: WireError
    undecided: str | None = None


@dataclass(slots=True)
class InstructionRejected(WithSession):
    """The decider rejected an instruction; the previous instruction is active again."""

    reason: str


@dataclass(slots=True)
class LogRequested(WithSession):
    """The loop logs a line for people. Unless `always` is set, the line is dropped if the rate limit is exceeded."""

    line: str
    always: bool = False


@dataclass(slots=True)
class Commanded(WithSession):
    """A person gives a command from the interface `by` ("page", "keyboard"). `k` is the tick to confirm or deny.
    `Answer` is a sentence about the result."""

    command: str
    by: str
    k: int | None = None


@dataclass(slots=True)
class Instructed(WithSession):
    """A person at the server gives an instruction. `missed` is True if the loop ended before it received the text."""

    text: str
    missed: bool = False


@dataclass(slots=True)
class Ended(WithSession):
    """The session's thread has ended. `run_instructions` are the last instruction that a decision was based on, and the
    newest instruction; None if no loop ran."""

    error: WireError | None = None
    reason: str | None = None  # if set, the session ends and cannot be resumed
    run_instructions: tuple[str, str] | None = None


# -- events of the server ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DrainStarted:
    """The server refuses new sessions. After the grace period, it makes existing clients change to other servers."""

    grace_ns: int


class CloseStarted:
    """The server shuts down and ends all sessions."""


class TimerFired:
    """The time `SessionCore.wake_ns` has come: timers are due."""


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """Return this value to the caller of `SessionOwner.handle`."""

    value: Any


@dataclass(slots=True)
class Say:
    """Print a log line for people."""

    line: str


@dataclass(slots=True)
class Send(WithConnection):
    """Send a message, without blocking."""

    message: Message


class Close(WithConnection):
    """Close the connection after the queued messages were sent."""

    __slots__ = ()


@dataclass(slots=True)
class Deliver(WithConnection):
    """Pass a message to the client's world of a session. The result is a `Failed` event if the world refuses it."""

    session: Session
    message: Message


@dataclass(slots=True)
class Start(WithSession):
    """Open the session on a new thread; `first` is False if it resumes. If no thread starts, the result is `Ended`."""

    first: bool


@dataclass(slots=True)
class InstructLoop(WithSession):
    """Give the loop a new instruction. If the loop has ended, the result is `Instructed` with `missed`."""

    text: str


@dataclass(slots=True)
class CommandLoop(WithSession):
    """Carry out a person's command in the loop. The resulting sentence is logged (`logged`) or is the answer."""

    command: str
    by: str
    k: int | None
    logged: bool


@dataclass(slots=True)
class KeepCommand:
    """Keep a person's pause or stop of the robot, or its end, for the robot's next program and the next server."""

    robot: str
    command: str
    by: str


@dataclass(slots=True)
class StopLoop(WithSession):
    """Make the loop end soon, after the safe call."""

    reason: str


@dataclass(slots=True)
class RequestWelcome(WithSession):
    """Request the session's welcome message. The result is a `WelcomeReady` event."""

    resumed: bool
