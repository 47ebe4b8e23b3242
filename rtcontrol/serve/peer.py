"""What the admission knows of one connection."""

from __future__ import annotations

import time
from typing import Generic, Protocol, TypeVar

from rtcontrol.serve.options import ServeOptions
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import ErrorMessage

Session = TypeVar("Session")  # of what a connection is: `serve.session.Session`

# Who says hello and bye in turns makes the server open and end a session each time.
HELLOS_PER_S, HELLOS_AT_ONCE = 5.0, 20.0
# An error repeats what it refuses; of that, so many characters.
MAX_TOLD, MAX_FIELD = 600, 200


class Connection(Protocol):
    """One transport connection. `peer` is for logs (an address, or a key's name; never a secret), `key` the client's
    Z85 CURVE public key if it has one. One that has a `closed` says with it that `close` was called:
    what it still hands in is ignored."""

    peer: str
    key: str | None

    def send(self, message: Message) -> None:
        """From any thread; never blocks. A peer that is full or gone loses the message (the transport counts it, and
        calls `Admission.disconnected` for one that is gone)."""

    def close(self) -> None:
        """Forget the peer; from any thread. The admission has said what it had to say."""


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them at once. Not locked: two threads may get one token too many."""

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._filled_s = time.monotonic()

    def take(self) -> bool:
        """Whether there was a token; it is gone then."""
        if self._tokens < 1.0:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._rate)
            self._filled_s = now
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True


class Peer(Generic[Session]):
    """A connection, its session if it has one, when either side last spoke."""

    def __init__(self, connection: Connection, options: ServeOptions) -> None:
        self.connection = connection
        self.session: Session | None = None
        self.messages = TokenBucket(options.messages_per_s, options.messages_per_s)
        self.hellos = TokenBucket(HELLOS_PER_S, HELLOS_AT_ONCE)
        self.in_ns = self.out_ns = time.monotonic_ns()
        self.pings = 0
        self.gone = False
        self._errors = TokenBucket(options.errors_per_s, 2 * options.errors_per_s)
        self._untold = 0

    @property
    def name(self) -> str:
        return self.connection.peer

    def send(self, message: Message) -> None:
        self.out_ns = time.monotonic_ns()
        self.connection.send(message)

    def tell(self, error: WireError, always: bool = False) -> None:
        """Send the error, as far as the rate of errors allows; the next one says how many were not sent."""
        if not (self._errors.take() or always):
            self._untold += 1
            return
        untold, self._untold = self._untold, 0
        self.send(
            ErrorMessage(
                code=error.code.value,
                message=cut(error.message, MAX_TOLD),
                remedy=cut(error.remedy, MAX_TOLD),
                field=error.field and cut(error.field, MAX_FIELD),
                seq=error.seq,
                t_client_ns=error.t_client_ns,
                retryable=error.retryable,
                fatal=error.fatal,
                dropped=untold,
                members=list(error.members) or None,
            )
        )


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and its end where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
