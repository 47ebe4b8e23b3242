"""A fault run's findings as a table, and as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One fault. Times in ms after it began, `recovered_ms` after it ended; None: that did not happen.

    `last_ms`: the last command of a call; `safe_ms`: the first safe one after it; `age_ms`: the safe command, counted
    from the observation of the last call in force, to be held against `ttl_ms`. `too_old`: commands of a call that was
    beyond its time-to-live; `expired`: calls that came too late, or gave way to a newer one, and were not executed.
    `did` is said instead of these.
    """

    fault: str
    ttl_ms: float
    found_ms: float | None = None
    found: str = ""
    last: str = ""
    last_ms: float | None = None
    safe_ms: float | None = None
    age_ms: float | None = None
    recovered_ms: float | None = None
    too_old: int = 0
    expired: int = 0
    did: str = ""
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        found = "-" if self.found_ms is None else f"{self.found_ms:.0f}: {self.found}"
        did = "goes on as told" if self.safe_ms is None else f"safe at {self.safe_ms:.0f}"
        if self.last_ms is not None:
            did = f"{self.last} at {self.last_ms:.0f}, {did}" if self.safe_ms is not None else did
        if self.age_ms is not None:
            did += f" (age {self.age_ms:.0f}, ttl {self.ttl_ms:.0f})"
        did = self.did or did
        recovered = "-" if self.recovered_ms is None else f"{self.recovered_ms:.0f}"
        return [self.fault, found, did, recovered, str(self.expired), str(self.too_old), "; ".join(self.notes)]


HEAD = ["fault", "found after (ms)", "what it did (ms)", "recovered (ms)", "refused", "too old", "notes"]


def show(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(**more: Any) -> dict[str, Any]:
    """Under which a run was made."""
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), ": unknown")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu.split(": ")[1],
        "cores": os.cpu_count(),
        "load": [round(x, 1) for x in os.getloadavg()],
        "python": platform.python_version(),
        **more,
    }


def finish(rows: list[Row], path: Path | None, **more: Any) -> int:
    """Print the table, write the JSON file; the exit status: 1 where a call was executed too old."""
    where = conditions(**more)
    print(show(rows))
    print(json.dumps(where))
    if path is not None:
        path.write_text(json.dumps({**where, "faults": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 1 if any(row.too_old for row in rows) else 0
