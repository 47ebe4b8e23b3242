"""What a caller of the client can get: what happened, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.codec import explain
from rtcontrol_client.wire.errors import RemedyError
from rtcontrol_client.wire.messages import ErrorMessage


class ClientError(RemedyError):
    """An error in the arguments, or a server that cannot be used: `what` and `remedy`, in sentences."""


class Refused(ClientError):
    """The server refused; `code` is a `rtcontrol_client.wire.Code`, or one of a newer server."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(f"The server refused ({error.code}): {error.message}", error.remedy)
        self.code, self.field = error.code, error.field


class Closed(ClientError):
    """The client was closed before it was welcomed."""


class Declined(Exception):
    """Raised by an `on_call` that does not carry out a call, since it lies outside of the client's bounds: reported to
    the server as refused, with these words."""


@contextmanager
def checked(message: str) -> Iterator[None]:
    """Raise ClientError, naming the field, for what the protocol forbids in a message."""
    try:
        yield
    except (WireError, ValidationError) as error:
        refusal = error if isinstance(error, WireError) else explain(error, message)
        raise ClientError(refusal.message, refusal.remedy) from None
