"""Watch whether this process is being scheduled, and kill a run's processes however the run ends (Linux).

The guardian process runs this file as a program and imports nothing else of rtcontrol.
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

# The environment variable that names the run's folder in all processes that the run started.
MARK = "RTCONTROL_RUN"
# Ray's longest socket name in its folder has 64 characters, the kernel takes 107 in all.
LONGEST_BASE = 107 - 64 - len("/rtcontrol-12345678/r")
# A process whose parent was killed while starting it gets the mark a moment later.
CLEAN_ROUNDS, ROUND_S, SWEEP_S = 4, 0.25, 20.0
BEAT_NS, THRESHOLD_NS = 5_000_000, 10_000_000
# A reply carries at most MOST_RECENT heartbeat gaps, which ended within the last RECENT_NS.
MOST_RECENT, RECENT_NS = 8, 2_000_000_000
# How much nicer a building thread is: if processors are scarce, decisions go first.
BUILDER_NICE = 10


class Heartbeat:
    """A thread that wakes every `beat_ns` while the object is entered. Waking more than `threshold_ns` late is a gap.

    In a gap the process was stopped by a signal, or waited for the processor or for the interpreter's lock."""

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

        A gap that is just ending is included, since the caller may wake before the heartbeat thread does."""
        gaps = [gap for gap in tuple(self._gaps) if gap[1] > since_ns]
        now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
        return [*gaps, (due, now)] if now - due > self.threshold_ns else gaps

    def recent(self) -> list[tuple[int, int]]:
        """Return the newest heartbeat gaps, to be sent with a reply."""
        return self.gaps(time.monotonic_ns() - RECENT_NS)[-MOST_RECENT:]

    def _beat(self) -> None:
        while not self._stop.is_set():
            time.sleep(self.beat_ns / 1e9)
            now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._gaps.append((due, now))
            self._last_ns = now  # not before: `gaps` would miss this one


def keep_loaded() -> None:
    """Exempt all loaded objects from garbage collection, which would stop all threads for 0.1 s (several ticks)."""
    gc.collect()
    gc.freeze()


def yield_processor() -> None:
    """Lower this thread's priority below that of the deciding threads."""
    with contextlib.suppress(AttributeError, OSError):
        # Relative to the process: in a Ray that others have started, the deciding threads are nice themselves.
        nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + BUILDER_NICE
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice, 19))


class Guardian:
    """A folder that no other user may enter, and a guardian process that outlives this process.

    When this process ends, or `end` is called, the guardian kills all processes with the folder's mark, and removes the
    folder. No signal of a terminal reaches the guardian."""

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
        """Have the guardian kill the marked processes and remove the folder, and wait until that is done."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(b"done", timeout=SWEEP_S)


def _guard(run: int, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A process forked from the run's process may keep the pipe open, so the run's death is polled, too.
    poll = select.poll()
    for file in (0, run):
        poll.register(file, select.POLLIN)
    rounds = 1 if 0 in dict(poll.poll()) and os.read(0, 16) else CLEAN_ROUNDS
    kill_marked(MARK, folder, rounds)
    shutil.rmtree(folder, ignore_errors=True)


def kill_marked(mark: str, value: str, rounds: int) -> None:
    """Kill processes whose environment has `mark=value`, until `rounds` rounds in a row find none."""
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
