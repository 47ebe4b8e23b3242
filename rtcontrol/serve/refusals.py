"""What a server answers that it does not do, in the words of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ErrorMessage

AGAIN = "Say the same hello again later, with growing pauses."
# An error repeats what it refuses; of that, so many characters.
MAX_TEXT, MAX_FIELD = 600, 200


def state(problem: str, hint: str, retryable: bool = False) -> WireError:
    """The message is not for this state of the session."""
    return WireError(Code.STATE, problem, hint, retryable=retryable)


def stopped() -> WireError:
    """A person stopped the session: only a person may start the client again."""
    hint = "Start the client again once a person wants it to continue."
    return WireError(Code.STATE, "A person stopped the session: a stop is final.", hint, fatal=True)


def busy(problem: str, field: str | None = None, hint: str = AGAIN) -> WireError:
    """There is no session for this hello now."""
    return WireError(Code.BUSY, problem, hint, field=field, retryable=True, fatal=True)


def rate(problem: str, hint: str) -> WireError:
    """More than is allowed."""
    return WireError(Code.RATE, f"More than {problem}.", hint, retryable=True)


def unknown_token(problem: str, hint: str, field: str) -> WireError:
    """The token names no session, or another one."""
    return WireError(Code.SESSION, problem, hint, field=field, retryable=True)


@contextmanager
def refused_as(code: Code, field: str | None = None) -> Iterator[None]:
    """Raise the WireError of this code for a UserError in here."""
    try:
        yield
    except DecoderUnavailable:  # not an error of the client
        raise
    except UserError as error:
        raise WireError(code, error.what, error.remedy, field=field, fatal=True) from None


def error_message(error: WireError, dropped: int) -> ErrorMessage:
    """Return the error as it is sent; `dropped`: how many before it were not sent."""
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
