"""Wait for several files at once: exactly to the microsecond, or for the end of a decoder's process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
from collections.abc import Sequence
from typing import Any

PING_EVERY_S = 1.0
# A process that was silent in so many rounds is lost; fewer may be those of a live one on a starved machine.
SILENT_ROUNDS = 10


class _Poll(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Files:
    """Wait for files to be readable. poll() counts in whole ms, and select() knows no descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = (_Poll * len(files))(*(_Poll(fd, select.POLLIN, 0) for fd in files))
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Return whether a file is readable within the time. A signal ends the wait."""
        timeout = _Timespec(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, len(self._files), ctypes.byref(timeout), None) > 0)


class WakeFile:
    """A file that is readable from `set` to `clear`. Any thread may call them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = Files([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is set
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Clear it; return whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


class Heart:
    """Watch one life of a decoder's process: its end, its answers to pings, and the `vital` files of Ray."""

    def __init__(self, process: Any, pid: int, wake: WakeFile) -> None:
        self._process, self._wake = process, wake
        self._end = os.pidfd_open(pid)
        self._poll = select.poll()
        for file in (self._end, wake.fd, *process.ray.vital):
            self._poll.register(file, select.POLLIN)
        self._ping: Any = None
        self._next_s = 0.0
        self._silent = 0  # rounds that the watcher ran itself: while it does not run, no process is silent

    def lost(self, timeout_s: float) -> bool:
        """Wait for an event, at most so long; return whether the process is lost, or a part of Ray."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PING_EVERY_S
            self._silent += 1
            if self._ping is None or self._process.result(self._ping):
                self._ping, self._silent = self._process.ping(), 0
        ready = {file for file, _ in self._poll.poll(max(1, int(1e3 * timeout_s)))}
        if self._wake.fd in ready:
            self._wake.clear()
        return bool(ready - {self._wake.fd}) or self._silent > SILENT_ROUNDS

    def close(self) -> None:
        os.close(self._end)
