"""Lines for people, from any thread, that never hold a thread up: a reader that stops reading loses lines."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from types import TracebackType
from typing import Self

MAX_WAITING, MAX_LINE = 1024, 2000
# How long the last lines may take to leave.
CLOSE_S = 1.0


class Outbox:
    """Writes to a file descriptor on a thread of its own. `say` queues at most `MAX_WAITING` lines; what comes beyond
    is counted in `dropped`, and told with the next line that is written."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self._fd = fd
        self._waiting: deque[str] = deque()
        self._untold = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name=f"outbox-{fd}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Write what waits, for a second at most."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def say(self, line: str) -> None:
        with self._changed:
            if self._closed or len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                self._untold += 1
                return
            self._waiting.append(line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "...")
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                line = self._waiting.popleft()
                untold, self._untold = self._untold, 0
            if untold:
                line = f"({untold} lines were lost: nobody read them)\n{line}"
            if not self._put(f"{line}\n".encode("utf-8", "replace")):
                return

    def _put(self, text: bytes) -> bool:
        """False where nobody will ever read. Not by way of Python's own file: at the end it would wait for its lock,
        which a write that stands still holds."""
        while text:
            try:
                text = text[os.write(self._fd, text) :]
            except OSError:
                with self._changed:
                    self._closed = True
                    self.dropped += len(self._waiting)
                    self._waiting.clear()
                return False
        return True


class OutboxLog(logging.Handler):
    """The log of this program, by way of an outbox, while it is entered: refused keys and the like are logged by
    threads that must not wait for a reader of stderr either."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._logger = logging.getLogger("rtcontrol")

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.say(self.format(record))

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
