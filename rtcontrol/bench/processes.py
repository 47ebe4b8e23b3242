"""What a process and its children take of the machine, from the kernel's own account (/proc)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MIB = 1 << 20


def cpu_s(pid: int) -> float:
    """What a process and its threads had of all processors until now."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """All of it that is in memory, what it shares with others too."""
    return int((PROC / str(pid) / "statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text("utf-8").rpartition(")")[2].split()


@dataclass(frozen=True)
class ServerTree:
    """The processes of a server with one decoder in a Ray of its own: its own, the decoder's, and Ray's."""

    server: int
    decoder: int
    ray: tuple[int, ...]

    def cpu_s(self) -> dict[str, float]:
        """Until now, by part."""
        return {"server": cpu_s(self.server), "decoder": cpu_s(self.decoder), "ray": sum(map(cpu_s, self.ray))}

    def rss_mib(self) -> dict[str, float]:
        """By part."""
        return {"server": rss_mib(self.server), "decoder": rss_mib(self.decoder), "ray": sum(map(rss_mib, self.ray))}


def tree(server: int) -> ServerTree | None:
    """None while there is no decoder."""
    parents: dict[int, int] = {}
    for path in PROC.iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int(_stat(int(path.name))[1])
            except (OSError, IndexError):
                continue  # it has ended
    below, new = set[int](), {server}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        below |= new
    decoders = [pid for pid in below if _line(pid).startswith("ray::DecoderActor")]
    return ServerTree(server, decoders[0], tuple(sorted(below - {decoders[0]}))) if decoders else None


def _line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
