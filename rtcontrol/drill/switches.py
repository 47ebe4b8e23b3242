"""What the injector tells the wrapped world, agent and decider, through a file that all of them map; and what they tell
it. Nothing of the run itself looks at it."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

from rtcontrol.drill.faults import FAULTS

# Beside the faults: when a fresh call acted last (seconds of CLOCK_MONOTONIC), and the pid of what decided last.
SLOTS = {name: i for i, name in enumerate((*FAULTS, "acted", "decoder"))}
_ONE = struct.Struct("d")


class Switches:
    """A number for each name; a fault is on until the instant that its number is (CLOCK_MONOTONIC, in seconds)."""

    def __init__(self, path: Path | str, new: bool = False) -> None:
        if new:
            Path(path).write_bytes(bytes(len(SLOTS) * _ONE.size))
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, name: str) -> float:
        value: float = _ONE.unpack_from(self._map, SLOTS[name] * _ONE.size)[0]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        _ONE.pack_into(self._map, SLOTS[name] * _ONE.size, value)

    def on(self, name: str) -> bool:
        return time.monotonic() < self[name]
