"""Print and log from any thread without blocking. If the reader is slow, lines are dropped and counted."""

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

from rtcontrol_client.shutdown import CLOSED_ERRORS

# Unicode categories of characters that are escaped: control and format characters, lone surrogates, line separators.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# These characters are not escaped: the tab, and the joiners and non-joiners of letters and emojis.
KEPT = "\t\u200c\u200d"


def printable(text: str, limit: int | None = None) -> str:
    """Return `text` as a single line. Characters that move the cursor, set colours or change the text direction are
    escaped (ESC as `\\x1b`). A text of more than `limit` characters is truncated and ends with its length."""
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c in KEPT or category(c) not in HIDDEN else c.encode("unicode_escape").decode() for c in text)


def printable_values(value: Any) -> Any:
    """Return a copy of `value` in which all texts, also in nested lists and mappings, are converted by `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_values(key): printable_values(inner) for key, inner in value.items()}
    return [printable_values(inner) for inner in value] if isinstance(value, list | tuple) else value


MAX_WAITING, MAX_LINE = 1024, 2000
# Seconds to wait until the last lines are written.
CLOSE_S = 0.7


class Outbox:
    """A queue of lines that a thread writes to a file descriptor. The queue has at most `MAX_WAITING` lines of at most
    `MAX_LINE` characters; further lines are dropped and counted in `dropped`, and the next line reports their number.
    `failed` is the error of a failed write, such as a full disk, unless the reader was closed."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self.failed: OSError | None = None
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._unreported_count = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_lines, name=f"outbox-{fd}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Write the queued lines, for at most `CLOSE_S` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def say(self, line: str) -> None:
        """Queue a line of text, converted by `printable`."""
        self.put(printable(line, MAX_LINE).encode("utf-8", "replace") + b"\n")

    def put(self, text: bytes) -> None:
        """Queue bytes unchanged; drop and count them if the queue is full or closed."""
        with self._changed:
            if self._closed or len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                self._unreported_count += 1
                return
            self._waiting.append(text)
            self._changed.notify()

    def _write_lines(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                text = self._waiting.popleft()
                unreported_count, self._unreported_count = self._unreported_count, 0
            if unreported_count:
                text = b"(%d lines were dropped because the reader was too slow)\n%b" % (unreported_count, text)
            if not self._write_text(text):
                return

    def _write_text(self, text: bytes) -> bool:
        """Write the bytes; return whether all were written. This uses `os.write`, since at exit the interpreter would
        wait for the lock of a Python file object, which a hanging write holds."""
        while text:
            try:
                text = text[os.write(self._fd, text) :]
            except OSError as error:
                with self._changed:
                    if error.errno not in CLOSED_ERRORS:
                        self.failed = error
                    self._closed = True
                    self.dropped += len(self._waiting)
                    self._waiting.clear()
                return False
        return True


class LineFormatter(logging.Formatter):
    """Formats a log entry as one line, and tracebacks with a prefix, so that no text can look like a log entry."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record), MAX_LINE)]
        # Do not use `record.exc_text`, which another handler may have formatted.
        raised = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join(lines + [f"  | {printable(line, MAX_LINE)}" for line in raised])


class OutboxLog(logging.Handler):
    """A log handler, and context manager, that writes the log of this program and its libraries to an outbox."""

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


class _QueuedFile(io.RawIOBase):
    """A file that writes to an outbox and never blocks. If `escaped`, `printable` converts each line."""

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
    """A context manager that redirects stdout of this process to the outbox `out`, and stderr, warnings and the log to
    the outbox `errors`. Streams that other code (a test, a library) has replaced are not redirected.

    If `escaped` is False, printed text is not converted by `printable`, for a program that draws on its terminal.
    """

    def __init__(self, escaped: bool = True, log: str | None = None) -> None:
        """Create both outboxes; `log` is the format of log lines for `logging`."""
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
                    raw = io.BufferedWriter(_QueuedFile(outbox, fd, self._escaped))
                    encoding = "utf-8" if self._escaped else stream.encoding
                    queued = io.TextIOWrapper(raw, encoding, "replace", line_buffering=True)
                    setattr(sys, name, queued)
                    stack.callback(_restore_stream, name, stream, queued)
            stack.enter_context(OutboxLog(self.errors, self._log))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def _restore_stream(name: str, stream: io.TextIOWrapper, queued: io.TextIOWrapper) -> None:
    queued.flush()
    if getattr(sys, name) is queued:
        setattr(sys, name, stream)
