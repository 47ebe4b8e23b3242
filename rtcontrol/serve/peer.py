"""A transport connection as the sessions see it, and rates."""

from __future__ import annotations

from typing import Protocol

from rtcontrol_client.wire import Message


class Connection(Protocol):
    """One transport connection. `peer` is for logs (an address, or a key's name; never a secret), `key` the client's
    Z85 CURVE public key if it has one. One that has a `closed` says with it that `close` was called:
    what it still hands in is ignored."""

    peer: str
    key: str | None

    def send(self, message: Message) -> None:
        """From any thread; never blocks. A peer that is full or gone loses the message (the transport counts it, and
        calls `SessionManager.disconnected` for one that is gone)."""

    def close(self) -> None:
        """Forget the peer; from any thread. The server has sent what it had to send."""


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them at once. Not locked: two threads may get one token too many."""

    __slots__ = ("_burst", "_filled_ns", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now_ns: int) -> None:
        self._rate, self._burst = rate / 1e9, burst
        self._tokens = burst
        self._filled_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Return whether there was a token; it is gone then."""
        if self._tokens < 1.0:
            self._tokens = min(self._burst, self._tokens + (now_ns - self._filled_ns) * self._rate)
            self._filled_ns = now_ns
            if self._tokens < 1.0:
                return False
        self._tokens -= 1.0
        return True


def cut(text: str, limit: int) -> str:
    """Return the text, or its beginning and its end where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
