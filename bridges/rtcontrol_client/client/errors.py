"""The errors that a caller of the client can get, which say what happened and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.codec import refusal_for
from rtcontrol_client.wire.errors import RemedyError
from rtcontrol_client.wire.messages import ErrorMessage


class ClientError(RemedyError):
    """An error in the arguments, or a server that cannot be used; `what` and `remedy` are sentences."""


class Refused(ClientError):
    """The server refused the client; `code` is a `rtcontrol_client.wire.Code`, or a code of a newer server."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(f"The server refused ({error.code}): {error.message}", error.remedy)
        self.code, self.field = error.code, error.field


class Closed(ClientError):
    """The client was closed before the server's welcome came."""


class Declined(Exception):
    """Raise this in `on_call` to decline a call that is outside of the client's bounds: the client reports the call to
    the server as refused, with the exception's text."""


@contextmanager
def checked(message: str) -> Iterator[None]:
    """Turn the errors of a message that the protocol forbids into a ClientError that names the field."""
    try:
        yield
    except (WireError, ValidationError) as error:
        refusal = error if isinstance(error, WireError) else refusal_for(error, message)
        raise ClientError(refusal.message, refusal.remedy) from None
