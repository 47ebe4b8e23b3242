"""Wakes a thread that polls files, from any other thread."""

from __future__ import annotations

import contextlib
import os


class Wake:
    """`fd` is readable after `set` until `clear`. A second `set` costs nothing."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Before looking at what was announced: whatever comes later sets it again."""
        # In this order: a `set` in between is of something that is looked at next. One that has not yet written, or
        # two that wrote at once, only wake for nothing.
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 64)
        self._is_set = False

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)
