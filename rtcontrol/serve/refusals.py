"""What a server refuses of clients, in the words of the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ControlMessage

AGAIN = "Say the same hello again later, with growing pauses."
# What people, or a client for them, may say to a session.
SAYINGS = ("pause", "resume", "stop", "confirm", "deny")
CONTROL = "control"


@contextmanager
def refused_as(code: Code, field: str | None = None) -> Iterator[None]:
    """Raise the WireError of this code for a UserError in here."""
    try:
        yield
    except UserError as error:
        raise WireError(code, error.what, error.remedy, field=field, fatal=True) from None


def stopped() -> WireError:
    """A person stopped the session: no client greets again but by a person's will."""
    remedy = "Start the client anew once a person wants it to go on."
    return WireError(Code.STATE, "A person stopped the session: a stop is final.", remedy, fatal=True)


def busy(what: str, field: str | None = None, remedy: str = AGAIN) -> WireError:
    """There is no session for this hello now."""
    return WireError(Code.BUSY, what, remedy, field=field, retryable=True, fatal=True)


def claimed(robot: str) -> WireError:
    """The robot is another session's."""
    remedy = "End that one, or say the same hello again, with growing pauses, until it is gone."
    return busy(f"The robot {robot!r} is claimed by another session.", "robot", remedy)


def rate(what: str, remedy: str) -> WireError:
    """More than is allowed."""
    return WireError(Code.RATE, f"More than {what}.", remedy, retryable=True)


def unknown_token(what: str, remedy: str, field: str) -> WireError:
    """The token names no session, or another one."""
    return WireError(Code.SESSION, what, remedy, field=field, retryable=True)


def no_session() -> WireError:
    """A message before the hello."""
    remedy = "Say hello first, with `resume` where there was one."
    return WireError(Code.STATE, "This connection has no session.", remedy, retryable=True)


def not_open() -> WireError:
    """A message before the welcome."""
    return WireError(Code.STATE, "The session is not open.", "Wait for the welcome.", retryable=True)


def of_crowds(crowd: bool) -> WireError:
    """The message is for crowds, and the session is not one; or the other way round."""
    if crowd:
        return state("This session is a crowd.", "Send join, leave and observe_many.")
    return state("This session is no crowd.", "Give hello `crowd: {}`.")


def state(what: str, remedy: str) -> WireError:
    """The message is not for this state of the session."""
    return WireError(Code.STATE, what, remedy)


def saying_of(message: ControlMessage, capabilities: Sequence[str]) -> str:
    """Return what a client that announced so much says. Raises WireError."""
    if CONTROL not in capabilities:
        raise state("hello did not announce control.", 'Give hello `capabilities: ["control"]`.')
    if message.say is None:
        raise WireError(Code.INVALID, "control.say is missing.", f"Say one of {', '.join(SAYINGS)}.", field="say")
    if message.instruction is not None and message.say in ("confirm", "deny"):
        shown = message.instruction if len(message.instruction) <= 120 else message.instruction[:117] + "..."
        what = f'No person is asked about the instruction "{shown}".'
        raise WireError(Code.INVALID, what, "Answer what the last control message asks.", field="instruction")
    return message.say


def refused_instruction(error: str, seq: int | None) -> WireError:
    """The decider cannot take it."""
    what = f"The instruction was refused: {error}"
    remedy = "Say it in other or fewer words; the instruction before goes on."
    return WireError(Code.INSTRUCTION, what, remedy, field="instruction", seq=seq)


def illegal_safe_call(error: ValueError, field: str, fatal: bool = False) -> WireError:
    """The tools do not allow it."""
    remedy = "Give a call that the tools allow, with all arguments that are required."
    return WireError(Code.TOOLS, f"The safe call is illegal: {error}.", remedy, field=field, fatal=fatal)


def unsure(what: str) -> WireError:
    """The instruction is not understood: it stays in force, and what is called by it is held back."""
    return WireError(Code.UNSURE, what, "Say it in other words.", field="instruction")


def lost_instruction(what: str, remedy: str, again: bool) -> WireError:
    """The run ends with it; whether it may begin `again` with the one before."""
    return WireError(Code.INSTRUCTION, what, remedy, field="instruction", retryable=again, fatal=not again)
