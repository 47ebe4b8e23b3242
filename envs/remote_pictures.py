"""Pictures of a world behind a wire: the newest that its client sent, for people. No tick reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Picture
from rtcontrol_client.wire.pictures import MAX_PICTURES_HZ

# A stamp that lies further back is a client's mistake, or a picture for nobody.
OLDEST_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """A file as it came, and when it was taken (CLOCK_MONOTONIC), as far as the client's stamps tell."""

    format: str
    data: bytes
    t_ns: int


class RemotePictures:
    """Of one session. `take` is for the transport's thread, `newest` for any; `counts` has what was `taken` and
    `dropped`. None is taken but from `start` to `close`, the loop's."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.newest: RemotePicture | None = None
        self.taken: Callable[[RemotePicture, int], None] = lambda one, now_ns: None  # told of each, on that thread
        self._counts, self._lock, self._open = counts, threading.Lock(), False
        self._later_ns: int | None = None  # our clock minus the client's, and what a message takes
        self._room, self._filled_ns = MAX_PICTURES_HZ, time.monotonic_ns()

    def observed(self, t_ns: int, now_ns: int) -> None:
        """An observation of `t_ns` by the client's clock arrived."""
        self._later_ns = now_ns - t_ns

    def take(self, message: Picture) -> None:
        """Keep it instead of the one before. Raises WireError (rate)."""
        with self._lock:
            if self._open:
                self._keep(message)
            else:
                self._count("dropped")

    def _keep(self, message: Picture) -> None:
        now_ns = time.monotonic_ns()
        self._room = min(MAX_PICTURES_HZ, self._room + (now_ns - self._filled_ns) * MAX_PICTURES_HZ / 1e9)
        self._filled_ns = now_ns
        if self._room < 1:
            self._count("dropped")
            what = f"More than {MAX_PICTURES_HZ:g} pictures a second."
            raise WireError(Code.RATE, what, "Send fewer: the newest one counts.", retryable=True)
        self._room -= 1
        taken_ns = now_ns if self._later_ns is None else message.t_ns + self._later_ns
        image = message.image
        self._count("taken")
        one = RemotePicture(image.format, image.data, max(now_ns - OLDEST_NS, min(now_ns, taken_ns)))
        self.newest = one
        self.taken(one, now_ns)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def age_s(self) -> float | None:
        """Of the newest; None where there is none."""
        newest = self.newest
        return None if newest is None else round((time.monotonic_ns() - newest.t_ns) / 1e9, 1)

    def start(self) -> None:
        """A loop begins."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """It is over: what comes before its client is known to be gone is nobody's."""
        with self._lock:
            self._open = False
            self.forget()

    def forget(self) -> None:
        """Nobody is told of what was before."""
        self.newest = self._later_ns = None
