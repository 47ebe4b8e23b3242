"""`python -m tests.simulation --seed 7 --trace`: run one seed, or many, and say what came of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.simulation.campaign import TICKS, campaign, resumed
from tests.simulation.flight import fly
from tests.simulation.referee import Violation
from tests.simulation.run import SimRun, scenario


def main() -> int:
    """Return 1 where a law is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 100), metavar=("FIRST", "END"))
    parser.add_argument("--ticks", type=int, default=TICKS, help="of each seed")
    parser.add_argument("--trace", action="store_true", help="show what the run records, with the simulated time")
    parser.add_argument("--folder", type=Path, help="keep results here, and go on from those that are there")
    given = parser.parse_args()
    if given.seed is not None:
        return one(given.seed, given.ticks, given.trace)
    seeds = range(*given.seeds)
    total = campaign(seeds, given.ticks) if given.folder is None else resumed(seeds, given.ticks, given.folder)
    print(total.table())
    for failure in total.failures.values():
        print(failure)
    return 1 if total.failures else 0


def one(seed: int, ticks: int, trace: bool) -> int:
    """Run one seed, and print each line that it records."""
    what = scenario(seed)
    print(f"seed {seed}: {what.name}\n{what.settings}")
    try:
        result = fly(seed, ticks, show if trace else None)
    except Violation as violation:
        print(f"LAW BROKEN {violation}")
        return 1
    print(f"{result.ticks} ticks, {dict(result.cases)}, {dict(result.words)}")
    return 0


def show(run: SimRun, line: dict[str, Any]) -> None:
    """Print a line of the record, at the instant at which it is written, with the faults of this time."""
    now, origin_ns = run.time.now_ns, run.referee.origin_ns
    near = [fault.kind.name for fault in run.faults.recent[-4:] if fault.end_ns >= now]
    print(f"{(now - origin_ns) / 1e9:12.6f} {' '.join(near):30} {line}")


if __name__ == "__main__":
    sys.exit(main())
