"""Processes on this machine: whether this one, or another, gets anywhere; which ones a run started, and a guardian that
ends those and removes the run's folder when the run is over, however it ended (Linux).

The guardian is this file, run as a program: it loads nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Self

GONE, STOPPED, WAITING, BUSY = "gone", "stopped", "waiting", "busy"
# In the environment of all that a run started: the run's folder.
MARK = "RTCONTROL_RUN"
# Ray's own folder, in the run's: it opens its folder to everybody.
OPEN = "r"
# Ray's longest socket name in its folder has 64 characters, the kernel takes 107 in all.
LONGEST_BASE = 107 - 64 - len(f"/rtcontrol-12345678/{OPEN}")
# One that was just being started when its parent was killed bears its mark a moment later.
CLEAN_ROUNDS, ROUND_S, SWEEP_S = 4, 0.25, 20.0
BEAT_NS, THRESHOLD_NS = 5_000_000, 10_000_000
# A reply tells of so many gaps, that ended so short a time ago.
MOST_TOLD, TOLD_NS = 8, 2_000_000_000


class Heartbeat:
    """A thread that must get its turn every `beat_ns` while it is entered. One that comes late by more than
    `threshold_ns` is a gap: its process stood still.

    Stopped by a signal, kept from the processor, or held up by whoever has the interpreter: all are gaps.
    """

    def __init__(self, beat_ns: int = BEAT_NS, threshold_ns: int = THRESHOLD_NS) -> None:
        self.beat_ns, self.threshold_ns = beat_ns, threshold_ns
        self._gaps: deque[tuple[int, int]] = deque(maxlen=64)
        self._last_ns = time.monotonic_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._last_ns = time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def gaps(self, since_ns: int) -> list[tuple[int, int]]:
        """Begin and end (CLOCK_MONOTONIC) of those that ended after `since_ns`, and of one that is just ending: the
        thread that was woken first asks before the heartbeat could note it."""
        found = [gap for gap in tuple(self._gaps) if gap[1] > since_ns]
        now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
        return [*found, (due, now)] if now - due > self.threshold_ns else found

    def recent(self) -> list[tuple[int, int]]:
        """What a reply tells of them."""
        return self.gaps(time.monotonic_ns() - TOLD_NS)[-MOST_TOLD:]

    def _beat(self) -> None:
        while not self._stop.is_set():
            time.sleep(self.beat_ns / 1e9)
            now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._gaps.append((due, now))
            self._last_ns = now  # not before: whoever asks just now must be told of it


class Progress:
    """Looked at a few times: `look` compares with the time before."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        self._ticks = -1

    def look(self) -> str | None:
        """`gone`; `stopped` by a signal; `busy`: a thread wants a processor, or the process used one since the look
        before; `waiting`: neither. None where the kernel does not tell."""
        if not Path("/proc/self/stat").exists():
            return None
        try:
            state, ticks = _stat(self._folder / "stat")
            if state in "ZX":
                return GONE
            if state in "Tt":
                return STOPPED
            before, self._ticks = self._ticks, ticks
            if before >= 0 and ticks > before:
                return BUSY
            # Starved of processors it uses none, but wants one (R), or its memory (D).
            threads = [_stat(thread / "stat")[0] for thread in (self._folder / "task").iterdir()]
        except (OSError, ValueError, IndexError):
            return GONE if not self._folder.exists() else WAITING
        return BUSY if {"R", "D"} & set(threads) else WAITING


def _stat(path: Path) -> tuple[str, int]:
    """State, and clock ticks of processor time used (user and system)."""
    # The name, in parentheses, may hold anything.
    fields = path.read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def marked(folder: str) -> Iterator[tuple[int, int, str]]:
    """The processes that bear the mark of `folder`: pid, pidfd (the caller's to close) and name of the program.

    A pidfd is of one process for good, whatever becomes of its number: it is opened before the mark is read.
    """
    mark = f"\0{MARK}={folder}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fd = os.pidfd_open(int(entry.name))
        except OSError:
            continue
        try:
            if mark in b"\0" + (entry / "environ").read_bytes() + b"\0":
                program = (entry / "cmdline").read_bytes().partition(b"\0")[0]
                yield int(entry.name), fd, Path(os.fsdecode(program)).name
                continue
        except OSError:
            pass
        os.close(fd)


def kill_marked(folder: str, rounds: int = 1) -> None:
    """Kill what bears the mark of `folder` until none is found `rounds` times running."""
    give_up = time.monotonic() + SWEEP_S
    clean = 0
    while clean < rounds and time.monotonic() < give_up:
        files = []
        for _, fd, _ in marked(folder):
            files.append(fd)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        clean = 0 if files else clean + 1
        poll = select.poll()
        for fd in files:
            poll.register(fd, select.POLLIN)
        if files or clean < rounds:
            poll.poll(1e3 * ROUND_S)
        for fd in files:
            os.close(fd)


class Guardian:
    """A process of its own that makes a folder for this user alone, and outlives this one: when this one ends, or says
    that it is done, it kills what bears the folder's mark and removes the folder. No signal of a terminal reaches it.
    """

    def __init__(self) -> None:
        base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        if len(base) > LONGEST_BASE:
            base = "/tmp"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, base],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if k != MARK},
            start_new_session=True,
        )
        assert self._process.stdout is not None, "stdout=PIPE"
        with self._process.stdout as told:
            self.folder = os.fsdecode(told.readline().strip())
        if not self.folder:
            raise OSError(f"no folder can be made in {base}")

    def end(self) -> None:
        """Everything is over in good order: sweep, and wait until it is done."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(b"done", timeout=SWEEP_S)


def _guard(base: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = tempfile.mkdtemp(prefix="rtcontrol-", dir=base)
    # A process that was forked from the run's may keep the pipe open: its death is looked for, too, before it goes on.
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(folder + "\n")
        sys.stdout.flush()
    ready = [fd for fd, _ in poll.poll()]
    kill_marked(folder, 1 if 0 in ready and os.read(0, 16) else CLEAN_ROUNDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1])
