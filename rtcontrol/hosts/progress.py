"""Whether a process on this machine still gets anywhere, as the kernel tells (Linux)."""

from __future__ import annotations

from pathlib import Path

GONE, STOPPED, WAITING, BUSY = "gone", "stopped", "waiting", "busy"


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
