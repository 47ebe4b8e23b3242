"""`python -m tests.bridges.unity.soak SECONDS [options of serve]`: the C# client at 16 Hz, and what it counted."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.bridges.client.worlds import Process, free_port
from tests.bridges.unity.mono import HERE, MISSING, REASON, Driver, compile_cs, core_sources


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def main() -> int:
    if MISSING:
        print(REASON, file=sys.stderr)
        return 2
    seconds = float(sys.argv[1])
    folder = Path(tempfile.mkdtemp())
    said = compile_cs(folder / "driver.exe", core_sources() + list((HERE / "driver").glob("*.cs")))
    assert (folder / "driver.exe").exists(), said
    server = Process(folder, free_port(), *sys.argv[2:])
    server.start()
    flying = Driver(folder / "driver.exe", "run", "--endpoint", server.endpoint, "--hz", "16", "--ttl-ms", "500")
    try:
        began = time.monotonic()
        while (left_s := began + seconds - time.monotonic()) > 0:
            time.sleep(min(60.0, left_s))
            memory = resident_mb(flying.process.pid)
            print(f"{time.monotonic() - began:.0f} s: {memory:.0f} MB, {json.dumps(flying.stats())}", flush=True)
        print(flying.close())
    finally:
        flying.end()
        server.stop()
    print(f"records: {folder / 'records'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
