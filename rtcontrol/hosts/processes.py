"""Detect when this process does not run (Heartbeat), and kill a run's child processes when the run ends (Guardian).

Works on Linux. The guardian process runs this file as a program, so the file imports nothing of rtcontrol.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
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

# This environment variable marks all processes that a run started. Its value is the run's folder.
MARK = "RTCONTROL_RUN"
# Maximum length of the base folder: the kernel allows paths of sockets up to 107 characters, of which Ray needs 64.
LONGEST_BASE = 107 - 64 - len("/rtcontrol-12345678/r")
# The search for marked processes is repeated, because a process that is just starting is marked a little later.
CLEAN_ROUNDS, ROUND_S, SWEEP_S = 4, 0.25, 20.0
BEAT_NS, THRESHOLD_NS = 5_000_000, 10_000_000
# A reply contains the heartbeat gaps that ended in the last RECENT_NS, but at most the MOST_RECENT newest.
MOST_RECENT, RECENT_NS = 8, 2_000_000_000
# Threads that build deciders have this higher nice value (lower priority) than threads that decide.
BUILDER_NICE = 10


class Heartbeat:
    """A context with a thread that wakes every `beat_ns`, and records a gap if it wakes over `threshold_ns` late.

    The reason of a gap is `starved` (the thread waited for a processor), `stall` (the process ran, but another thread
    kept the interpreter's lock), or `stopped` (the process did not run, for example because of SIGSTOP)."""

    def __init__(self, beat_ns: int = BEAT_NS, threshold_ns: int = THRESHOLD_NS) -> None:
        self.beat_ns, self.threshold_ns = beat_ns, threshold_ns
        self._gaps: deque[tuple[int, int, str]] = deque(maxlen=64)
        self._last_ns, self._used = time.monotonic_ns(), (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._last_ns = time.monotonic_ns()
        self._used = _processor_time(None)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def gaps(self, since_ns: int) -> list[tuple[int, int, str]]:
        """Return start, end (CLOCK_MONOTONIC) and reason of the gaps that ended after `since_ns` or have not ended.

        A gap that has not ended is never `starved`, because the kernel counts a wait for a processor after its end."""
        gaps = [gap for gap in tuple(self._gaps) if gap[1] > since_ns]
        now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
        if now - due <= self.threshold_ns:
            return gaps
        return [*gaps, (due, now, self._reason(now - due, _processor_time(None)))]

    def recent_gaps(self) -> list[tuple[int, int]]:
        """Return the newest heartbeat gaps, to be sent with a reply."""
        return [(start, end) for start, end, _ in self.gaps(time.monotonic_ns() - RECENT_NS)[-MOST_RECENT:]]

    def _beat(self) -> None:
        statistics: int | None = None
        with contextlib.suppress(OSError):  # fails on systems without /proc
            statistics = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        while not self._stop.is_set():
            self._used = _processor_time(statistics)
            time.sleep(self.beat_ns / 1e9)
            now, due = time.monotonic_ns(), self._last_ns + self.beat_ns
            if now - due > self.threshold_ns:
                self._gaps.append((due, now, self._reason(now - due, _processor_time(statistics))))
            self._last_ns = now  # set this after the gap is appended; otherwise `gaps` could miss it
        if statistics is not None:
            os.close(statistics)

    def _reason(self, gap_ns: int, used: tuple[int, int]) -> str:
        ran, waited = used[0] - self._used[0], used[1] - self._used[1]
        return "starved" if 2 * waited >= gap_ns else "stall" if 2 * ran >= gap_ns else "stopped"


def _processor_time(statistics: int | None) -> tuple[int, int]:
    """Return the CPU time of this process, and the time that a thread (its schedstat file) waited for a CPU, in ns."""
    waited = 0 if statistics is None else int(os.pread(statistics, 96, 0).split()[1])
    return time.process_time_ns(), waited


def task_limit() -> int | None:
    """Return how many processes and threads the container (cgroup) or the user may have, or None without a limit."""
    limits = [resource.getrlimit(resource.RLIMIT_NPROC)[0]] if os.geteuid() else []
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, path in lines:
            if controllers in ("", "pids"):
                for folder in (f"/sys/fs/cgroup/{controllers}{path}", f"/sys/fs/cgroup/{controllers}"):
                    with contextlib.suppress(OSError, ValueError):  # the value is "max" if there is no limit
                        limits.append(int(Path(folder, "pids.max").read_text()))
    return min((limit for limit in limits if limit >= 0), default=None)


def system_restrictions(tasks: int) -> list[str]:
    """Return texts about limits of this system by which Ray fails without a clear error. `tasks`: threads to allow."""
    limit = task_limit()
    checks = {
        "/proc/meminfo cannot be read (systemd: ProcSubset=pid)": not os.access("/proc/meminfo", os.R_OK),
        "/dev/shm cannot be written (docker: --ipc, --tmpfs /dev/shm)": not os.access("/dev/shm", os.W_OK),
        f"only {limit} processes and threads are allowed (docker: --pids-limit, systemd: TasksMax, ulimit -u)": (
            limit is not None and limit < tasks
        ),
    }
    return [text for text, holds in checks.items() if holds]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of rtcontrol as a program. `python -m` would search the working
    directory first, and import a user's file types.py or zmq.py in place of the module with this name."""
    root = Path(__file__).parents[2]
    search = f"import runpy, sys; sys.path += {[str(root), str(root / 'bridges')]}"
    start = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-P", "-c", f"{search}; {start}", *arguments]


def freeze_loaded_objects() -> None:
    """Exclude all loaded objects from garbage collection, which would stop all threads for 0.1 s."""
    gc.collect()
    gc.freeze()


def lower_thread_priority() -> None:
    """Lower this thread's priority below that of the deciding threads."""
    with contextlib.suppress(AttributeError, OSError):
        # Add to the nice value of the process, which may differ from 0 if the user started Ray.
        nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + BUILDER_NICE
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice, 19))


class Guardian:
    """A private folder, and a guardian process that cleans up when this process ends or `end` is called.

    The guardian kills all processes with the folder's name in the environment variable MARK, and removes the folder.
    Signals of the terminal do not reach the guardian."""

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
        """Let the guardian kill the marked processes and remove the folder, and wait for this."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(b"done", timeout=SWEEP_S)


def _guard(run: int, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Poll the pipe, and also the run's process, because a child of that process may keep the pipe open.
    poll = select.poll()
    for file in (0, run):
        poll.register(file, select.POLLIN)
    rounds = 1 if 0 in dict(poll.poll()) and os.read(0, 16) else CLEAN_ROUNDS
    kill_marked(MARK, folder, rounds)
    shutil.rmtree(folder, ignore_errors=True)


def kill_marked(mark: str, value: str, rounds: int) -> None:
    """Kill all processes with `mark=value` in their environment, until `rounds` searches in a row find none."""
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
