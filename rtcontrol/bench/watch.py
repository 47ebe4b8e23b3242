"""`rtcontrol bench watch`: what it costs a run that somebody looks on, beside the same run unwatched, in turns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

WAYS = ("unwatched", "watched")


def compare(seconds: float, pairs: int, host: str, model: str, done: Callable[[], None]) -> dict[str, Any]:
    """p50 and p99 of the latency of each run, in ms, and how much the median of the p99 grows with a viewer. Each run
    is `rtcontrol run` of the lander at 16 Hz; the viewer takes every snapshot and picture that the page would."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            # Each way is first every other time.
            for way in WAYS if pair % 2 == 0 else WAYS[::-1]:
                out = Path(folder) / f"{way}-{pair}"
                taken.append(_fly(out, seconds, host, model, way == "watched"))
                report = json.loads((out / "report.json").read_text())
                found[way].append({name: report["latency_ms"][name] for name in ("p50", "p99")})
                done()
    p99 = {way: median(one["p99"] for one in found[way]) for way in WAYS}
    p50 = {way: median(one["p50"] for one in found[way]) for way in WAYS}
    change = {"p50": p50["watched"] / p50["unwatched"] - 1, "p99": p99["watched"] / p99["unwatched"] - 1}
    return {"seconds": seconds, "latency_ms": found, "p50": p50, "p99": p99, "change": change, "messages": sum(taken)}


def _fly(out: Path, seconds: float, host: str, model: str, watched: bool) -> int:
    """One run, to its end; gives how many snapshots and pictures the viewer took."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    command = [sys.executable, "-m", "rtcontrol", "run", "--env", "lander", "--model", model, "--host", host]
    command += ["--duration", f"{seconds:g}", "--no-live", "--out", str(out), *(["--view"] if watched else [])]
    taken = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None, "it is a pipe"
        for line in process.stderr:
            if found := re.search(r"watch it at http(\S+)", line):
                with suppress(ConnectionClosed), connect(f"ws{found[1]}view/ws", compression=None) as socket:
                    while True:
                        socket.recv()
                        taken += 1
    return taken
