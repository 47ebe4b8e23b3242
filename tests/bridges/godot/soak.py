"""`python -m tests.bridges.godot.soak SECONDS [options of serve]`: the Godot project at 16 Hz, and what it counted."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.bridges.godot.engine import MISSING, REASON, Engine, Served, quantiles


def used(pid: int) -> str:
    resident_kb = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return f"{resident_kb / 1024:.1f} MB resident, {ticks / 100:.1f} s of processor time"


def main() -> int:
    if MISSING:
        print(REASON, file=sys.stderr)
        return 2
    seconds = float(sys.argv[1])
    folder = Path(tempfile.mkdtemp())
    server = Served(folder, *sys.argv[2:])
    server.start()
    engine = Engine(folder, "driver.gd", f"--url={server.url}")
    try:
        engine.event("acted", cause="call")
        began = time.monotonic()
        while (left_s := began + seconds - time.monotonic()) > 0:
            time.sleep(min(60.0, left_s))
            stats = engine.stats()
            arrival, execution = (quantiles(stats.pop(name)) for name in ("latency_ms", "age_ms"))
            print(f"{time.monotonic() - began:.0f} s: {used(engine.process.pid)}, {json.dumps(stats)}", flush=True)
        print(f"ms p50 / p99 / max: to the call's arrival {arrival}, to its execution {execution}")
        engine.say("quit")
        engine.process.wait(20)
        print(f"faults of the scripts: {engine.faults()}")
    finally:
        engine.end()
        server.stop()
    print(f"records: {folder / 'records'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
