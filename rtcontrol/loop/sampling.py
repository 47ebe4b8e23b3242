"""Sample evidence for the causes of misses: pauses of this process, the actuator's calls, thread statistics (Linux)."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Self

from rtcontrol.hosts.processes import Heartbeat
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.attribution import ran_and_delayed
from rtcontrol.records import EvidenceSample, ThreadReading

PROC, CONTROL_GROUPS = Path("/proc"), "/sys/fs/cgroup"
SIZE = 96  # number of bytes to read from a schedstat file
SIZES, STARTS = repeat(SIZE), repeat(0)


def socket_threads(pid: int) -> list[int]:
    """Return the ids of the threads of a process that serve its ZeroMQ sockets."""
    threads = []
    with suppress(OSError):
        for task in (PROC / f"{pid}/task").iterdir():
            with suppress(OSError):
                if (task / "comm").read_text().startswith("ZMQbg/IO"):
                    threads.append(int(task.name))
    return threads


def _read_thread(role: str, schedule: int, stat: int, group: int | None) -> ThreadReading:
    try:
        ran, delayed = ran_and_delayed(os.pread(schedule, SIZE, 0))
        # Read the fields after the thread's name in parentheses, which may contain any characters, even ")".
        fields = os.pread(stat, 4096, 0).rpartition(b")")[2].split()
        throttled = None if group is None else _throttled_ns(os.pread(group, 4096, 0))
        return ThreadReading(role, fields[0].decode(), ran, delayed, int(fields[9]), throttled)
    except ProcessLookupError:
        return ThreadReading(role, "X")
    except (OSError, ValueError, IndexError):
        return ThreadReading(role)


def _throttled_ns(stat: bytes) -> int | None:
    """Return the throttled time in ns from the text of a control group's cpu.stat (version 2), or None."""
    _, name, rest = stat.partition(b"throttled_usec ")
    return 1000 * int(rest.split(None, 1)[0]) if name else None


def _increase(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


class PauseWatch(Heartbeat):
    """A detector of pauses of the loop's process. It uses a heartbeat, and callbacks of the garbage collector.

    A pause is a heartbeat that is late by more than `threshold_ns`, or a garbage collection of more than 1 ms. The
    threshold is a fifth of the period, but at least 2 ms and at most 10 ms."""

    GC_MIN_NS = 1_000_000

    def __init__(self, period_ns: int) -> None:
        beat_ns = min(max(period_ns // 10, 1_000_000), 5_000_000)
        super().__init__(beat_ns, threshold_ns=2 * beat_ns)
        self._collections: deque[tuple[int, int]] = deque(maxlen=64)
        self._gc_began_ns = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        gc.callbacks.remove(self._on_gc)

    def pauses(self, start_ns: int, end_ns: int) -> list[tuple[int, int, str]]:
        """Return start, end and kind (`gc`, or the reason of a heartbeat gap) of the pauses between two instants,
        sorted and clipped to the instants. Include pauses that have not ended."""
        collections = list(self._collections)
        now = time.monotonic_ns()
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            collections.append((began, now))
        pauses = [(b, e, "gc") for b, e in collections] + self.gaps(start_ns)
        return sorted((max(b, start_ns), min(e, end_ns), k) for b, e, k in pauses if e > start_ns and b < end_ns)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now
            return
        if now - self._gc_began_ns > self.GC_MIN_NS:
            self._collections.append((self._gc_began_ns, now))
        self._gc_began_ns = 0


class Sampler:
    """A sampler of evidence on the loop's thread. Only `read_schedstats` is called at each tick. The methods raise no
    errors; a value that the kernel does not report is None."""

    def __init__(self, watch: PauseWatch, host: Host, actuator: Actuator) -> None:
        self._watch, self._host, self._actuator = watch, host, actuator
        self._incarnation = 0  # the incarnation of the decoder whose threads are sampled
        self._fds: tuple[int, ...] = ()  # open schedstat files of the threads
        self._files: list[tuple[str, int, int, int | None]] = []  # (role, open schedstat, open stat, open cpu.stat)
        self._opened: list[int] = []
        self._before: tuple[int, list[ThreadReading]] = (0, [])  # (time, readings) of the last sample

    def open_files(self) -> None:
        """Open the statistics files of this thread and the threads of actuator, decoder and sockets. Call this again
        after a restart of the decoder."""
        pid, loop, deciding = os.getpid(), threading.get_native_id(), list(self._host.threads)
        threads = [("loop", pid, loop), ("actuator", pid, self._actuator.thread.native_id or loop)]
        threads += [("decoder", *thread) for thread in deciding]
        processes = {pid, *(process for process, _ in deciding)}
        threads += [("sockets", process, tid) for process in processes for tid in socket_threads(process)]
        self.close()
        groups = {process: self._open_group(process) for process in processes}
        with suppress(OSError):
            for role, process, tid in threads:
                folder = f"{PROC}/{process}/task/{tid}"
                schedule, stat = self._open_file(f"{folder}/schedstat"), self._open_file(f"{folder}/stat")
                self._files.append((role, schedule, stat, groups[process]))
        self._fds = tuple(schedule for _, schedule, _, _ in self._files)
        self._incarnation = self._host.incarnation
        self._before = time.monotonic_ns(), [_read_thread(*files) for files in self._files]

    def read_schedstats(self) -> tuple[bytes, ...]:
        """Return the unparsed contents of the threads' schedstat files, or an empty tuple if a thread has ended."""
        try:
            return tuple(map(os.pread, self._fds, SIZES, STARTS))
        except OSError:
            return ()

    def sample(self, since_ns: int) -> EvidenceSample:
        """Return a sample: pauses since `since_ns`, the last calls, and the current thread statistics."""
        now, deciding = time.monotonic_ns(), self._host.threads
        acting = [(start, end) for start, end in tuple(self._actuator.core.call_spans)]
        apart = not deciding or deciding[0][0] != os.getpid()
        pauses, readings = self._watch.pauses(since_ns, now), [_read_thread(*files) for files in self._files]
        threads = [
            replace(
                thread,
                major_faults=_increase(thread.major_faults, before.major_faults),
                throttled_ns=_increase(thread.throttled_ns, before.throttled_ns),
            )
            for thread, before in zip(readings, self._before[1], strict=False)
        ]
        before_ns, self._before = self._before[0], (now, readings)
        return EvidenceSample(now, pauses, acting, threads, apart, self._incarnation, before_ns)

    def close(self) -> None:
        opened, self._opened, self._files, self._fds = self._opened, [], [], ()
        for fd in opened:
            os.close(fd)

    def _open_group(self, pid: int) -> int | None:
        """Open the cpu.stat file of the process's control group. Return None if there is no such file."""
        with suppress(OSError, IndexError):
            path = (PROC / f"{pid}/cgroup").read_text().partition("0::")[2].split()[0]
            return self._open_file(f"{CONTROL_GROUPS}{path}/cpu.stat")
        return None

    def _open_file(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._opened.append(fd)
        return fd
