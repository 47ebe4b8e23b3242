"""What the kernel says of threads: whether they ran, wanted to, were stopped, or waited for the disk (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Of a schedstat file: all of it, from its start.
SIZE = 96
CONTROLLERS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a thread: its state (a letter; X: it is gone), and since its start the major faults and involuntary
    switches of it, and for how long its group was throttled. None where the kernel does not tell."""

    state: str | None = None
    major_faults: int | None = None
    involuntary: int | None = None
    throttled_ns: int | None = None


class Threads:
    """The loop's own thread first, then the deciding ones. `fds` are their schedstat files, open for `os.pread`: what
    it gives is read by `ran_and_delayed`. Nothing here raises: what the kernel does not tell is not known."""

    def __init__(self) -> None:
        self.fds: tuple[int, ...] = ()
        self._files: list[tuple[int, int, int | None]] = []  # of each thread: stat, status, its group's cpu.stat
        self._opened: list[int] = []

    def follow(self, threads: Sequence[tuple[int, int]]) -> None:
        """These: process and thread numbers."""
        self.close()
        fds: list[int] = []
        groups: dict[int, int | None] = {}
        with contextlib.suppress(OSError):
            for pid, tid in threads:
                folder = f"{PROC}/{pid}/task/{tid}"
                fds.append(self._open(f"{folder}/schedstat"))
                if pid not in groups:
                    group = _group(pid)
                    groups[pid] = None if group is None else self._open(group)
                self._files.append((self._open(f"{folder}/stat"), self._open(f"{folder}/status"), groups[pid]))
        self.fds = tuple(fds)

    def look(self) -> list[Look]:
        """One at each."""
        return [_look(*files) for files in self._files]

    def close(self) -> None:
        opened, self._opened, self._files, self.fds = self._opened, [], [], ()
        for fd in opened:
            os.close(fd)

    def _open(self, path: str) -> int:
        self._opened.append(fd := os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return fd


def socket_threads(pid: int) -> list[int]:
    """The threads of a process that carry what goes through its ZeroMQ sockets."""
    with contextlib.suppress(OSError):
        tasks = [task for task in (PROC / f"{pid}/task").iterdir() if _text(task / "comm").startswith("ZMQbg/IO")]
        return [int(task.name) for task in tasks]
    return []


def ran_and_delayed(raw: bytes) -> tuple[int, int]:
    """Of a schedstat file: nanoseconds on a processor, and of waiting for one."""
    ran, delayed = raw.split()[:2]
    return int(ran), int(delayed)


def _look(stat: int, status: int, group: int | None) -> Look:
    try:
        # The name, in parentheses, may hold anything.
        fields = os.pread(stat, 4096, 0).rpartition(b")")[2].split()
        involuntary = _number(os.pread(status, 8192, 0), b"\nnonvoluntary_ctxt_switches:")
        throttled = None
        if group is not None:
            told = os.pread(group, 4096, 0)
            us = _number(told, b"throttled_usec ")
            throttled = _number(told, b"throttled_time ") if us is None else 1000 * us
        return Look(fields[0].decode(), int(fields[9]), involuntary, throttled)
    except ProcessLookupError:
        return Look("X")
    except (OSError, ValueError, IndexError):
        return Look()


def _number(text: bytes, name: bytes) -> int | None:
    _, found, rest = text.partition(name)
    return int(rest.split(None, 1)[0]) if found else None


def _group(pid: int) -> str | None:
    """The cpu.stat of the process's control group, of either version."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / f"{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names or "cpu" in names.split(","):
                for base in (CONTROLLERS / names, CONTROLLERS / "unified", CONTROLLERS):
                    if "throttled" in _text(file := base / path.lstrip("/") / "cpu.stat"):
                        return str(file)
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
