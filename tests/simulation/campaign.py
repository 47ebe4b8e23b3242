"""Many seeds one after the other, and what they came to, as a table."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.simulation.faults import KINDS
from tests.simulation.flight import Tally, fly
from tests.simulation.referee import Violation
from tests.simulation.run import scenario

TICKS = 500  # of one seed


@dataclass(slots=True)
class Campaign:
    """The sum over seeds. `failures`: by seed, the law that is broken, and the command that replays it."""

    tally: Tally = field(default_factory=Tally)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: Campaign) -> None:
        self.tally.add(other.tally)
        self.failures |= other.failures

    def table(self) -> str:
        """Return what was injected, what the misses were called, and how many were attributed."""
        tally = self.tally
        misses = sum(tally.cases.values())
        unknown = sum(tally.unknown.values())
        head = f"{tally.ticks:,} ticks, {sum(tally.injected.values()):,} injected faults, {misses:,} misses judged"
        lines = [head, f"unknown {unknown:,}, laws broken by {len(self.failures)} seeds", ""]
        lines.append(f"{'fault':17}{'injected':>10}{'cost ticks':>12}{'attributed':>12}{'unknown':>9}")
        for name in KINDS:
            counts = (tally.injected[name], tally.felt[name], tally.attributed[name], tally.unknown[name])
            lines.append("{:17}{:>10,}{:>12,}{:>12,}{:>9,}".format(name, *counts))
        titled = {"misses": tally.cases, "causes": tally.words, "calls": tally.acts, "ticks": tally.modes}
        for title, counter in titled.items():
            lines += ["", title, *(f"  {n:>9,}  {name}" for name, n in counter.most_common())]
        return "\n".join(lines)


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave garbage until the end of a seed: it is little, and to look for it takes a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def replay(seed: int, ticks: int) -> str:
    """Return the command that shows what a seed does."""
    return f"python -m tests.simulation --seed {seed} --ticks {ticks} --trace"


def campaign(seeds: Iterable[int], ticks: int = TICKS) -> Campaign:
    """Run each seed for so many ticks."""
    total = Campaign()
    for seed in seeds:
        try:
            with uncollected():
                total.tally.add(fly(seed, ticks))
        except Violation as violation:
            what = scenario(seed).name
            total.failures[seed] = f"seed {seed} ({what}): {violation}\n  {replay(seed, ticks)}"
    return total


def resumed(seeds: range, ticks: int, folder: Path) -> Campaign:
    """Run each hundred seeds that `folder` has no result of, write it there, and return the sum of all."""
    total = Campaign()
    for first in range(seeds.start, seeds.stop, 100):
        chunk = range(first, min(first + 100, seeds.stop))
        path = folder / f"{chunk.start}-{chunk.stop}-{ticks}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            made = campaign(chunk, ticks)
            counts = {one.name: getattr(made.tally, one.name) for one in fields(Tally)}
            path.write_text(json.dumps({"tally": counts, "failures": made.failures}))
        total.add(_read(json.loads(path.read_text())))
    return total


def _read(saved: dict[str, Any]) -> Campaign:
    counts = {name: Counter(value) if isinstance(value, dict) else value for name, value in saved["tally"].items()}
    return Campaign(Tally(**counts), {int(seed): what for seed, what in saved["failures"].items()})
