"""A decoder for many sessions at once: each has its own decider and host, all share one place of decision."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionReply, DecisionRequest, Host, HostEvent, PlaceTrouble
from rtcontrol.hosts.inprocess import answer, describe
from rtcontrol.models.errors import UserError

LIMIT = 64


class DecoderPool(Protocol):
    """Makes hosts for sessions that come and go.

    A session's newest request wins; the sessions are served in the order in which they began to wait, so none starves
    another. `open` does not hold up the decisions of other sessions.
    """

    name: str

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Make the place of decision ready; gives what a report says about it. Raises UserError.

        Returns early, and empty, soon after `stopped` says so: the pool is then good for `close` only.
        """

    def open(self, session: str, source: DeciderSource) -> Host:
        """Build a decider; gives the host of this session alone. `session` names it in logs.

        Blocks until the decider is ready; any thread may call it. The host's `start` only tells the decider's info;
        `submit`, `wait`, `alive`, `cancel` and `close` are for one thread; `close` frees the decider. Raises UserError
        from the build, and PlaceTrouble where the place is at fault: full, closed, or away for too long.
        """

    def alive(self) -> bool:
        """Whether it can decide now; any thread may ask."""

    def close(self) -> None:
        """End all sessions, and what decided for them. Any thread may call it, once."""


def build(source: DeciderSource) -> Decider:
    """The source's decider; whatever goes wrong becomes a UserError."""
    try:
        return source.build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The decider cannot be built: {error!r}.", "Run with --debug.") from error


class Places:
    """How many sessions are open or being opened; at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """PlaceTrouble when all are taken."""
        with self._lock:
            if self.taken >= self.limit:
                raise PlaceTrouble(
                    f"The decoder has {self.limit} open sessions, as many as it may.",
                    "Close one, or try again later.",
                    full=True,
                )
            self.taken += 1

    def free(self) -> None:
        with self._lock:
            self.taken -= 1


class Rota:
    """The waiting requests, one a session: the newest, in the place of the oldest. Not locked."""

    def __init__(self) -> None:
        self._waiting: dict[Any, DecisionRequest | None] = {}

    def put(self, key: Any, request: DecisionRequest) -> None:
        self._waiting[key] = request

    def take(self) -> tuple[Any, DecisionRequest] | None:
        """The request of the session that has waited longest."""
        for key, request in self._waiting.items():
            if request is not None:
                del self._waiting[key]
                return key, request
        return None

    def cancel(self, key: Any, tick: int) -> None:
        # The session keeps its place: with requests that are given up before their turn comes it would starve.
        request = self._waiting.get(key)
        if request is not None and request.tick == tick:
            self._waiting[key] = None

    def remove(self, key: Any) -> None:
        self._waiting.pop(key, None)


class InlineHost:
    """Decides inside `submit`, on the caller's thread: for deciders that take no time (no-op, random, expert)."""

    name = "inline"

    def __init__(self, source: DeciderSource, closed: Callable[[], None] = lambda: None) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self._decider = build(source)
        self._closed: Callable[[], None] | None = closed
        self._replies: deque[DecisionReply] = deque()
        self._woken = threading.Event()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return describe(self._decider)

    def submit(self, request: DecisionRequest) -> None:
        self._replies.append(answer(self._decider, request))

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        if self._replies:
            return self._replies.popleft()
        if timeout_ns > 0:
            self._woken.wait(timeout_ns / 1e9)
        self._woken.clear()
        return None

    def wake(self) -> None:
        self._woken.set()

    def alive(self) -> bool:
        return self._closed is not None

    def cancel(self, tick: int) -> None:
        """Nothing waits: it was decided when it was submitted."""

    def close(self) -> None:
        self._replies.clear()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()


class InlinePool:
    """Every session decides on its own thread."""

    name = "inline"

    def __init__(self, limit: int = LIMIT) -> None:
        self._places = Places(limit)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return {}

    def open(self, session: str, source: DeciderSource) -> Host:
        self._places.take()
        try:
            return InlineHost(source, self._places.free)
        except BaseException:
            self._places.free()
            raise

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to end."""
