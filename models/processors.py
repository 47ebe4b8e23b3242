"""Count the processors that this process may use, which may be fewer than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

CONTROL_GROUPS, GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_processors() -> int:
    """Return how many processors this process may use, by its affinity and by the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else min(allowed, max(1, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Return the CPU quota of the container (cgroup, version 1 or 2) as a number of processors, such as 1.5; None if
    there is no limit."""
    folders = [CONTROL_GROUPS, CONTROL_GROUPS / "cpu"]
    with contextlib.suppress(OSError):
        for line in GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            folders.append(CONTROL_GROUPS / ("cpu" if "cpu" in controllers.split(",") else "") / path.lstrip("/"))
    quotas = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # the file is missing, or the quota is "max" (no limit)
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            quotas.append(int(quota) / int(period))
    return min((quota for quota in quotas if quota > 0), default=None)
