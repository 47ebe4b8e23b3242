"""Files to wait for, to the microsecond, and one that any thread makes readable."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Sequence


class _Poll(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Files:
    """Waits for files to be readable, to the microsecond: poll() counts in whole milliseconds, and select() knows no
    descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = (_Poll * len(files))(*(_Poll(fd, select.POLLIN, 0) for fd in files))
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Whether one is readable within the time; a signal ends the wait."""
        timeout = _Timespec(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, len(self._files), ctypes.byref(timeout), None) > 0)


class WakeFile:
    """A file that is readable after `set` until `clear`; any thread may call them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = Files([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is set
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)
