"""What makes Python steady enough: no garbage collection inside a tick, and the scheduler's favours where granted."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol, Self

MCL_CURRENT_FUTURE = 1 | 2
# A thread that waits for the interpreter asks for it after this long; Python's own 5 ms would be felt at 16 Hz.
SWITCH_INTERVAL_S = 0.0005


class Collector(Protocol):
    """Collects garbage when the loop has `slack_ns` to spare."""

    def collect(self, slack_ns: int) -> None: ...


class SlackCollector:
    """Takes over garbage collection while it is entered: everything so far is frozen, nothing is collected by itself,
    and `collect` uses idle time between ticks.

    An older generation is collected only when its longest collection so far fits four times into the slack. Should
    the loop never have slack, a collection is forced before the garbage grows without bounds.
    """

    THRESHOLD = 2_000
    FORCED = 200_000
    MARGIN_NS = 2_000_000

    def __init__(self) -> None:
        self._worst_ns = [0, 0, 0]
        self._rounds = 0
        self._was_enabled = self._was_frozen = False
        self._switch_s = 0.0

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        self._was_frozen = gc.get_freeze_count() > 0
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._was_frozen:  # by who goes on after the run
            gc.unfreeze()
        sys.setswitchinterval(self._switch_s)
        if self._was_enabled:
            gc.enable()

    def collect(self, slack_ns: int) -> None:
        young = gc.get_count()[0]
        if young < self.THRESHOLD or (slack_ns < self.MARGIN_NS and young < self.FORCED):
            return
        self._rounds += 1
        generation = 2 if self._rounds % 64 == 0 else 1 if self._rounds % 8 == 0 else 0
        while generation and 4 * self._worst_ns[generation] > slack_ns and young < self.FORCED:
            generation -= 1
        began = time.monotonic_ns()
        gc.collect(generation)
        self._worst_ns[generation] = max(self._worst_ns[generation], time.monotonic_ns() - began)


def favours(priority: int, affinity: Sequence[int]) -> list[str]:
    """Ask the kernel for SCHED_FIFO and CPUs for this thread, and for it alone: threads made later would inherit the
    CPUs, so the world's and the heartbeat's are made before.

    Gives a plain warning for each that was refused, with what would grant it.
    """
    warnings = []
    if affinity:
        try:
            os.sched_setaffinity(0, affinity)
        except (OSError, AttributeError, ValueError, OverflowError) as error:
            warnings.append(f"--affinity {','.join(map(str, affinity))} refused ({error}); the loop runs on any CPU.")
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
        except (OSError, AttributeError) as error:
            warnings.append(
                f"--rt-priority {priority} refused ({error}). Grant it with `sudo setcap cap_sys_nice+ep` on the "
                "Python binary, or `rtprio 99` in /etc/security/limits.conf."
            )
    return warnings


def lock_memory() -> str | None:
    """mlockall(current | future); the reason where it was refused."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT_FUTURE) != 0:
            return os.strerror(ctypes.get_errno())
    except (OSError, AttributeError) as error:
        return str(error)
    return None
