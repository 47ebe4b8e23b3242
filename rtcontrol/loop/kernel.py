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
    """The loop's own thread first, then the deciding ones. `fds` are their open schedstat files, for `os.pread`: what
    it gives is read by `ran_and_delayed`. Nothing here raises: what the kernel does not tell is not known."""

    def __init__(self) -> None:
        self.fds: tuple[int, ...] = ()
        self._threads: list[tuple[int, int]] = []
        self._groups: dict[int, Path | None] = {}

    def follow(self, threads: Sequence[tuple[int, int]]) -> None:
        """These: process and thread numbers."""
        self.close()
        self._threads, self._groups = list(threads), {pid: _group(pid) for pid, _ in threads}
        fds = []
        with contextlib.suppress(OSError):
            for pid, tid in threads:
                fds.append(os.open(PROC / f"{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC))
        self.fds = tuple(fds)

    def look(self) -> list[Look]:
        """One at each."""
        return [_look(pid, tid, self._groups[pid]) for pid, tid in self._threads]

    def close(self) -> None:
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


def ran_and_delayed(raw: bytes) -> tuple[int, int]:
    """Of a schedstat file: nanoseconds on a processor, and of waiting for one."""
    ran, delayed = raw.split()[:2]
    return int(ran), int(delayed)


def _look(pid: int, tid: int, group: Path | None) -> Look:
    folder = PROC / f"{pid}/task/{tid}"
    try:
        # The name, in parentheses, may hold anything.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        involuntary = _number(folder / "status", "nonvoluntary_ctxt_switches:")
        return Look(fields[0], int(fields[9]), involuntary, None if group is None else _throttled_ns(group))
    except (OSError, ValueError, IndexError):
        return Look("X" if (PROC / "self/stat").exists() and not folder.exists() else None)


def _number(path: Path, name: str) -> int | None:
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return None


def _throttled_ns(group: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        if (us := _number(group, "throttled_usec")) is not None:
            return 1000 * us
        return _number(group, "throttled_time")
    return None


def _group(pid: int) -> Path | None:
    """The cpu.stat of the process's control group, of either version."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / f"{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names or "cpu" in names.split(","):
                for base in (CONTROLLERS / names, CONTROLLERS / "unified", CONTROLLERS):
                    if "throttled" in _text(file := base / path.lstrip("/") / "cpu.stat"):
                        return file
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
