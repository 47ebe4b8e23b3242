"""What all pools, and the hosts of their sessions, share: a core and its lock; incarnation, liveness and events."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.pool_core import PoolCore, Session
from rtcontrol.hosts.protocol import SHARES, DeciderSource, DecisionReply, Host, StatefulHost


def started(host: Host) -> Host:
    """Return the host, started; one that cannot start is closed."""
    try:
        host.start()
    except BaseException:
        host.close()
        raise
    return host


class Pool:
    """One place of decision for at most `limit` sessions. `changed` guards the core, and tells of its changes."""

    name = ""

    def __init__(self, limit: int) -> None:
        self.core = PoolCore(limit)
        self.changed = threading.Condition()

    @property
    def gave_up(self) -> str | None:
        return self.core.gave_up

    def host(self, session: str, source: DeciderSource) -> Host:
        """Return the session's host, which is not started."""
        raise NotImplementedError

    def open(self, session: str, source: DeciderSource) -> Host:
        return started(self.host(session, source))

    def alive(self) -> bool:
        return self.core.life is not None


class PooledHost(StatefulHost):
    """One session's part of a pool, which it starts and ends where it is its `own`."""

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool, key: bytes = b"") -> None:
        self.session = Session(session, key)
        super().__init__(pool.name, self.session)
        self.source = source
        self.info: dict[str, Any] = {}
        self.shares: deque[float] = deque(maxlen=SHARES)
        self._pool, self._own = pool, own

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.session.up and not self.info:
            if self._own:
                self._pool.start(stopped)
            if not stopped():
                self._pool.admit(self, stopped)
        return self.info

    def alive(self) -> bool:
        return self.session.up

    def noted(self, reply: DecisionReply | None) -> DecisionReply | None:
        """Return the reply, whose part of the decider's time is noted."""
        if reply is not None:
            self.shares.append(reply.decide_ns / reply.together)
        return reply

    def close(self) -> None:
        self._pool.release(self)
        if self._own:
            self._pool.close()
