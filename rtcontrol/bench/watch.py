"""`rtcontrol bench watch`: what it costs a run that somebody looks on, beside the same run unwatched, in turns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.record_reader import read_record

WAYS = ("unwatched", "watched")
NAMES = ("p50", "p99")


@dataclass(frozen=True, slots=True)
class Flown:
    """One run: each tick's latency, in ms, its misses, and how many snapshots and pictures its viewer took."""

    latency_ms: list[float]
    misses: int
    taken: int

    def to_dict(self) -> dict[str, Any]:
        figures = Series(self.latency_ms).summary()
        return {**{name: figures[name] for name in NAMES}, "misses": self.misses, "messages": self.taken}


def compare(seconds: float, pairs: int, host: str, model: str, done: Callable[[], None]) -> dict[str, Any]:
    """The latency of each run, in ms: `median` of the runs of each way, and of all their ticks `together`; each with
    how much it grows with a viewer (`change`). A run is `rtcontrol run` of the lander at 16 Hz; the viewer takes every
    snapshot and picture that the page would. UserError where a run fails."""
    flown: dict[str, list[Flown]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            # Each way is first every other time.
            for way in WAYS if pair % 2 == 0 else WAYS[::-1]:
                flown[way].append(_fly(Path(folder) / f"{way}-{pair}", seconds, host, model, way == "watched"))
                done()
    runs = {way: [one.to_dict() for one in flown[way]] for way in WAYS}
    medians = {way: {name: median(run[name] for run in runs[way]) for name in NAMES} for way in WAYS}
    ticks = {way: Series(ms for one in flown[way] for ms in one.latency_ms).summary() for way in WAYS}
    together = {way: {name: ticks[way][name] or 0.0 for name in NAMES} for way in WAYS}
    return {"seconds": seconds, "runs": runs, "median": _changed(medians), "together": _changed(together)}


def _changed(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    unwatched, watched = (found[way] for way in WAYS)
    return {**found, "change": {name: round(watched[name] / unwatched[name] - 1, 4) for name in NAMES}}


def _fly(out: Path, seconds: float, host: str, model: str, watched: bool) -> Flown:
    """One run, to its end."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    command = [sys.executable, "-m", "rtcontrol", "run", "--env", "lander", "--model", model, "--host", host]
    command += ["--duration", f"{seconds:g}", "--no-live", "--out", str(out), *(["--view"] if watched else [])]
    taken, last = 0, deque[str](maxlen=5)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None, "it is a pipe"
        for line in process.stderr:
            last.append(line.strip())
            if found := re.search(r"watch it at http(\S+)", line):
                with suppress(WebSocketException, OSError), connect(f"ws{found[1]}view/ws", compression=None) as socket:
                    while True:
                        socket.recv()
                        taken += 1
    if process.returncode or (watched and not taken):
        what = f"A run {'with' if watched else 'without'} a viewer failed (status {process.returncode})"
        raise UserError(f"{what}: {' '.join(last)[-500:]}", f"Try it alone: {' '.join(command[2:])}")
    latency_ms = [
        line["latency_ms"] for line in read_record(out / "record.mcap") if "kind" in line and "latency_ms" in line
    ]
    return Flown(latency_ms, json.loads((out / "report.json").read_text())["misses"], taken)
