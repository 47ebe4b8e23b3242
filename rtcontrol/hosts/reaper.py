"""Clears up after this process should it be killed: Ray's agents outlive a driver that dies by SIGKILL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below `pid`; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (name) state ppid ...": the name may hold anything, also brackets.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


class Reaper:
    """A shell that waits on a pipe. The pipe breaks when this process ends without `dismiss`: then it kills the
    `doomed` processes and removes `folder`."""

    SCRIPT = 'read _; folder=$1; shift; [ $# -gt 0 ] && kill -9 "$@" 2>/dev/null; rm -rf "$folder"'

    def __init__(self, doomed: list[int], folder: str) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", self.SCRIPT, "reaper", folder, *map(str, doomed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
        )
        assert self._shell.stdin is not None, "stdin=PIPE"
        os.set_inheritable(self._shell.stdin.fileno(), False)

    def dismiss(self) -> None:
        """Nothing is to be cleared up any more."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
