"""What waits to be said to the server, in order, and which observations it may still be asked about."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rtcontrol.bridges.wire import Message
from rtcontrol.bridges.wire.messages import Observe, Ping, Pong

QUEUE = 256
ROOM_AGAIN_NS = 20_000_000  # after this a connection without room is tried again
OF_ITS_TIME = (Observe, Ping, Pong)  # what is worth nothing later


class Outgoing:
    """Bounded; `token` is the session's, `room_ns` the instant before which nothing more is said, for want of room."""

    def __init__(self, newest: bool) -> None:
        """`newest`: an observation replaces one that is not sent yet."""
        self.waiting: deque[Message] = deque()
        self.token, self.room_ns = "-" * 16, 0
        self.stamps: dict[int, int] = {}  # of the newest observations, by seq
        self._newest, self._seq = newest, 0

    def say(self, message: Message) -> None:
        """Last, where there is room."""
        if len(self.waiting) < 4 * QUEUE:
            self.waiting.append(message)

    def replace(self) -> bool:
        """Drop the oldest observation that waits, where a new one is to take its place."""
        if self._newest or len(self.waiting) >= QUEUE:
            for i, waiting in enumerate(self.waiting):
                if isinstance(waiting, Observe):
                    del self.waiting[i]
                    return True
        return False

    def observe(self, look: Observe, epoch: int) -> Observe:
        """Say it under the next number."""
        self._seq += 1
        look = look.model_copy(update={"session": self.token, "seq": self._seq, "epoch": epoch})
        self.stamps[look.seq] = look.t_ns
        forget(self.stamps)
        self.waiting.append(look)
        return look

    def drop(self, *kinds: type[Message]) -> None:
        """All of these kinds that wait."""
        self.waiting = deque(m for m in self.waiting if not isinstance(m, kinds))

    def begin(self, token: str) -> list[Observe]:
        """Another session: what waited was for the one that is gone. Returns its observations."""
        looks = [m for m in self.waiting if isinstance(m, Observe)]
        self.token = token
        self.waiting.clear()
        self.stamps.clear()
        return looks

    def unsent(self, rest: Sequence[Message], now_ns: int) -> None:
        """There was no room from this message on. An observation is old by the time there is. The rest is not said
        twice: without its reset, say, the server would stay in an episode that is over."""
        self.waiting.extendleft(m for m in reversed(rest) if not isinstance(m, OF_ITS_TIME))
        self.room_ns = now_ns + ROOM_AGAIN_NS


def forget(newest: dict[int, Any]) -> None:
    """Keep as many as may be asked for."""
    if len(newest) > 4 * QUEUE:
        del newest[next(iter(newest))]
