"""Waiting for SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rtcontrol.fly import BY_SIGNAL, Interrupted


class Ended:
    """Which signal came first; a second one interrupts whatever hangs."""

    def __init__(self) -> None:
        self.name = ""
        self._event = threading.Event()

    def called(self) -> bool:
        return self._event.is_set()

    @property
    def status(self) -> int:
        """The exit status; 0 before a signal."""
        return BY_SIGNAL.get(self.name, 0)

    def wait(self) -> None:
        # A signal that the kernel gives to another thread (seen after SIGCONT) does not wake this one.
        while not self._event.wait(0.2):
            pass

    def handle(self, number: int, frame: object) -> None:
        if self.called():
            raise Interrupted(number)
        self.name = signal.Signals(number).name
        self._event.set()


@contextmanager
def until_signal() -> Iterator[Ended]:
    """SIGINT and SIGTERM are noted in what it gives."""
    ended = Ended()
    before = {number: signal.signal(number, ended.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
