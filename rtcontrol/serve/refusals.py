"""Wire errors with which a server refuses a message or a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ErrorMessage

AGAIN = "Say the same hello again later, with growing pauses."
# An error quotes the refused text, at most so many characters of a message or a field.
MAX_TEXT, MAX_FIELD = 600, 200


def state(problem: str, hint: str, retryable: bool = False) -> WireError:
    """Return the error for a message that does not fit the state of the session."""
    return WireError(Code.STATE, problem, hint, retryable=retryable)


def stopped() -> WireError:
    """Return the error for a session that a person stopped; only a person may start the client again."""
    hint = "Start the client again once a person wants it to continue."
    return WireError(Code.STATE, "A person stopped the session: a stop is final.", hint, fatal=True)


def busy(problem: str, field: str | None = None, hint: str = AGAIN) -> WireError:
    """Return the error for a hello that cannot get a session at the moment."""
    return WireError(Code.BUSY, problem, hint, field=field, retryable=True, fatal=True)


def rate(problem: str, hint: str) -> WireError:
    """Return the error for a client that exceeds a rate limit."""
    return WireError(Code.RATE, f"More than {problem}.", hint, retryable=True)


def unknown_token(problem: str, hint: str, field: str) -> WireError:
    """Return the error for a token of an unknown session, or of another one."""
    return WireError(Code.SESSION, problem, hint, field=field, retryable=True)


@contextmanager
def refused_as(code: Code, field: str | None = None) -> Iterator[None]:
    """Turn a UserError that is raised in the block into a WireError with this code."""
    try:
        yield
    except DecoderUnavailable:  # not an error of the client
        raise
    except UserError as error:
        raise WireError(code, error.what, error.remedy, field=field, fatal=True) from None


def error_message(error: WireError, dropped: int) -> ErrorMessage:
    """Return the error as a message. `dropped` is how many earlier errors were not sent."""
    return ErrorMessage(
        code=error.code.value,
        message=error.message[:MAX_TEXT],
        remedy=error.remedy[:MAX_TEXT],
        field=error.field and error.field[:MAX_FIELD],
        seq=error.seq,
        t_client_ns=error.t_client_ns,
        retryable=error.retryable,
        fatal=error.fatal,
        dropped=dropped,
        members=list(error.members) or None,
    )
