"""Sample what only the process itself can tell of a miss: pauses, the actuator's work, the kernel's counts (Linux)."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, Self

from rtcontrol.hosts.processes import Heartbeat
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.evidence import ran_and_delayed
from rtcontrol.records import EvidenceSample, ThreadReading

PROC = Path("/proc")
# Of a schedstat file: all of it, from its start.
SIZE = 96
SIZES, STARTS = repeat(SIZE), repeat(0)
CONTROLLERS = Path("/sys/fs/cgroup")


def socket_threads(pid: int) -> list[int]:
    """The threads of a process that carry what goes through its ZeroMQ sockets."""
    with suppress(OSError):
        tasks = [task for task in (PROC / f"{pid}/task").iterdir() if _text(task / "comm").startswith("ZMQbg/IO")]
        return [int(task.name) for task in tasks]
    return []


def _reading(role: str, schedule: int, stat: int, group: int | None) -> ThreadReading:
    ran = delayed = None
    with suppress(OSError, ValueError):
        ran, delayed = ran_and_delayed(os.pread(schedule, SIZE, 0))
    try:
        # The name, in parentheses, may hold anything.
        fields = os.pread(stat, 4096, 0).rpartition(b")")[2].split()
        throttled = None if group is None else _throttled_ns(os.pread(group, 4096, 0))
        return ThreadReading(role, fields[0].decode(), int(fields[9]), throttled, ran, delayed)
    except ProcessLookupError:
        return ThreadReading(role, "X", None, None, ran, delayed)
    except (OSError, ValueError, IndexError):
        return ThreadReading(role, None, None, None, ran, delayed)


def _throttled_ns(text: bytes) -> int | None:
    """Return the time of a cpu.stat file, of either version of control groups."""
    us = _number(text, b"throttled_usec ")
    return _number(text, b"throttled_time ") if us is None else 1000 * us


def _number(text: bytes, name: bytes) -> int | None:
    _, found, rest = text.partition(name)
    return int(rest.split(None, 1)[0]) if found else None


def _group(pid: int) -> str | None:
    """The cpu.stat of the process's control group, of either version."""
    with suppress(OSError, ValueError):
        for line in (PROC / f"{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names or "cpu" in names.split(","):
                for base in (CONTROLLERS / names, CONTROLLERS / "unified", CONTROLLERS):
                    if "throttled" in _text(file := base / path.lstrip("/") / "cpu.stat"):
                        return str(file)
    return None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


class PauseWatch(Heartbeat):
    """The heartbeat of the loop's process, and the collector's own callbacks.

    A heartbeat that comes late by more than `threshold_ns` is a pause; so is every collection longer than 1 ms. The
    scale follows the period: a stall that a 16 Hz loop never feels matters at 100 Hz.
    """

    GC_MIN_NS = 1_000_000

    def __init__(self, period_ns: int) -> None:
        super().__init__(
            min(max(period_ns // 10, 1_000_000), 5_000_000), min(max(period_ns // 5, 2_000_000), 10_000_000)
        )
        self._collections: deque[tuple[int, int]] = deque(maxlen=64)
        self._gc_began_ns = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        gc.callbacks.remove(self._on_gc)

    def pauses(self, begin_ns: int, end_ns: int) -> list[tuple[int, int, str]]:
        """Return begin, end and kind (gc, stall) of those between two instants, clipped to them, in order; one that is
        just ending included."""
        collections = list(self._collections)
        now = time.monotonic_ns()
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            collections.append((began, now))
        found = [(b, e, "gc") for b, e in collections] + [(b, e, "stall") for b, e in self.gaps(begin_ns)]
        return sorted((max(b, begin_ns), min(e, end_ns), k) for b, e, k in found if e > begin_ns and b < end_ns)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now
            return
        if now - self._gc_began_ns > self.GC_MIN_NS:
            self._collections.append((self._gc_began_ns, now))
        self._gc_began_ns = 0


class Sampler:
    """Samples evidence, on the loop's thread; `runs` alone is on the steady path. What the kernel does not tell is not
    known: nothing here raises."""

    def __init__(self, watch: PauseWatch, host: Host, actuator: Actuator) -> None:
        self._watch, self._host, self._actuator = watch, host, actuator
        self._incarnation = 0  # of the host whose threads are followed
        self._fds: tuple[int, ...] = ()  # the threads' schedstat files
        self._files: list[tuple[str, int, int, int | None]] = []  # role, schedstat, stat, its group's cpu.stat
        self._opened: list[int] = []

    def follow(self) -> EvidenceSample:
        """Follow the threads that count: this one, the actuator's, the host's, which are others after a restart, and
        those that carry what goes between them. Return their first sample."""
        pid, loop, decides = os.getpid(), threading.get_native_id(), list(self._host.threads)
        threads = [("loop", pid, loop), ("actuator", pid, self._actuator.thread.native_id or loop)]
        threads += [("decoder", *thread) for thread in decides]
        processes = {pid, *(process for process, _ in decides)}
        threads += [("sockets", process, tid) for process in processes for tid in socket_threads(process)]
        self.close()
        with suppress(OSError):
            self._open_files(threads)
        self._fds = tuple(schedule for _, schedule, _, _ in self._files)
        self._incarnation = self._host.incarnation
        return self.sample(time.monotonic_ns())

    def runs(self) -> tuple[bytes, ...]:
        """Return what the threads' schedstat files hold, unread; nothing where a thread is gone."""
        try:
            return tuple(map(os.pread, self._fds, SIZES, STARTS))
        except OSError:
            return ()

    def sample(self, since_ns: int) -> EvidenceSample:
        """Return what is known now of the time since then."""
        now, threads = time.monotonic_ns(), self._host.threads
        acting = [(begin, end) for begin, end in tuple(self._actuator.doings)]
        apart = not threads or threads[0][0] != os.getpid()
        pauses, readings = self._watch.pauses(since_ns, now), [_reading(*files) for files in self._files]
        return EvidenceSample(now, pauses, acting, readings, apart, self._incarnation)

    def close(self) -> None:
        opened, self._opened, self._files, self._fds = self._opened, [], [], ()
        for fd in opened:
            os.close(fd)

    def _open_files(self, threads: Sequence[tuple[str, int, int]]) -> None:
        """Open the files of these: role, process and thread number."""
        groups: dict[int, int | None] = {}
        for role, pid, tid in threads:
            folder = f"{PROC}/{pid}/task/{tid}"
            schedule = self._open(f"{folder}/schedstat")
            if pid not in groups:
                group = _group(pid)
                groups[pid] = None if group is None else self._open(group)
            self._files.append((role, schedule, self._open(f"{folder}/stat"), groups[pid]))

    def _open(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._opened.append(fd)
        return fd
