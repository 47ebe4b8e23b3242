"""What a caller of the client can be told: what happened, and what to do."""

from __future__ import annotations

from rtcontrol.bridges.wire.messages import ErrorMessage


class ClientError(Exception):
    """A mistake in what was given, or a server that cannot be used: `what` and `remedy`, in sentences."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


class Refused(ClientError):
    """The server said no; `code` is a `rtcontrol.bridges.wire.Code`, or one of a newer server."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(f"The server refused ({error.code}): {error.message}", error.remedy)
        self.code, self.field = error.code, error.field


class Declined(Exception):
    """Raised by an `on_call` that does not carry out a call, since it lies outside of the client's own bounds: told to
    the server as refused, with these words."""


class Closed(ClientError):
    """The client was closed, or its session has ended."""

    def __init__(self, why: str = "") -> None:
        super().__init__(f"The client is closed{f' ({why})' if why else ''}.", "Connect anew.")
