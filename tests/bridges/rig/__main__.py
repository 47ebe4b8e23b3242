"""`python -m tests.bridges.rig {faults,soak} {carla,unity} [OPTIONS]`: a real server, a real bridge and its
world, one fault after another, or for a long time.

Further options are those of `rtcontrol serve` (carla: of `rtcontrol run`); without any, the bundled model for any tools
(`base`) decides in the Ray host (carla: chance, saying nothing but 50 km/h to a stand-in, which is not CARLA). A soak
prints the driven process's memory, read every ten seconds, its share of a core, and what it counted. The exit status is
1 where a call was executed too old.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bridges.rig import faults
from tests.bridges.rig.base import Rig, conditions, finish


def rig(bridge: str) -> type[Rig]:
    found: type[Rig] = importlib.import_module(f"tests.bridges.{bridge}.faults").Rig
    return found


def soak(flying: Rig, seconds: float) -> dict[str, Any]:
    """Its figures. The rig is closed then."""
    try:
        flying.fly(waits=False)
        process, began = flying.process(), time.monotonic()
        memory = []
        while (left_s := began + seconds - time.monotonic()) > 0:
            memory.append(round(process.memory_info().rss / 1e6, 1))
            time.sleep(min(10.0, left_s))
        cpu_s = sum(process.cpu_times()[:2])
        flying.land()
    finally:
        flying.close()
    megabytes = {"start": memory[0], "each_minute": memory[6::6], "end": memory[-1], "max": max(memory)}
    used = {"megabytes": megabytes, "share_of_a_core": round(cpu_s / seconds, 4)}
    return {"what": flying.what, "seconds": seconds, **conditions(options=flying.options), **used, **flying.figures}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridges.rig", description=__doc__)
    parser.add_argument("kind", choices=["faults", "soak"])
    parser.add_argument("bridge", choices=["carla", "unity"])
    parser.add_argument("--only", default="", help="faults whose name or description has this word")
    parser.add_argument("--seconds", type=float, default=600.0, help="of a soak")
    parser.add_argument("--json", type=Path, help="write the findings of the faults to this file")
    given, options = parser.parse_known_args()
    kind = rig(given.bridge)
    if kind.missing:
        print(kind.missing, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        if given.kind == "soak":
            print(json.dumps(soak(kind(Path(folder), options, measured=True), given.seconds), indent=2))
            return 0
        rows = faults.run(kind(Path(folder), options), given.only)
    return finish(rows, given.json, bridge=given.bridge, options=options)


if __name__ == "__main__":
    sys.exit(main())
