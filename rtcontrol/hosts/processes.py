"""Watch whether this process runs, and kill the processes of a run when it is over, however it ended (Linux).

The guardian is this file, run as a program: it loads nothing else.
"""

from __future__ import annotations

import contextlib
import gc
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
from pathlib import Path
from typing import Self

# In the environment of all that a run started: the run's folder.
MARK = "RTCONTROL_RUN"
# Ray's longest socket name in its folder has 64 characters, the kernel takes 107 in all.
LONGEST_BASE = 107 - 64 - len("/rtcontrol-12345678/r")
# A process whose parent was killed while it started it bears its mark a moment later.
CLEAN_ROUNDS, ROUND_S, SWEEP_S = 4, 0.25, 20.0
BEAT_NS, THRESHOLD_NS = 5_000_000, 10_000_000
# A reply has so many gaps, which ended so short a time ago.
MOST_RECENT, RECENT_NS = 8, 2_000_000_000
# A build yields the processor to decisions, where there are not enough for both.
BUILDER_NICE = 10


class Heartbeat:
    """A thread that wakes every `beat_ns` while it is entered. Where it is late by more than `threshold_ns` is a gap.

    The process was stopped by a signal, or waited for the processor or for the interpreter's lock.
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
        """Return start and end (CLOCK_MONOTONIC) of the gaps that ended after `since_ns`.

        One that is just ending is among them: another thread may wake first, and ask.
        """
        gaps = [gap for gap in tuple(self._gaps) if gap[1] > since_ns]
        now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
        return [*gaps, (due, now)] if now - due > self.threshold_ns else gaps

    def recent(self) -> list[tuple[int, int]]:
        """Return the gaps that a reply has."""
        return self.gaps(time.monotonic_ns() - RECENT_NS)[-MOST_RECENT:]

    def _beat(self) -> None:
        while not self._stop.is_set():
            time.sleep(self.beat_ns / 1e9)
            now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._gaps.append((due, now))
            self._last_ns = now  # not before: `gaps` would miss this one


def keep_loaded() -> None:
    """Exempt what is loaded from collections of garbage, which would hold up all threads for 0.1 s: several ticks."""
    gc.collect()
    gc.freeze()


def yield_processor() -> None:
    """Let the deciding threads go before this one."""
    with contextlib.suppress(AttributeError, OSError):
        # Above what decides: of a Ray that others have started, that is nice itself.
        nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + BUILDER_NICE
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice, 19))


class Guardian:
    """A folder that no other user may enter, and a process that outlives this one.

    When this one ends, or `end` is called, it kills what bears the folder's mark, and removes the folder. No signal of
    a terminal reaches it.
    """

    def __init__(self) -> None:
        base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        self.folder = tempfile.mkdtemp(prefix="rtcontrol-", dir=base if len(base) <= LONGEST_BASE else "/tmp")
        us = os.pidfd_open(os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(us), self.folder],
            stdin=subprocess.PIPE,
            pass_fds=[us],
            env={k: v for k, v in os.environ.items() if k != MARK},
            start_new_session=True,
        )
        os.close(us)

    def end(self) -> None:
        """Kill and remove now, and wait until it is done."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(b"done", timeout=SWEEP_S)


def _guard(run: int, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A process that was forked from the run's may keep the pipe open: the run's death is awaited, too.
    poll = select.poll()
    for file in (0, run):
        poll.register(file, select.POLLIN)
    rounds = 1 if 0 in dict(poll.poll()) and os.read(0, 16) else CLEAN_ROUNDS
    kill_marked(MARK, folder, rounds)
    shutil.rmtree(folder, ignore_errors=True)


def kill_marked(mark: str, value: str, rounds: int) -> None:
    """Kill what has this value of `mark` in its environment, until `rounds` rounds in a row find nothing."""
    marked = f"\0{mark}={value}\0".encode()
    clean = 0
    while clean < rounds:
        clean += 1
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marked in b"\0" + (entry / "environ").read_bytes() + b"\0":
                    os.kill(int(entry.name), signal.SIGKILL)
                    clean = 0
        time.sleep(0 if clean == rounds else ROUND_S)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), sys.argv[2])
