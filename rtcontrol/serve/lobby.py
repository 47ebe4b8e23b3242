"""Where every transport hands in its messages: who is who, what is refused, which session gets what."""

from __future__ import annotations

from typing import Any, Protocol

from rtcontrol.bridges.wire import Message, WireError


class Connection(Protocol):
    """One transport connection. `peer` is for logs (an address, or a key's name; never a secret), `key` the client's
    Z85 CURVE public key if it has one."""

    peer: str
    key: str | None

    def send(self, message: Message) -> None:
        """From any thread; never blocks. A peer that is full or gone loses the message (the transport counts it, and
        calls `Lobby.disconnected` for one that is gone)."""

    def close(self) -> None:
        """Forget the peer; from any thread. The lobby has said what it had to say."""


class Lobby:
    """All sessions of a server. Its methods are quick, never block and may be called from any transport's thread.

    A transport calls, for each message: `admit` (before it decodes it; False: drop it), then `receive`, or `refuse`
    with the decoder's WireError; and `disconnected` when the connection is gone.
    """

    def admit(self, connection: Connection) -> bool:
        """Whether this peer may send another message now; False is counted as a refusal (`rate`)."""
        raise NotImplementedError

    def receive(self, connection: Connection, message: Message) -> None:
        """A decoded message; whatever is wrong with it goes back as an `error`."""
        raise NotImplementedError

    def refuse(self, connection: Connection, error: WireError) -> None:
        """A message that could not be decoded: counted, and told to its sender as far as the error rate allows."""
        raise NotImplementedError

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone: its session is parked."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """Counts of the whole server, for /health."""
        raise NotImplementedError

    def sessions(self) -> list[dict[str, Any]]:
        """One entry a session, for /metrics: id, state, agent, model, pacing, hz, counts, recent latency."""
        raise NotImplementedError
