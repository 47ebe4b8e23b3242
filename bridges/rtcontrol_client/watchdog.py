"""Kill a process that does not respond, because code in C holds Python's lock and does not return. Only for Linux.

No thread of such a process can run, so a second process watches it. The second process runs this file as a program, so
this file imports only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

BEAT_S = 0.1
HANG_S, GUARDED_HANG_S = 10.0, 1.0  # default limits in seconds: without a guard, with a guard
GUARD_S = 10.0  # seconds that the guard command may take
SAFE_CALLS = "RTCONTROL_SAFE_CALLS"  # this environment variable of the guard command has the safe calls as JSON
PROC = Path("/proc")
DONE, BEAT, IDLE, UNSAFE = b"d", b".", b"i", b"u"


class Watchdog:
    """A context manager that watches this process while `is_running()` (which is False while a model loads, say).

    If this process does not respond for `hang_s` seconds, the watchdog's process kills it. The command `guard` (a list
    of arguments; may be empty) runs after this, if this process ends without leaving the context, and if `is_safe()` is
    False for `hang_s` (a safe call waits for a world that hangs, say). Raises OSError if the process or its thread
    cannot be started."""

    def __init__(
        self,
        hang_s: float,
        guard: Sequence[str] = (),
        safe_calls: Sequence[Mapping[str, Any]] = (),
        is_running: Callable[[], bool] = lambda: True,
        is_safe: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_running, self._is_safe, self._hang_s = is_running, is_safe, hang_s
        self._stop = threading.Event()
        run = os.pidfd_open(os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(hang_s), str(os.getpid()), str(run), *guard],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[run],
                env={**os.environ, SAFE_CALLS: json.dumps(list(safe_calls))},
                start_new_session=True,
            )
        finally:
            os.close(run)
        self._thread = threading.Thread(target=self._beat, name="watchdog", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # debuggers must not stop this thread
        try:
            self._thread.start()
        except RuntimeError as error:
            self.__exit__()
            raise OSError(0, str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(BEAT_S * 10)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(DONE, timeout=GUARD_S)

    def _beat(self) -> None:
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        unsafe = 0
        with contextlib.suppress(OSError, ValueError):  # the watchdog's process has ended
            while not self._stop.wait(BEAT_S):
                unsafe = 0 if self._is_safe() else unsafe + 1
                beat = UNSAFE if unsafe * BEAT_S >= self._hang_s else BEAT
                os.write(descriptor, beat if self._is_running() else IDLE)


def guard_arguments(command: str | None) -> list[str]:
    """Return the arguments of a guard command. Raises ValueError if its program does not exist."""
    words = shlex.split(command or "")
    if words and shutil.which(words[0]) is None:
        raise ValueError(f"no such program: {words[0]}")
    return words


def watch(
    wait: Callable[[float], bytes | None], is_stopped: Callable[[], bool], act: Callable[[str], None], hang_s: float
) -> str:
    """Watch a run by its heartbeats. Return how it ended: `done`, `dead`, or `hung` after `hang_s` without a heartbeat.
    Each time the run becomes unsafe, call `act` with the reason.

    `wait(seconds)` returns the bytes that the run wrote meanwhile (empty: it has ended; None: nothing). The number of
    waits is counted, not the time, since the whole machine may be suspended. A run that is idle, or stopped by a signal
    (`is_stopped`), need not send heartbeats."""
    silent, last = 0, IDLE
    while silent * BEAT_S < hang_s:
        if (beats := wait(BEAT_S)) is not None:
            if beats.endswith(UNSAFE) and last != UNSAFE:
                act(f"The safe call was not active for {hang_s:g} s.")
            last, silent = beats[-1:], 0
        elif last in (BEAT, UNSAFE) and not is_stopped():
            silent += 1
        if last in (b"", DONE):
            return "done" if last else "dead"
    return "hung"


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger; True if this is unknown (without /proc)."""
    try:
        return (PROC / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return True


def _main(hang_s: float, pid: int, run: int, guard: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    for file in (0, run):
        poll.register(file, select.POLLIN)

    def wait(seconds: float) -> bytes | None:
        ready = dict(poll.poll(seconds * 1e3))
        return os.read(0, 4096) if ready.get(0, 0) & select.POLLIN else b"" if ready else None

    def act(why: str) -> None:
        """Run the guard command, and print the reason and its exit status on stderr."""
        lines = [why, "Its last call may be active until the machine's own time limit (docs/safety.md#the-guard)."]
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            if guard:
                status = subprocess.run(guard, stdin=subprocess.DEVNULL, timeout=GUARD_S, check=False).returncode
                lines[1] = f"The guard ended with status {status}."
        with contextlib.suppress(OSError):
            os.write(2, f"\n{' '.join(lines)}\n".encode())

    end = watch(wait, lambda: _is_stopped(pid), act if guard else lambda why: None, hang_s)
    if end == "hung":
        os.kill(pid, signal.SIGKILL)
        act(f"Process {pid} did not respond for {hang_s:g} s: code in C holds Python's lock. It was killed.")
    elif end == "dead":
        act(f"Process {pid} has ended without its safe call.")


if __name__ == "__main__":
    _main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
