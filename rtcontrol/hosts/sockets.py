"""Helpers for the decoder's process: its socket, waits for files with microsecond precision, a watch on the process."""

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
# A process counts as lost if it has not answered a ping for more than this number of rounds (PING_EVERY_S each).
SILENT_ROUNDS = 9


def router_socket(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Return a new ROUTER socket whose peer numbers cannot be guessed.

    libzmq 4.3.5 numbers the peers, starting at two values of the C library's rand(), which it does not seed. A peer
    that uses the next number as its id would end this process by an assertion. So this function seeds rand()."""
    # PyDLL keeps the interpreter's lock, so no other Python thread calls rand() before the socket is created.
    ctypes.PyDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    return context.socket(zmq.ROUTER)


class FilePoll:
    """A poll of files by ppoll(), which has a finer timeout than poll(), and no limit on the number of files."""

    def __init__(self, files: Sequence[int]) -> None:
        # The bytes of C's struct pollfd for each file: (fd, events, revents).
        polled = b"".join(struct.pack("ihh", fd, select.POLLIN, 0) for fd in files)
        self._files, self._count = ctypes.create_string_buffer(polled), len(files)
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Wait for at most `timeout_ns`. Return whether a file is readable. A signal ends the wait early."""
        timespec = (ctypes.c_long * 2)(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, self._count, timespec, None) > 0)


class WakeFile:
    """A file that `set` makes readable and `clear` makes unreadable. Any thread may call both methods."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = FilePoll([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is at its maximum, so the file is already readable
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Make the file unreadable again. Return whether the file was readable."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


class ProcessWatch:
    """A watch on one incarnation of the decoder's process: whether it ends, does not answer pings, or a part of Ray
    ends."""

    def __init__(self, process: Any, pid: int, wake: WakeFile) -> None:
        self._process, self._wake = process, wake
        self._end = os.pidfd_open(pid)
        self._poll = select.poll()
        for file in (self._end, wake.fd, *process.ray.essential_files):
            self._poll.register(file, select.POLLIN)
        self._ping: Any = None
        self._next_s = 0.0
        self._silent = 0  # number of rounds since the last answer to a ping

    def loss(self, timeout_s: float) -> str:
        """Wait at most `timeout_s` for an event. Return how the process was lost, or an empty text if it is alive."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PING_EVERY_S
            self._silent += 1
            if self._ping is None or self._process.result(self._ping):
                self._ping, self._silent = self._process.ping(), 0
        ready = {file for file, _ in self._poll.poll(max(1, int(1e3 * timeout_s)))}
        if self._wake.fd in ready:
            self._wake.clear()
        if self._end in ready:
            return "has ended"
        if ready - {self._wake.fd}:
            return "was lost with a part of Ray"
        hangs = self._silent > SILENT_ROUNDS
        return f"did not answer for {PING_EVERY_S * self._silent:g} s (it hangs), and is killed" if hangs else ""

    def close(self) -> None:
        os.close(self._end)
