"""Services that a call asks: each new call sends its request once, and what comes of it is observed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rtcontrol_client.ros2.network import Service
from rtcontrol_client.ros2.views import StateView, shown


class ServiceClient:
    """One service. Its states: `idle`, `no server`, `waiting`, `answered`, `no answer`. Thread-safe."""

    failed = 0

    def __init__(
        self,
        name: str,
        view: type[StateView],
        service: Service,
        answer_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer_s`: so long an answer is waited for."""
        self.name, self._view, self._service, self._answer_s, self._now = name, view, service, answer_s, now
        self._lock = threading.Lock()
        self._state, self._response = "idle", None
        self._sent_s = 0.0

    def write(self, request: Any) -> bool:
        """Ask it; False where no server is there yet."""
        with self._lock:
            self._response = None
            if not self._service.ready():
                self._state = "no server"
                return False
            if not self._service.send(request):
                return False
            self._state, self._sent_s = "waiting", self._now()
            return True

    def readers(self) -> int:
        """Whether a server is there."""
        return int(self._service.ready())

    def advance(self) -> None:
        """Look for an answer; once a tick."""
        with self._lock:
            if self._state == "no server" and self._service.ready():
                self._state = "idle"
            for answer in self._service.answers():
                if self._state == "waiting":
                    self._state, self._response = "answered", answer
            if self._state == "waiting" and self._now() > self._sent_s + self._answer_s:
                self._state = "no answer"

    def poll(self) -> tuple[StateView, int]:
        """What is known of it now."""
        with self._lock:
            return shown(self._view, self._state, response=self._response), time.monotonic_ns()

    def trouble(self) -> str | None:
        """What is wrong with it now."""
        if not self._service.ready():
            return unserved(self.name)
        if self._state == "no answer":
            return f"{self.name} has not answered within {1e3 * self._answer_s:g} ms."
        return None


def unserved(name: str) -> str:
    """What is reported of a service or an action without a server."""
    return f"No node serves {name}. Start its node, or correct the name, the type or ROS_DOMAIN_ID."
