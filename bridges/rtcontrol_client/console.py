"""Print and log in any thread without waiting for a reader: one that stops reading loses lines, which are counted."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from unicodedata import category

from rtcontrol_client.shutdown import GONE

# Control, format (among them what turns the direction of text), lone surrogates, separators of lines and paragraphs.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# The tab, and what joins letters and emojis, or keeps them apart.
KEPT = "\t\u200c\u200d"


def printable(text: str, limit: int | None = None) -> str:
    """Return `text` as one line in which nothing moves a cursor, colours, or turns the direction: such characters are
    escaped, ESC as `\\x1b`. Of a longer one the first `limit` characters, with their number."""
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c in KEPT or category(c) not in HIDDEN else c.encode("unicode_escape").decode() for c in text)


def throughout(value: Any) -> Any:
    """Return `value` with every text in it, and in its lists and mappings, as `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {throughout(key): throughout(inner) for key, inner in value.items()}
    return [throughout(inner) for inner in value] if isinstance(value, list | tuple) else value


MAX_WAITING, MAX_LINE = 1024, 2000
# How long the last lines may take to leave.
CLOSE_S = 0.7


class Outbox:
    """Writes to a file descriptor on its own thread. `say` queues at most `MAX_WAITING` lines of at most `MAX_LINE`
    characters; the count of those beyond is `dropped`, and comes before the next line that is written.
    `failed` is why it cannot be written to though it is there (a full disk)."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self.failed: OSError | None = None
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._untold = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name=f"outbox-{fd}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Write what waits, for `CLOSE_S` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def say(self, line: str) -> None:
        """Queue a line, made `printable`."""
        self.put(printable(line, MAX_LINE).encode("utf-8", "replace") + b"\n")

    def put(self, text: bytes) -> None:
        """Queue bytes as they are."""
        with self._changed:
            if self._closed or len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                self._untold += 1
                return
            self._waiting.append(text)
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                text = self._waiting.popleft()
                untold, self._untold = self._untold, 0
            if untold:
                text = b"(%d lines were lost: nobody read them)\n%b" % (untold, text)
            if not self._put(text):
                return

    def _put(self, text: bytes) -> bool:
        """Return whether it was written. Not by way of Python's own file: at the end it would wait for its lock, which
        a write that hangs holds."""
        while text:
            try:
                text = text[os.write(self._fd, text) :]
            except OSError as error:
                with self._changed:
                    if error.errno not in GONE:
                        self.failed = error
                    self._closed = True
                    self.dropped += len(self._waiting)
                    self._waiting.clear()
                return False
        return True


class LineFormatter(logging.Formatter):
    """Formats an entry as a line, and a traceback's lines after a bar: no text of others can look like an entry."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record), MAX_LINE)]
        # Not the record's text of it, which another handler may have formatted.
        raised = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join(lines + [f"  | {printable(line, MAX_LINE)}" for line in raised])


class OutboxLog(logging.Handler):
    """The log of this program and of the libraries in it, by way of an outbox, while it is entered."""

    def __init__(self, outbox: Outbox, form: str | None = None) -> None:
        super().__init__()
        self._outbox = outbox
        self.setFormatter(LineFormatter(form))

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.put(self.format(record).encode("utf-8", "replace") + b"\n")

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger().removeHandler(self)


class _Queued(io.RawIOBase):
    """A file that never keeps its writer waiting. `escaped`: line by line, as printable text."""

    def __init__(self, outbox: Outbox, fd: int, escaped: bool) -> None:
        self._outbox, self._fd, self._escaped = outbox, fd, escaped

    def write(self, data: Any) -> int:
        text = bytes(data)
        if self._escaped:
            for line in text.decode("utf-8", "replace").removesuffix("\n").split("\n"):
                self._outbox.say(line)
        else:
            self._outbox.put(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)


class StandardStreams:
    """stdout and stderr of this process while it is entered, for all that prints, warns or logs: each through an outbox
    (`out`, `errors`). A stream that somebody has replaced (a test, a library) stays so.

    `escaped` false is for a program that draws on its terminal: what is printed leaves as it is.
    """

    def __init__(self, escaped: bool = True, log: str | None = None) -> None:
        """`log`: the form of the log's lines, as `logging` knows it."""
        self.out, self.errors = Outbox(1), Outbox(2)
        self._escaped, self._log = escaped, log
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            for name, outbox, fd in (("stdout", self.out, 1), ("stderr", self.errors, 2)):
                stack.enter_context(outbox)
                stream = getattr(sys, name)
                if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
                    stream.flush()
                    raw = io.BufferedWriter(_Queued(outbox, fd, self._escaped))
                    encoding = "utf-8" if self._escaped else stream.encoding
                    queued = io.TextIOWrapper(raw, encoding, "replace", line_buffering=True)
                    setattr(sys, name, queued)
                    stack.callback(_restore, name, stream, queued)
            stack.enter_context(OutboxLog(self.errors, self._log))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def _restore(name: str, stream: io.TextIOWrapper, queued: io.TextIOWrapper) -> None:
    queued.flush()
    if getattr(sys, name) is queued:
        setattr(sys, name, stream)
