"""The errors that the client raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.codec import to_wire_error
from rtcontrol_client.wire.errors import RemedyError
from rtcontrol_client.wire.messages import ErrorMessage


class ClientError(RemedyError):
    """Raised for invalid arguments or an unusable server; `what` is the problem, `remedy` a hint for people."""


class Refused(ClientError):
    """Raised if the server refused the client; `code` is a `rtcontrol_client.wire.Code`, or an unknown code."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(f"The server refused ({error.code}): {error.message}", error.remedy)
        self.code, self.field = error.code, error.field


class Closed(ClientError):
    """Raised if the client was closed before the server's welcome message arrived."""


class Declined(Exception):
    """Raise this in `on_call` to refuse a call, for example for safety: the client reports the call to the server as
    refused, with the exception's text."""


@contextmanager
def wrap_errors(message: str) -> Iterator[None]:
    """Convert validation errors of a message of the type `message` to a ClientError, which names the invalid field."""
    try:
        yield
    except (WireError, ValidationError) as error:
        refusal = error if isinstance(error, WireError) else to_wire_error(error, message)
        raise ClientError(refusal.message, refusal.remedy) from None
