"""A rig: a real server, what is driven by it, and a tap between them. Each bridge has its own, in its `faults.py`."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from rtcontrol.hosts.ray_actor import DecoderActor
from tests.bridges.client.worlds import Process
from tests.bridges.rig.tap import Tap
from tests.helpers.processes import environment, free_port, until


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


# A rig: a real server, what is driven by it, and a tap between them. Each bridge has its own, in its `faults.py`.


TTL_MS = 500.0

Fault = Callable[[Any], Row]


class Served(Process):
    """`rtcontrol serve` with the options given; without a model among them, the bundled one for any tools."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        super().__init__(folder, port)
        at = self._command.index("--bind")
        self._command = [sys.executable, "-m", "rtcontrol", "serve", *self._command[at:], *options]
        if "--model" not in options:
            self._command += ["--model", "base"]


class Rig(ABC):
    """One server for all faults (it takes long to start), and a new flight for each.

    `what` names the driven process in the table. `figures`: what it counted itself, once it has landed. `measured`: for
    a soak, so nothing stands between it and the server.
    """

    what: ClassVar[str]
    faults: ClassVar[Sequence[Fault]] = ()
    missing: ClassVar[str] = ""  # why it cannot run here

    def __init__(self, folder: Path, options: Sequence[str] = (), measured: bool = False) -> None:
        self.folder, self.options, self.measured = folder, tuple(options), measured
        self.ttl_ms = TTL_MS
        self.figures: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        """What is there before the first flight and after the last."""
        port = free_port()
        self.server: Process = Served(self.folder, port, *self.options)
        self.server.start()
        self.tap = Tap(port)

    @property
    def endpoint(self) -> str:
        """Where what is driven finds its server."""
        return self.server.endpoint if self.measured else self.tap.endpoint

    def fly(self, ttl_ms: float = TTL_MS, waits: bool = True) -> None:
        """A new flight; `waits`: until it has been driven for two seconds."""
        self.land()
        self.ttl_ms = ttl_ms
        self.start()
        if waits:
            self.until_driven(time.monotonic(), 60)
            time.sleep(2)

    def close(self) -> None:
        """End everything."""
        self.land()
        self.tap.close()
        self.server.stop()

    @abstractmethod
    def start(self) -> None:
        """Start what is driven."""

    @abstractmethod
    def land(self) -> None:
        """End the flight as a user does, where there is one."""

    @abstractmethod
    def tell(self, line: str) -> None:
        """An order to the world."""

    @abstractmethod
    def process(self) -> psutil.Process:
        """Of what is driven."""

    @abstractmethod
    def driven(self, since: float) -> float | None:
        """When it was driven first by a call that answers an observation made since."""

    @abstractmethod
    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        """What happened between two instants; `mended`: what recovery is counted from (None: nothing recovers)."""

    def told(self, row: Row) -> Row:
        """A row, with what is known of it after landing."""
        return row

    def until_driven(self, since: float, seconds: float = 90.0) -> float:
        found: list[float] = []

        def goes_on() -> bool:
            found.extend(at for at in [self.driven(since)] if at is not None)
            return bool(found)

        until(goes_on, f"the {self.what} is not driven on", seconds, every=0.05)
        return found[0]

    def decider(self) -> psutil.Process:
        """The process that decides for the Ray host."""
        return child(self.deciding().pid, f"ray::{DecoderActor.__name__}")

    def deciding(self) -> psutil.Process:
        """The server, or the run that decides."""
        assert self.server.process is not None
        return psutil.Process(self.server.process.pid)

    def door(self) -> str:
        """The endpoint that strangers find."""
        return self.server.endpoint

    def on_time(self, begin: float, end: float) -> str:
        calls = self.tap.calls(int(begin * 1e9), int(end * 1e9))
        return f"{sum(m.status == 'fresh' for _, m in calls)} of {len(calls)} ticks on time"

    def missed(self, begin: float, end: float) -> list[tuple[float, str]]:
        """The first call that the server missed, with when."""
        calls = self.tap.calls(int(begin * 1e9), int(end * 1e9))
        return [(t / 1e9, f"the server: {m.status} ({m.cause})") for t, m in calls if m.status != "fresh"][:1]

    def expired(self, begin: float) -> int:
        return sum(o.outcome == "expired" for o in self.tap.outcomes(int(begin * 1e9)))


def child(pid: int, name: str) -> psutil.Process:
    """The process below this one whose command line has the name."""
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in " ".join(one.cmdline()):
                return one
    raise AssertionError(f"there is no {name}")


def stall(process: psutil.Process, seconds: float) -> float:
    """SIGSTOP for so long; when it went on."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    back = time.monotonic()
    process.send_signal(signal.SIGCONT)
    return back


def strangers(endpoint: str, seconds: float) -> subprocess.Popen[str]:
    """Strangers in a process of their own: garbage on raw sockets, messages that are none, hellos without end."""
    command = [sys.executable, "-m", "tests.bridges.rig.strangers", endpoint, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
