"""The client for programs without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rtcontrol.bridges.client.base import Base
from rtcontrol.bridges.client.standing import Standing


class Client(Base):
    """A session with an rtcontrol server. All methods may be called from any thread; none but `connect`, `listen`,
    `wait` and `decide` ever blocks, and what they return is never older than its time-to-live.

    Example:

        with Client.connect("tcp://127.0.0.1:5555", tools=TOOLS, instruction="Follow the road.", hz=10) as client:
            while True:
                client.observe(text=look())
                standing = client.wait(0.2)
                act(standing.name, standing.arguments)
    """

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome. The options are those of `Options`.

        Raises ClientError: a mistake in the options, or no server within `connect_timeout_s`; Refused: by the server.
        """
        return cls(endpoint, options, listens=False)._ready()

    @classmethod
    def listen(cls, endpoint: str, **options: Any) -> Self:
        """Bind, and wait for a server to connect (`rtcontrol run --env remote --connect`): raises as `connect`."""
        return cls(endpoint, options, listens=True)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any], listens: bool) -> None:
        self._condition = threading.Condition()
        super().__init__(endpoint, options, listens)
        self._seen = 0

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _ready(self) -> Self:
        limit_s = self.options.connect_timeout_s
        try:
            if not self._until(lambda: self.connected or self.error is not None, limit_s):
                raise self.unwelcomed(self.options.connect_timeout_s or 0)
            if self.error is not None:
                raise self.error
        except BaseException:
            self.close()
            raise
        return self

    def _until(self, ready: Callable[[], bool], limit_s: float | None) -> bool:
        with self._condition:
            return bool(self._condition.wait_for(ready, limit_s))

    def wait(self, timeout: float | None = None) -> Standing:
        """What is in force as soon as something new has come since the last `wait`: the next tick's call, held or
        safe, or an expiry; at the latest after `timeout` seconds, or when the session has ended."""
        self._until(lambda: self._version() != self._seen or self.error is not None, timeout)
        self._seen = self._version()
        return self.call()

    def decide(
        self,
        observation: str | Mapping[str, Any] | None = None,
        *,
        arrays: Mapping[str, Any] | None = None,
        t_ns: int | None = None,
        timeout: float | None = None,
    ) -> Standing:
        """Send an observation (text, or data) and wait for its call: for `pacing="client"`.

        Returns what is in force then; safe if no call came within the time-to-live or `timeout` (default: 30 s), or
        if the observation was refused (`cause`). Raises ClientError for a mistake in the observation.
        """
        sent = self._decide(observation, arrays, t_ns)
        try:
            self._until(self._answered, self._decide_s(timeout, sent))
        finally:
            standing = self._decided()
        return standing

    def close(self) -> None:
        """Say bye and let go; may be called twice. Nothing is in force any more but the safe call."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
