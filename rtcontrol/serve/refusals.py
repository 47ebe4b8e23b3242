"""Functions that create the wire errors with which a server refuses a message or a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ErrorMessage

RETRY_HINT = "Send the same hello again later, with growing pauses."
# Errors may quote the client's message, so their texts and field names are cut to this number of characters.
MAX_TEXT, MAX_FIELD = 600, 200


def state_error(problem: str, hint: str, retryable: bool = False) -> WireError:
    """Return the error for a message that does not fit the state of the session."""
    return WireError(Code.STATE, problem, hint, retryable=retryable)


def stopped_error() -> WireError:
    """Return the error for a client that tries to resume a session that a person stopped."""
    hint = "Start the client again when a person decides that the robot may continue."
    return WireError(Code.STATE, "A person stopped the session. A stop is final.", hint, fatal=True)


def other_client_error() -> WireError:
    """Return the error for another client of a run that waits for its lost client."""
    problem = "This run waits for its client, whose connection was lost; a program that starts again is another client."
    return WireError(Code.STATE, problem, "Start the run again, or use `rtcontrol serve`.", fatal=True)


def busy_error(problem: str, field: str | None = None, hint: str = RETRY_HINT) -> WireError:
    """Return the error for a hello that the server cannot admit at the moment."""
    return WireError(Code.BUSY, problem, hint, field=field, retryable=True, fatal=True)


def rate_error(problem: str, hint: str) -> WireError:
    """Return the error for a client that exceeded the rate limit `problem`, such as "5 hellos a second"."""
    return WireError(Code.RATE, f"More than {problem}.", hint, retryable=True)


def unknown_token_error(problem: str, hint: str, field: str) -> WireError:
    """Return the error for a session token that is unknown, or belongs to another connection's session."""
    return WireError(Code.SESSION, problem, hint, field=field, retryable=True)


@contextmanager
def as_wire_error(code: Code, field: str | None = None) -> Iterator[None]:
    """Turn a UserError that is raised in the block into a WireError with this code."""
    try:
        yield
    except DecoderUnavailable:  # the client did not cause this error
        raise
    except UserError as error:
        raise WireError(code, error.what, error.remedy, field=field, fatal=True) from None


def error_message(error: WireError, dropped: int) -> ErrorMessage:
    """Return the error as a wire message. `dropped` is the number of earlier errors that were not sent."""
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
