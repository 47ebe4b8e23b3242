"""A disk for one file that can be slow or refuse: a pipe, and a thread that takes what is written into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from pathlib import Path
from typing import Literal

POLL_S = 0.02
# A slow disk must be felt at once: so little waits in the pipe.
PIPE_BYTES = 4096


class Disk:
    """What is written to the pipe `path` lands in `file`. `state`: while it is "slow" a write waits, as for a disk that
    does not answer; while it is "full" a write is refused (EPIPE, where a file system says ENOSPC)."""

    def __init__(self, path: Path, file: Path) -> None:
        self.state: Literal["sound", "slow", "full"] = "sound"
        self._path, self._file = path, file.open("wb")
        os.mkfifo(path)
        self._fd: int | None = self._open()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After the writer has ended: all that it wrote is in the file. Twice does no harm."""
        self.state = "sound"
        self._over.set()
        self._thread.join()
        self._file.close()

    def _open(self) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return fd

    def _work(self) -> None:
        while True:
            if self.state == "full" and self._fd is not None:
                os.close(self._fd)
                self._fd = None
            if self.state != "sound":
                time.sleep(POLL_S)
                continue
            if self._fd is None:
                # By descriptor: the writer may have renamed the pipe meanwhile.
                self._fd = self._reopen()
            over = self._over.is_set()
            data = b""
            if select.select([self._fd], [], [], POLL_S)[0]:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self._fd, 1 << 16)
            if data:
                self._file.write(data)
            elif over:
                break
            else:
                time.sleep(POLL_S)
        os.close(self._fd)

    def _reopen(self) -> int:
        for path in (self._path, self._path.with_suffix("")):  # record.mcap.part becomes record.mcap
            with contextlib.suppress(FileNotFoundError):
                self._path = path
                return self._open()
        raise FileNotFoundError(self._path)
