"""Sockets of the decoder's process, waits for several files with microsecond precision, and a watch on the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

import zmq

PING_EVERY_S = 1.0
# A process that is silent for more rounds than this is lost; a live one on a starved machine may be silent for fewer.
SILENT_ROUNDS = 9


def router_socket(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Return a new ROUTER that numbers its peers from a random start.

    libzmq 4.3.5 gives each peer a number that counts up from two values of the C library's rand(), which it never
    seeds. A peer that claims the next number as its own id ends the process by an assertion, so rand() is seeded here.
    """
    # PyDLL keeps the interpreter's lock: no Python thread uses rand() between the two lines.
    ctypes.PyDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    return context.socket(zmq.ROUTER)


class FilePoll:
    """Wait for files to be readable. poll() counts in whole ms, and select() cannot use descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        # struct pollfd of each file: fd, events, revents
        polled = b"".join(struct.pack("ihh", fd, select.POLLIN, 0) for fd in files)
        self._files, self._count = ctypes.create_string_buffer(polled), len(files)
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Wait at most `timeout_ns`; return whether a file is readable. A signal ends the wait."""
        timespec = (ctypes.c_long * 2)(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, self._count, timespec, None) > 0)


class WakeFile:
    """A file that is readable from `set` to `clear`. Any thread may call both methods."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = FilePoll([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is set
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Make the file unreadable again; return whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


class ProcessWatch:
    """Watch one incarnation of the decoder's process: its end, its answers to pings, and the essential files of Ray."""

    def __init__(self, process: Any, pid: int, wake: WakeFile) -> None:
        self._process, self._wake = process, wake
        self._end = os.pidfd_open(pid)
        self._poll = select.poll()
        for file in (self._end, wake.fd, *process.ray.essential_files):
            self._poll.register(file, select.POLLIN)
        self._ping: Any = None
        self._next_s = 0.0
        self._silent = 0  # rounds without an answer; the watcher counts them itself, so none while it does not run

    def lost(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for an event; return whether the process or a part of Ray is lost."""
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
