"""How a program ends when it is asked to: SIGINT, SIGTERM and SIGHUP alike, in order, and whatever becomes of the
terminal that it was started from."""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATUS = {number.name: 128 + number for number in SIGNALS}
SAFE_CALL = b"still ending: the safe call is being executed; a third signal leaves at once\n"
WRITING = b"still ending: the report is being written\n"
DONE = b"ending: all is written; another signal leaves at once\n"
# What one signal interrupted is not interrupted anew by those that come along with it.
PEACE_S = 0.5


class Interrupted(KeyboardInterrupt):
    """Whatever hangs is left. `status` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Shutdown:
    """While it is entered (on the main thread), the first signal tells `stop` its name; the second one changes nothing
    and says so on stderr; each further one raises Interrupted with the first one's status, but for those within half a
    second of another that did. A first one before there is anything to stop raises it at once. While `shielded` is set
    none does.

    A process that was asked to end is over when it is left: of further signals the second one leaves what hangs in the
    interpreter's own end. SIGHUP stays ignored where it was (nohup). Entering also makes stdout and stderr outlive
    their terminal.
    """

    def __init__(self, stop: Callable[[str], object] | None = None) -> None:
        self.name, self.shielded = "", False
        self._stop, self._count, self._peace_s = stop, 0, 0.0
        self._doing = SAFE_CALL
        self._before: dict[int, Any] = {}

    def of(self, stop: Callable[[str], object]) -> None:
        """From now on this is to be stopped: at once, where a signal came already."""
        self._stop = stop
        if self.name:
            stop(self.name)

    def called(self) -> bool:
        return bool(self.name)

    @property
    def status(self) -> int:
        """The exit status; 0 before a signal."""
        return STATUS.get(self.name, 0)

    def wait(self) -> None:
        rest(self.called)

    def _handle(self, number: int, frame: object) -> None:
        self._count += 1
        self.name = self.name or signal.Signals(number).name
        if self._count == 2 or self.shielded:
            write_now(2, WRITING if self.shielded else self._doing)
        elif self._doing is DONE:
            os._exit(self.status)
        elif self._count > 2 or self._stop is None:
            if (now := time.monotonic()) >= self._peace_s:
                self._peace_s = now + PEACE_S
                raise Interrupted(signal.Signals[self.name])
        else:
            self._stop(self.name)

    def __enter__(self) -> Self:
        outlive_terminal()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.name:
            self._doing, self._count = DONE, 1
            atexit.register(_ignore)
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)


def write_now(fd: int, line: bytes) -> bool:
    """Whether it was written: it is not where somebody would have to read first."""
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        if select.select([], [fd], [], 0)[1]:
            return os.write(fd, line) > 0
    return False


def _ignore() -> None:
    # Python's own handlers end before the process does.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def rest(over: Callable[[], bool], until_s: float = math.inf) -> None:
    """Until `over`, or that instant of `time.monotonic`. For the main thread, where a handler makes it over."""
    # No lock that the handler would need, and in short sleeps: a signal that the kernel gives to another thread
    # (seen after SIGCONT) does not wake this one.
    while not over() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))


GONE = (errno.EIO, errno.EPIPE)  # errors of a write: the terminal or the reader is not there any more


class _Lasting(io.FileIO):
    """What is written to a terminal or a reader that is gone is lost without a word; for any other reason (a full
    disk), with one: `unwritten`."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                self.failed = error
            return memoryview(data).nbytes


def unwritten() -> OSError | None:
    """Why stdout could not be written to, if it was there and could not."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failed if isinstance(raw, _Lasting) else None


def unicode(stream: Any) -> bool:
    """Whether a stream has all characters."""
    return str(stream.encoding).lower().startswith("utf")


def _stand_in() -> None:
    """/dev/null in the place of what is closed of stdin, stdout and stderr: what is opened next would be given its
    number, a record or a socket, and then all that is printed."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it is `fd`: the lowest that is free
            if getattr(sys, name) is None:
                setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def outlive_terminal() -> None:
    """From now on nothing that is written to stdout or stderr raises because nobody is there any more, or because they
    lack a character: `?` stands for that. Where they were closed before the start, it is lost."""
    _stand_in()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # none, or somebody's own
        if isinstance(getattr(stream.buffer, "raw", None), _Lasting):
            continue
        stream.flush()
        raw = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
        raises = stream.errors == "strict" or (stream.errors == "surrogateescape" and not unicode(stream))
        lasting = io.TextIOWrapper(raw, stream.encoding, "replace" if raises else stream.errors, line_buffering=True)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)
