"""What a caller of the client can be told: what happened, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.codec import explain
from rtcontrol_client.wire.errors import RemedyError
from rtcontrol_client.wire.messages import ErrorMessage


class ClientError(RemedyError):
    """A mistake in what was given, or a server that cannot be used: `what` and `remedy`, in sentences."""


class Refused(ClientError):
    """The server said no; `code` is a `rtcontrol_client.wire.Code`, or one of a newer server."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(f"The server refused ({error.code}): {error.message}", error.remedy)
        self.code, self.field = error.code, error.field


class Closed(ClientError):
    """The client was closed before it was welcomed."""


class Declined(Exception):
    """Raised by an `on_call` that does not carry out a call, since it lies outside of the client's own bounds: told to
    the server as refused, with these words."""


@contextmanager
def checked(message: str) -> Iterator[None]:
    """What the protocol forbids in a message is the caller's mistake: ClientError, naming the field."""
    try:
        yield
    except (WireError, ValidationError) as error:
        told = error if isinstance(error, WireError) else explain(error, message)
        raise ClientError(told.message, told.remedy) from None
