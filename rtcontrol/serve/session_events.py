"""The events that `SessionCore` processes, and the actions that `SessionCore` returns and `SessionOwner` executes."""

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


@dataclass(slots=True)
class MessageArrived(WithConnection):
    """The event that a message of `size` bytes arrived, before it is decoded. `ReturnValue`: True if the server may
    process it."""

    size: int = 0


@dataclass(slots=True)
class MessageReceived(WithConnection):
    """The event that a message was received and decoded."""

    message: Message


@dataclass(slots=True)
class TimeSpent(WithConnection):
    """The event that decoding and processing a message took this processor time."""

    ns: int


@dataclass(slots=True)
class MessageRefused(WithConnection):
    """The event that a message could not be decoded (`message` is None), or that the session refused the message."""

    error: WireError
    message: Message | None = None


@dataclass(slots=True)
class ConnectionLost(WithConnection):
    """The event that the connection was lost, or that the server closes it for a `reason`."""

    reason: str = ""


# -- events of a session ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SettingsNegotiated(WithSession):
    """The event that the session's settings were negotiated. `ReturnValue`: True if the session must open, with the
    instruction `instructions.first`. `paused`: who paused or stopped the session's robot, or empty if it may act."""

    paused: str = ""


class LoopCreated(WithSession):
    """The event that the session's control loop was created. It will run next."""

    __slots__ = ()


@dataclass(slots=True)
class LoopWarmedUp(WithSession):
    """The event that the loop has made its warm-up decisions. `ReturnValue`: a WireError (busy) if the loop must not
    run, else None. `summary`: a text about the settings; `hz`: ticks a second; `decoder_needs`: the decoder time that
    each session needs."""

    summary: str
    decoder_needs: Mapping[Session, DecoderNeed | None]
    hz: float = 0.0


@dataclass(slots=True)
class WelcomeReady(WithSession):
    """The event that the session returned its welcome, perhaps with a control message; empty if the loop has ended."""

    messages: list[Message]


@dataclass(slots=True)
class LoopMessage(WithSession):
    """The event that the loop wants to send a message to its client."""

    message: Message


@dataclass(slots=True)
class ThreadTime(WithSession):
    """The event that the thread of a session whose client sets the pace has used `cpu_ns` of processor time in total.
    `ReturnValue`: how many seconds the thread must pause, or None."""

    cpu_ns: int


@dataclass(slots=True)
class LoopError(WithSession):
    """The event that the loop wants to send an error to its client. `undecided`: why the observation with the number
    `error.seq` got no decision, or None if the error has another subject."""

    error: WireError
    undecided: str | None = None


@dataclass(slots=True)
class InstructionRejected(WithSession):
    """The event that the decider rejected an instruction. The previous instruction is active again."""

    reason: str


@dataclass(slots=True)
class LogRequested(WithSession):
    """An event: the loop wants a line in the log. The rate limit may drop the line, unless `always` is set."""

    line: str
    always: bool = False


@dataclass(slots=True)
class CommandReceived(WithSession):
    """The event that a person entered a command in the interface `by` ("page", "keyboard"). `k`: the tick whose call
    is confirmed or denied. `ReturnValue`: a sentence about the result."""

    command: str
    by: str
    k: int | None = None


@dataclass(slots=True)
class InstructionReceived(WithSession):
    """The event that a person at the server entered an instruction. `missed`: the loop ended before receiving it."""

    text: str
    missed: bool = False


@dataclass(slots=True)
class SessionEnded(WithSession):
    """The event that the session's thread has ended. `run_instructions`: the last instruction for which a decision was
    made, and the newest instruction; None if no loop ran."""

    error: WireError | None = None
    reason: str | None = None  # if set, the session ends for this reason and cannot be resumed
    run_instructions: tuple[str, str] | None = None


# -- events of the server ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DrainStarted:
    """The event that the server refuses new sessions, and moves its clients to other servers after a grace period."""

    grace_ns: int


class CloseStarted:
    """The event that the server shuts down and ends all sessions."""


class TimerFired:
    """The event that the clock has reached `SessionCore.wake_ns`."""


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReturnValue:
    """The action to return this value to the caller of `SessionOwner.handle`."""

    value: Any


@dataclass(slots=True)
class WriteLogLine:
    """The action to write a line to the server's log."""

    line: str


@dataclass(slots=True)
class SendMessage(WithConnection):
    """The action to send a message, without blocking."""

    message: Message


class CloseConnection(WithConnection):
    """The action to close the connection."""

    __slots__ = ()


class DisconnectClient(WithConnection):
    """The action to disconnect a client that sends too much. The result is a `ConnectionLost` event."""

    __slots__ = ()


@dataclass(slots=True)
class DeliverMessage(WithConnection):
    """The action to pass a message to the session's environment. If this fails, the result is `MessageRefused`."""

    session: Session
    message: Message


@dataclass(slots=True)
class StartSession(WithSession):
    """The action to open the session on a new thread. `first`: False if the session resumes. If no thread can start,
    the result is `SessionEnded`."""

    first: bool


@dataclass(slots=True)
class InstructLoop(WithSession):
    """The action to pass an instruction to the loop. If the loop has ended, the result is `InstructionReceived`."""

    text: str


@dataclass(slots=True)
class CommandLoop(WithSession):
    """The action to execute a person's command in the loop. The sentence about the result is `logged`, or returned."""

    command: str
    by: str
    k: int | None
    logged: bool


@dataclass(slots=True)
class StoreCommand:
    """The action to store that a person paused, stopped or resumed a robot. This outlasts program and server."""

    robot: str
    command: str
    by: str


@dataclass(slots=True)
class StopLoop(WithSession):
    """The action to make the loop end soon, after the safe call."""

    reason: str


@dataclass(slots=True)
class RequestWelcome(WithSession):
    """The action to request the session's welcome message. The result is a `WelcomeReady` event."""

    resumed: bool
