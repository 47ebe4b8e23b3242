"""Services that a call asks: each new call sends its request once, and what comes of it is observed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rtcontrol_client.ros2.views import StateView, shown

# So long an answer may still come that nobody waits for, and would be taken for that of the next request.
FORGET_S = 30.0


class Served(Protocol):
    """A service as its client sees it, by whatever middleware."""

    def ready(self) -> bool:
        """Whether a server is there whose answers reach us."""
        ...

    def exact(self) -> bool:
        """Whether the answers that come are those of our own requests."""
        ...

    def send(self, request: Any) -> bool:
        """False where that was not possible now. Raises Unmappable for a request that never can be."""
        ...

    def answers(self) -> list[Any]:
        """Those since the last time."""
        ...

    def trouble(self) -> str | None:
        """Why no server can be asked, in a sentence."""
        ...


class ServiceClient:
    """One service. Its states: `idle`, `no server`, `waiting`, `answered`, `no answer`, and `unclear` where an answer
    came that may be another's. Thread-safe."""

    failed = 0

    def __init__(
        self,
        name: str,
        view: type[StateView],
        served: Served,
        answer_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer_s`: so long an answer is waited for."""
        self.name, self._view, self._served, self._answer_s, self._now = name, view, served, answer_s, now
        self._lock = threading.Lock()
        self._state, self._response = "idle", None
        self._sent: deque[float] = deque()  # requests without an answer

    def write(self, request: Any) -> bool:
        """Ask it; False where no server is there yet."""
        with self._lock:
            self._advance()
            self._response = None
            if not self._served.ready():
                self._state = "no server"
                return False
            if not self._served.send(request):
                return False
            self._state = "waiting"
            self._sent.append(self._now())
            return True

    def readers(self) -> int:
        """Whether a server is there."""
        return int(self._served.ready())

    def advance(self) -> None:
        """Look for answers; once a tick."""
        with self._lock:
            self._advance()

    def poll(self) -> tuple[StateView, int]:
        """What is known of it now."""
        with self._lock:
            return shown(self._view, self._state, response=self._response), time.monotonic_ns()

    def trouble(self) -> str | None:
        """What is wrong with it now."""
        if (why := self._served.trouble()) is not None:
            return why
        told = {
            "no answer": f"{self.name} has not answered within {1e3 * self._answer_s:g} ms.",
            "unclear": f"An answer of {self.name} may be that of another request: what it said is not shown. "
            "Over Fast DDS they cannot be told apart here; the rclpy node can.",
        }
        return told.get(self._state)

    def _advance(self) -> None:
        now = self._now()
        there = self._served.ready()  # also so that it is known from now on
        if self._state == "no server" and there:
            self._state = "idle"
        for answer in self._served.answers():
            clear = self._served.exact() and len(self._sent) <= 1
            if self._sent:
                self._sent.popleft()
            if self._state == "waiting":
                self._state, self._response = ("answered", answer) if clear else ("unclear", None)
        while self._sent and now > self._sent[0] + FORGET_S:
            self._sent.popleft()
        if self._state == "waiting" and now > self._sent[-1] + self._answer_s:
            self._state = "no answer"
