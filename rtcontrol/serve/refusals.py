"""What a server refuses of clients, in the words of the wire."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.envs.base import Emission
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import Code, WireError

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


def rate(what: str, remedy: str) -> WireError:
    """More than is allowed."""
    return WireError(Code.RATE, f"More than {what}.", remedy, retryable=True)


def unknown_token(what: str, remedy: str, field: str) -> WireError:
    """The token names no session, or another one."""
    return WireError(Code.SESSION, what, remedy, field=field, retryable=True)


def of_crowds(crowd: bool) -> WireError:
    """The message is for crowds, and the session is not one; or the other way round."""
    if crowd:
        return state("This session is a crowd.", "Send join, leave and observe_many.")
    return state("This session is no crowd.", "Give hello `crowd: {}`.")


def state(what: str, remedy: str, retryable: bool = False) -> WireError:
    """The message is not for this state of the session."""
    return WireError(Code.STATE, what, remedy, retryable=retryable)


def illegal_safe_call(error: ValueError, field: str, fatal: bool = False) -> WireError:
    """The tools do not allow it."""
    remedy = "Give a call that the tools allow, with all arguments that are required."
    return WireError(Code.TOOLS, f"The safe call is illegal: {error}.", remedy, field=field, fatal=fatal)


def undecided(emission: Emission, seq: int | None) -> WireError:
    """Of the observation `seq`, of which no decision could be made."""
    error = emission.error or ""
    # The cause may be another: on a busy machine a pause goes first.
    if error.startswith("observe:"):
        remedy = "Send the fields of `data` that the agent reads, or `text`."
        return WireError(Code.INVALID, f"{error}.", remedy, field="data", seq=seq)
    if emission.mistake is not None:
        # The instruction was decided by before: it is the observation that is too long.
        remedy = "Send a shorter `text`, or fewer and shorter values in `data`."
        return WireError(Code.TOO_LARGE, emission.mistake[0], remedy, field="text", seq=seq)
    remedy = "Go on observing: the next tick decides anew. What is in force runs out as always."
    return WireError(Code.DECODER, f"{emission.cause}: {error}", remedy, seq=seq, retryable=True)


@contextmanager
def placed(welcomed: bool) -> Iterator[None]:
    """Where the place of decision is full or away in here, raises the WireError that says so. A session that was
    welcomed is kept: its client says hello again."""
    try:
        yield
    except DecoderUnavailable as error:
        code = Code.BUSY if error.full else Code.DECODER
        raise WireError(code, error.what, error.remedy, retryable=True, fatal=not welcomed) from None


def no_thread(welcomed: bool) -> WireError:
    """No thread could be started for it. A session that was welcomed is kept: its client says hello again."""
    what = "The server cannot start another thread."
    return WireError(Code.BUSY, what, AGAIN, retryable=True, fatal=not welcomed)


def failure(fault: BaseException) -> WireError:
    """The session ended by a fault of the server, or for want of files."""
    what = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
    full = isinstance(fault, OSError) and fault.errno in (errno.EMFILE, errno.ENFILE)
    code, remedy = (Code.BUSY, AGAIN) if full else (Code.INTERNAL, "Say hello again.")
    return WireError(code, f"The session failed ({what}).", remedy, retryable=full, fatal=True)
