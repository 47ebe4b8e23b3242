"""`python -m tests.simulation --seeds 1000 3100 --folder F`: many seeds, continued from the results in the folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from rtcontrol.drill.simulation.campaign import TICKS, SimTally, campaign


def main() -> int:
    """Return 1 where a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1000, 3100), metavar=("FIRST", "END"))
    parser.add_argument("--ticks", type=int, default=TICKS, help="of each seed")
    parser.add_argument("--folder", type=Path, required=True, help="keep results here, and skip those that are there")
    given = parser.parse_args()
    total = resumed(range(*given.seeds), given.ticks, given.folder)
    print(total.table())
    return 1 if total.failures else 0


def resumed(seeds: range, ticks: int, folder: Path) -> SimTally:
    """Run each hundred seeds that `folder` has no result of, write it there, and return the sum of all."""
    total = SimTally()
    for first in range(seeds.start, seeds.stop, 100):
        chunk = range(first, min(first + 100, seeds.stop))
        path = folder / f"{chunk.start}-{chunk.stop}-{ticks}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            tally = campaign(chunk, ticks)
            path.write_text(json.dumps({one.name: getattr(tally, one.name) for one in fields(SimTally)}))
        total.add(_read(json.loads(path.read_text())))
    return total


def _read(saved: dict[str, Any]) -> SimTally:
    failures = {int(seed): what for seed, what in saved.pop("failures").items()}
    counts = {name: Counter(value) if isinstance(value, dict) else value for name, value in saved.items()}
    return SimTally(**counts, failures=failures)


if __name__ == "__main__":
    sys.exit(main())
