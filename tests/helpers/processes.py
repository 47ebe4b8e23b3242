"""Helpers for processes in tests: start, wait with a deadline, kill."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(map(str, (ROOT, ROOT / "bridges")))  # PYTHONPATH of a child that imports this tree


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, extended for a child that imports this tree."""
    return {**os.environ, "PYTHONPATH": PATH, **more}


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments (`"-m", "rtcontrol", ...` or `"-c", code`) to its end; `env` adds to the
    environment, the rest goes to subprocess.run."""
    env = environment(**options.pop("env", {}))
    given = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
    return subprocess.run([sys.executable, *arguments], env=env, **given)


def cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `rtcontrol` with these arguments to its end."""
    return python("-m", "rtcontrol", *arguments, **options)


def until(ready: Callable[[], Any], what: str = "not so", seconds: float = 60.0, every: float = 0.01) -> None:
    """Wait until a condition is true; how long that takes is not tested."""
    end_s = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end_s, f"{what}, within {seconds:g} s"
        time.sleep(every)


def free_port() -> int:
    """Return a port on which nothing listens, below the range from which Linux picks ports for connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with sockets.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Program:
    """A child process of this Python, or of `python`. `log` has its stderr (and its stdout, if that is not a pipe)."""

    def __init__(self, arguments: Sequence[str], log: Path, python: str = sys.executable, **options: Any) -> None:
        self._log = log
        env = environment(PYTHONUNBUFFERED="1", **options.pop("env", {}))
        with log.open("w") as file:
            given: dict[str, Any] = {"stdout": file, "stderr": file, "text": True, **options}
            self.popen: subprocess.Popen[str] = subprocess.Popen([python, *arguments], env=env, **given)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, words: str, seconds: float = 60.0) -> None:
        """Wait until the log has these words. Raises AssertionError with the log if the process ends without them."""
        until(lambda: words in self.log() or self.popen.poll() is not None, f"not said: {words}", seconds)
        assert words in self.log(), self.log()

    def end(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal, wait for the process to end, and return the exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(seconds)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Yield the file descriptors of a full pipe, as if its reader had stopped."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)
