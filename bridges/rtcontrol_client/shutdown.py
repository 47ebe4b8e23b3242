"""End or suspend a program on a signal after its safe call was executed, even if the terminal is closed."""

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
from collections.abc import Callable, Iterator
from typing import Any, Self


def _existing_signals(*names: str) -> tuple[signal.Signals, ...]:
    return tuple(signal.Signals[name] for name in names if hasattr(signal, name))


# Users end a program with these signals. Each repetition counts. Handlers that user code sets are replaced.
SIGNALS = _existing_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# By default, these signals also end a program, but user code may use them for other purposes.
OTHERS = _existing_signals(
    "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT",
    "SIGABRT", "SIGTRAP", "SIGSYS",
)  # fmt: skip
SUSPENDS = signal.SIGTSTP
# By default, these signals of the terminal stop a background program, without its safe call.
TERMINAL = _existing_signals("SIGTTIN", "SIGTTOU")
# These are handled even if the starting shell ignores them, as it does for a script's background jobs.
ALWAYS = _existing_signals("SIGINT", "SIGTERM", "SIGQUIT")
STATUS = {number.name: 128 + number for number in (*SIGNALS, *OTHERS)}
SAFE_CALL = b"still ending: the safe call is being executed; a third signal leaves at once\n"
WRITING = b"still ending: the report is being written\n"
DONE = b"ending: all is written; another signal leaves at once\n"
# After a signal has interrupted the program, further signals do not interrupt it for this number of seconds.
INTERRUPT_INTERVAL_S = 0.5
BACKGROUND_S = 0.5  # seconds between a background program's checks whether it may read its terminal
RETAKE_S = 0.1  # seconds between two times that a waiting program restores its signal handlers
Suspend = Callable[[Callable[[], None]], object]


class Interrupted(KeyboardInterrupt):
    """Raised by a signal handler to end code that hangs. `status` is the exit status of the process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class KernelHandlers:
    """Reads and restores signal handlers in the operating system, since C code may change them without Python."""

    POINTER = ctypes.sizeof(ctypes.c_void_p)  # the handler is the first field of struct sigaction
    SIZE = 256  # bytes; struct sigaction is smaller on every system

    def __init__(self) -> None:
        self._libc = ctypes.PyDLL(None)
        self._buffer = ctypes.create_string_buffer(self.SIZE)
        self._stored_handlers: dict[int, bytes] = {}

    def keep(self, number: int) -> None:
        """Store the current handler of a signal, for the methods `changed` and `restore`."""
        self._libc.sigaction(int(number), None, self._buffer)
        self._stored_handlers[number] = self._buffer.raw

    def handler(self, number: int) -> bytes:
        """Return the address of a signal's current handler; zero bytes mean the default action."""
        self._libc.sigaction(int(number), None, self._buffer)
        return self._buffer.raw[: self.POINTER]

    def changed(self, number: int) -> bool:
        return self.handler(number) != self._stored_handlers[number][: self.POINTER]

    def restore(self, number: int) -> None:
        self._libc.sigaction(int(number), self._stored_handlers[number], None)


# This `getsignal` does not convert to an enumeration as `signal.getsignal` does, which takes 3 us per signal.
_getsignal = importlib.import_module("_signal").getsignal
DEFAULT = bytes(KernelHandlers.POINTER)


class Shutdown:
    """A context manager for the main thread that handles signals: it calls `stop` with the name of the first signal.

    The second signal only prints a line on stderr. Each further signal raises Interrupted, with the exit status of the
    first signal, but at most every INTERRUPT_INTERVAL_S seconds. Without `stop`, the first signal raises Interrupted.
    While `shielded` is True, no signal raises an error. These rules are for SIGNALS; the first signal of OTHERS calls
    `stop`, and further signals of OTHERS are ignored.

    SIGTSTP calls `suspend` with a function that stops the process until SIGCONT. Call this function on the main thread
    when the safe call is active. Without `suspend`, SIGTSTP stops the process immediately. SIGTTIN and SIGTTOU are
    ignored, so that a terminal does not stop a background program.

    User code, or a library in C, may replace these handlers; `retake` restores them.

    The program should end when it leaves this context after a signal. If the interpreter then hangs, the second of two
    further signals ends it. SIGHUP, SIGTSTP and OTHERS stay ignored if they were ignored at the start (as by nohup). In
    the context, writes to stdout and stderr do not fail if the terminal is closed.
    """

    def __init__(self, stop: Callable[[str], object] | None = None, suspend: Suspend | None = None) -> None:
        self.name, self.shielded = "", False
        self._stop, self._suspend, self._count, self._next_interrupt_s = stop, suspend, 0, 0.0
        self._progress_line = SAFE_CALL
        self._earlier_handlers: dict[int, Any] = {}
        self._terminal_handlers: dict[int, Any] = {}
        self._kernel = KernelHandlers()
        self._restored: set[int] = set()  # signals that `retake` has restored
        self._unblocked_signals: list[int] = []

    def of(self, stop: Callable[[str], object], suspend: Suspend | None = None) -> None:
        """Replace the functions `stop` and `suspend`; call `stop` immediately if a signal has already arrived."""
        self._stop, self._suspend = stop, suspend
        if self.name:
            stop(self.name)

    def called(self) -> bool:
        """Return whether a signal has arrived."""
        return bool(self.name)

    def forced(self) -> bool:
        """Return whether a third signal has arrived, so that the program must end immediately."""
        return self._count > 2

    @property
    def status(self) -> int:
        """Return the exit status after a signal; 0 if no signal has arrived."""
        return STATUS.get(self.name, 0)

    def wait(self) -> None:
        """Wait until a signal arrives; meanwhile, restore replaced signal handlers."""
        while not self.called():
            self.retake()
            rest(self.called, time.monotonic() + RETAKE_S)

    def retake(self) -> list[str]:
        """Restore the signal handlers that other code has replaced in the operating system. Any thread may call this.

        Returns the names of the signals that were restored for the first time. Handlers that other code set for OTHERS
        are kept, since they do not end the program. Only the main thread can undo changes by Python's `signal` module.
        """
        taken = []
        main = threading.current_thread() is threading.main_thread()
        for number in self._earlier_handlers:
            by_python = main and _getsignal(number) != self._handler(number)
            if not (by_python or self._kernel.changed(number)):
                continue
            if number in OTHERS and self._kernel.handler(number) != DEFAULT:
                continue
            if main:
                signal.signal(number, self._handler(number))
            else:
                self._kernel.restore(number)
            if number not in self._restored:
                self._restored.add(number)
                taken.append(signal.Signals(number).name)
        if main:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._unblocked_signals)
        return taken

    def _handler(self, number: int) -> Callable[[int, object], None]:
        return self._on_suspend if number == SUSPENDS else self._handle

    def _handle(self, number: int, frame: object) -> None:
        if self.name and number in OTHERS:
            return
        self._count += 1
        self.name = self.name or signal.Signals(number).name
        if self._count == 2 or self.shielded:
            write_without_blocking(2, WRITING if self.shielded else self._progress_line)
        elif self._progress_line is DONE:
            os._exit(self.status)
        elif self._count > 2 or self._stop is None:
            if (now := time.monotonic()) >= self._next_interrupt_s:
                self._next_interrupt_s = now + INTERRUPT_INTERVAL_S
                raise Interrupted(signal.Signals[self.name])
        else:
            self._stop(self.name)

    def _on_suspend(self, number: int, frame: object) -> None:
        if self.name:
            return  # the program is ending already, with its safe call active
        if self._suspend is None:
            self._stop_process()
        else:
            self._suspend(self._stop_process)

    def _stop_process(self) -> None:
        """Stop the process until SIGCONT, as SIGTSTP does by default."""
        signal.signal(SUSPENDS, signal.SIG_DFL)
        os.kill(os.getpid(), SUSPENDS)
        signal.signal(SUSPENDS, self._on_suspend)

    def __enter__(self) -> Self:
        ignore_closed_terminal()
        for number in (*SIGNALS, *OTHERS, SUSPENDS):
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number not in ALWAYS:
                continue
            if number in OTHERS and (before is not signal.SIG_DFL or self._kernel.handler(number) != DEFAULT):
                continue  # other code uses this signal, such as `faulthandler`
            self._earlier_handlers[number] = signal.signal(number, self._handler(number))
            self._kernel.keep(number)
        self._unblocked_signals = [number for number in self._earlier_handlers if number not in OTHERS]
        self._terminal_handlers = {number: signal.signal(number, signal.SIG_IGN) for number in TERMINAL}
        _entered.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.name:
            self._progress_line, self._count = DONE, 1
            atexit.register(_ignore_signals)
            return
        _entered.remove(self)
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in {**self._earlier_handlers, **self._terminal_handlers}.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None means that C code had set it


_entered: list[Shutdown] = []
_forking = threading.local()


def _block_signals() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*SIGNALS, *OTHERS] if _entered else [])


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore_in_child() -> None:
    """Restore the default handlers in a forked process, such as a helper of a user's world, so that signals end it."""
    for ending in reversed(_entered):
        ending._restore_handlers()
    _entered.clear()
    _unblock_signals()


# Block signals during a fork: Python discards those that reach the new process before its handlers are set.
os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_in_child)


def write_without_blocking(fd: int, line: bytes) -> bool:
    """Write a line if this does not block; return whether the line was written."""
    with contextlib.suppress(OSError, ValueError):  # the terminal may be closed
        if select.select([], [fd], [], 0)[1]:
            return os.write(fd, line) > 0
    return False


def _ignore_signals() -> None:
    # Ignore signals at the end, because the interpreter removes its signal handlers before the process ends.
    for number in (*SIGNALS, *OTHERS):
        signal.signal(number, signal.SIG_IGN)


def rest(over: Callable[[], bool], until_s: float = math.inf) -> None:
    """Sleep until `over()` is True or `time.monotonic()` reaches `until_s`. For the main thread, which handles signals.

    Use short sleeps: a signal that the kernel sends to another thread (as after SIGCONT) does not wake this thread."""
    while not over() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))


def read_lines(descriptor: int = 0) -> Iterator[str]:
    """Yield the lines that people type on a terminal or that a pipe sends, without spaces at their ends. While this
    program is in the background of its terminal, wait until it is in the foreground."""
    # Do not use `sys.stdin`, since at exit Python would wait for its lock, which a blocked read holds.
    rest = b""
    while True:
        with contextlib.suppress(OSError):
            while os.tcgetpgrp(descriptor) != os.getpgrp():
                time.sleep(BACKGROUND_S)
        try:
            read = os.read(descriptor, 4096)
        except OSError as error:
            if error.errno == errno.EIO and _has_terminal(descriptor):
                continue  # the program was moved to the background
            return
        *lines, rest = (rest + read).split(b"\n")
        for line in lines if read else [rest]:
            if text := line.decode("utf-8", "replace").strip().removeprefix("\ufeff"):
                yield text
        if not read:
            return


def _has_terminal(descriptor: int) -> bool:
    """Return whether a descriptor is this process's terminal, and the terminal still exists."""
    try:
        return os.tcgetpgrp(descriptor) > 0
    except OSError:
        return False


CLOSED_ERRORS = (errno.EIO, errno.EPIPE)  # a write raises these after the terminal or the reader was closed


class _UnfailingFile(io.FileIO):
    """A file whose writes never raise an error, even if the terminal or the reader is closed. `failed` is the error of
    a write for another reason, such as a full disk."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in CLOSED_ERRORS:
                self.failed = error
            return memoryview(data).nbytes


def unwritten() -> OSError | None:
    """Return the error of a failed write to stdout; None if no write failed, or if the reader was closed."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failed if isinstance(raw, _UnfailingFile) else None


def _open_missing_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr. Otherwise the next opened file or socket would get
    the free file descriptor, and printed text would be written to it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, `fd`
            if getattr(sys, name) is None:
                setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def ignore_closed_terminal() -> None:
    """Prevent errors of writes to stdout and stderr if the reader is closed, or if a character cannot be encoded (it
    becomes `?`). Text for a stream that was closed at the start is lost."""
    _open_missing_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # other code has closed or replaced this stream
        if isinstance(getattr(stream.buffer, "raw", None), _UnfailingFile):
            continue
        stream.flush()
        raw = io.BufferedWriter(_UnfailingFile(stream.fileno(), "w", closefd=False))
        lasting = io.TextIOWrapper(raw, stream.encoding, "replace", line_buffering=True)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)
