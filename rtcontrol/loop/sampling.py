"""Sample what only the process itself has about a miss: pauses, the actuator's work, the kernel's counts (Linux)."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, Self

from rtcontrol.hosts.processes import Heartbeat
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.attribution import ran_and_delayed
from rtcontrol.records import EvidenceSample, ThreadReading

PROC = Path("/proc")
SIZE = 96  # of a schedstat file
SIZES, STARTS = repeat(SIZE), repeat(0)
READ = os.O_RDONLY | os.O_CLOEXEC


def socket_threads(pid: int) -> list[int]:
    """Return the threads of a process that carry what goes through its ZeroMQ sockets."""
    threads = []
    with suppress(OSError):
        for task in (PROC / f"{pid}/task").iterdir():
            with suppress(OSError):
                if (task / "comm").read_text().startswith("ZMQbg/IO"):
                    threads.append(int(task.name))
    return threads


def _reading(role: str, schedule: int, stat: int) -> ThreadReading:
    try:
        ran, delayed = ran_and_delayed(os.pread(schedule, SIZE, 0))
        # The name, in parentheses, may hold anything.
        return ThreadReading(role, os.pread(stat, 4096, 0).rpartition(b")")[2].split()[0].decode(), ran, delayed)
    except ProcessLookupError:
        return ThreadReading(role, "X")
    except (OSError, ValueError, IndexError):
        return ThreadReading(role)


class PauseWatch(Heartbeat):
    """The heartbeat of the loop's process, and the collector's callbacks.

    A heartbeat that comes late by more than `threshold_ns` is a pause; so is every collection longer than 1 ms. The
    scale follows the period: a stall that a 16 Hz loop never feels matters at 100 Hz.
    """

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
        """Return start, end and kind (gc, stall) of those between two instants, clipped to them, in order; one that is
        just ending included."""
        collections = list(self._collections)
        now = time.monotonic_ns()
        if (began := self._gc_began_ns) and now - began > self.GC_MIN_NS:
            collections.append((began, now))
        pauses = [(b, e, "gc") for b, e in collections] + [(b, e, "stall") for b, e in self.gaps(start_ns)]
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
    """Samples evidence, on the loop's thread; `runs` alone is called at each tick. Nothing here raises: what the kernel
    does not say is None."""

    def __init__(self, watch: PauseWatch, host: Host, actuator: Actuator) -> None:
        self._watch, self._host, self._actuator = watch, host, actuator
        self._incarnation = 0  # of the host whose threads are followed
        self._fds: tuple[int, ...] = ()  # the threads' schedstat files
        self._files: list[tuple[str, int, int]] = []  # role, schedstat, stat

    def follow(self) -> None:
        """Follow the threads that count: this one, the actuator's, the host's, which are others after a restart, and
        those that carry messages between them."""
        pid, loop, deciding = os.getpid(), threading.get_native_id(), list(self._host.threads)
        threads = [("loop", pid, loop), ("actuator", pid, self._actuator.thread.native_id or loop)]
        threads += [("decoder", *thread) for thread in deciding]
        processes = {pid, *(process for process, _ in deciding)}
        threads += [("sockets", process, tid) for process in processes for tid in socket_threads(process)]
        self.close()
        with suppress(OSError):
            for role, process, tid in threads:
                folder = f"{PROC}/{process}/task/{tid}"
                self._files.append((role, os.open(f"{folder}/schedstat", READ), os.open(f"{folder}/stat", READ)))
        self._fds = tuple(schedule for _, schedule, _ in self._files)
        self._incarnation = self._host.incarnation

    def runs(self) -> tuple[bytes, ...]:
        """Return what the threads' schedstat files hold, unread; nothing where a thread is gone."""
        try:
            return tuple(map(os.pread, self._fds, SIZES, STARTS))
        except OSError:
            return ()

    def sample(self, since_ns: int) -> EvidenceSample:
        """Return what is known now of the time since then."""
        now, threads = time.monotonic_ns(), self._host.threads
        acting = [(start, end) for start, end in tuple(self._actuator.core.doings)]
        apart = not threads or threads[0][0] != os.getpid()
        pauses, readings = self._watch.pauses(since_ns, now), [_reading(*files) for files in self._files]
        return EvidenceSample(now, pauses, acting, readings, apart, self._incarnation)

    def close(self) -> None:
        files, self._files, self._fds = self._files, [], ()
        for _, schedule, stat in files:
            os.close(schedule)
            os.close(stat)
