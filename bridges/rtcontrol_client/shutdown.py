"""End or suspend a program in order on a signal: the safe call comes first, even if the terminal is gone."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import importlib
import io
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self


def _there(*names: str) -> tuple[signal.Signals, ...]:
    return tuple(signal.Signals[name] for name in names if hasattr(signal, name))


# Users end a program by these signals: each further one counts, and handlers that user code sets are replaced again.
SIGNALS = _there("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# By default these signals end a program as well. User code may use them for other purposes.
OTHERS = _there(
    "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT"
)  # fmt: skip
SUSPENDS = signal.SIGTSTP
# Handled even if the shell that started this program ignores them, as for a script's background jobs.
ALWAYS = _there("SIGINT", "SIGTERM", "SIGQUIT")
STATUS = {number.name: 128 + number for number in (*SIGNALS, *OTHERS)}
SAFE_CALL = b"still ending: the safe call is being executed; a third signal leaves at once\n"
WRITING = b"still ending: the report is being written\n"
DONE = b"ending: all is written; another signal leaves at once\n"
# After a signal has interrupted the program, further signals do not interrupt it again for this long.
PEACE_S = 0.5
RETAKE_S = 0.1  # how often a program that only waits takes back its signals
Suspend = Callable[[Callable[[], None]], object]


class Interrupted(KeyboardInterrupt):
    """Raised to leave whatever hangs. `status` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class KernelHandlers:
    """The operating system's signal handlers, which C code may change without Python's knowledge."""

    POINTER = ctypes.sizeof(ctypes.c_void_p)  # the handler is the first field of struct sigaction
    SIZE = 256  # more than any system's

    def __init__(self) -> None:
        self._libc = ctypes.PyDLL(None)
        self._buffer = ctypes.create_string_buffer(self.SIZE)
        self._kept: dict[int, bytes] = {}

    def keep(self, number: int) -> None:
        """Remember the present handler."""
        self._libc.sigaction(int(number), None, self._buffer)
        self._kept[number] = self._buffer.raw

    def handler(self, number: int) -> bytes:
        """Return the present handler's address; zero bytes are the default action."""
        self._libc.sigaction(int(number), None, self._buffer)
        return self._buffer.raw[: self.POINTER]

    def changed(self, number: int) -> bool:
        return self.handler(number) != self._kept[number][: self.POINTER]

    def restore(self, number: int) -> None:
        self._libc.sigaction(int(number), self._kept[number], None)


# `signal.getsignal` without its conversion to an enumeration, which takes 3 us for each signal.
_getsignal = importlib.import_module("_signal").getsignal
DEFAULT = bytes(KernelHandlers.POINTER)


class Shutdown:
    """Handle signals while entered (on the main thread): `stop` gets the name of the first signal.

    The second signal changes nothing, and stderr says so. Each further signal raises Interrupted with the status of the
    first one, unless another has done so in the last half second. Without a `stop` the first signal raises Interrupted
    at once. While `shielded` is set, no signal raises. Only SIGNALS count like this; the first of OTHERS ends the
    program, and further ones change nothing.

    SIGTSTP calls `suspend` with a function that stops the process until it is continued: call that function on the main
    thread once the safe call is active. Without a `suspend` the process stops at once.

    User code, or a library in C, may replace these handlers: `retake` restores them.

    After a signal the program is expected to end when this is left: the second further signal ends an interpreter that
    hangs at exit. SIGHUP, SIGTSTP and OTHERS stay ignored if they were (nohup). Entering also makes stdout and stderr
    outlive their terminal.
    """

    def __init__(self, stop: Callable[[str], object] | None = None, suspend: Suspend | None = None) -> None:
        self.name, self.shielded = "", False
        self._stop, self._suspend, self._count, self._peace_s = stop, suspend, 0, 0.0
        self._doing = SAFE_CALL
        self._before: dict[int, Any] = {}
        self._kernel = KernelHandlers()
        self._noted: set[int] = set()  # signals that were taken back before
        self._unblocked: list[int] = []

    def of(self, stop: Callable[[str], object], suspend: Suspend | None = None) -> None:
        """Set what a signal stops and suspends from now on; call `stop` at once if a signal has come already."""
        self._stop, self._suspend = stop, suspend
        if self.name:
            stop(self.name)

    def called(self) -> bool:
        """Return whether a signal has come."""
        return bool(self.name)

    @property
    def status(self) -> int:
        """The exit status; 0 before a signal."""
        return STATUS.get(self.name, 0)

    def wait(self) -> None:
        """Wait for a signal."""
        while not self.called():
            self.retake()
            rest(self.called, time.monotonic() + RETAKE_S)

    def retake(self) -> list[str]:
        """Restore the signal handlers that other code has replaced in the operating system. Any thread may call this.

        Returns the names of the signals restored for the first time. A handler that other code set for one of OTHERS
        stays, since it does not end the program. Only the main thread can undo changes by Python's own `signal`.
        """
        taken = []
        main = threading.current_thread() is threading.main_thread()
        for number in self._before:
            by_python = main and _getsignal(number) != self._handler(number)
            if not (by_python or self._kernel.changed(number)):
                continue
            if number in OTHERS and self._kernel.handler(number) != DEFAULT:
                continue
            if main:
                signal.signal(number, self._handler(number))
            else:
                self._kernel.restore(number)
            if number not in self._noted:
                self._noted.add(number)
                taken.append(signal.Signals(number).name)
        if main:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._unblocked)
        return taken

    def _handler(self, number: int) -> Callable[[int, object], None]:
        return self._on_suspend if number == SUSPENDS else self._handle

    def _handle(self, number: int, frame: object) -> None:
        if self.name and number in OTHERS:
            return
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

    def _on_suspend(self, number: int, frame: object) -> None:
        if self.name:
            return  # the program is already ending with the safe call
        if self._suspend is None:
            self._halt()
        else:
            self._suspend(self._halt)

    def _halt(self) -> None:
        """Stop the process, as SIGTSTP does by default, until it is continued."""
        signal.signal(SUSPENDS, signal.SIG_DFL)
        os.kill(os.getpid(), SUSPENDS)
        signal.signal(SUSPENDS, self._on_suspend)

    def __enter__(self) -> Self:
        outlive_terminal()
        for number in (*SIGNALS, *OTHERS, SUSPENDS):
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number not in ALWAYS:
                continue
            if number in OTHERS and before is not signal.SIG_DFL:
                continue  # other code uses this signal
            self._before[number] = signal.signal(number, self._handler(number))
            self._kernel.keep(number)
        self._unblocked = [number for number in self._before if number not in OTHERS]
        return self

    def __exit__(self, *exc: object) -> None:
        if self.name:
            self._doing, self._count = DONE, 1
            atexit.register(_ignore)
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by C code


def write_now(fd: int, line: bytes) -> bool:
    """Write a line if that is possible without waiting; return whether it was written."""
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        if select.select([], [fd], [], 0)[1]:
            return os.write(fd, line) > 0
    return False


def _ignore() -> None:
    # Python's own handlers end before the process does.
    for number in (*SIGNALS, *OTHERS):
        signal.signal(number, signal.SIG_IGN)


def rest(over: Callable[[], bool], until_s: float = math.inf) -> None:
    """Wait until `over()` or until `time.monotonic()` reaches `until_s`. For the main thread, which handles signals."""
    # No lock that the handler would need, and in short sleeps: a signal that the kernel gives to another thread
    # (seen after SIGCONT) does not wake this one.
    while not over() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))


GONE = (errno.EIO, errno.EPIPE)  # a write fails with these errors if the terminal or the reader is gone


class _Lasting(io.FileIO):
    """A stream whose writes succeed even if the terminal or the reader is gone; another error (such as a full disk) is
    kept in `failed`."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                self.failed = error
            return memoryview(data).nbytes


def unwritten() -> OSError | None:
    """Return the error of a failed write to stdout, or None if there was none or the reader is gone."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failed if isinstance(raw, _Lasting) else None


def _stand_in() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr: otherwise the next file or socket to be opened would
    get the free number, and then all printed text."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # this gets the number `fd`, the lowest free one
            if getattr(sys, name) is None:
                setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def outlive_terminal() -> None:
    """Keep writes to stdout or stderr from raising if the reader is gone or the encoding lacks a character (written as
    `?`). Output to a stream that was closed before the start is lost."""
    _stand_in()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # other code has closed or replaced this stream
        if isinstance(getattr(stream.buffer, "raw", None), _Lasting):
            continue
        stream.flush()
        raw = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
        lasting = io.TextIOWrapper(raw, stream.encoding, "replace", line_buffering=True)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)
