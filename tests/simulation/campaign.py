"""Many seeds one after the other, and what they came to, as a table."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.flight import Result, fly
from tests.simulation.referee import Violation
from tests.simulation.run import scenario

TICKS = 500  # of one seed


@dataclass(slots=True)
class Campaign:
    """The sum over seeds. `failures`: by seed, the law that is broken, and the command that replays it."""

    ticks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        self.ticks += result.ticks
        self.injected += result.injected
        self.cases += result.cases
        self.words += result.words
        self.acts += result.acts

    def table(self) -> str:
        """Return what was injected, what the misses were called, and how many were attributed."""
        unsafe = len(self.failures)
        misses = sum(self.cases.values())
        unknown = sum(n for case, n in self.cases.items() if case.startswith("unknown"))
        lines = [f"{self.ticks:,} ticks, {sum(self.injected.values()):,} injected faults, {misses:,} misses judged"]
        lines += [f"attributed {misses - unknown:,}, unknown {unknown:,}, laws broken by {unsafe} seeds"]
        for title, counts in (("injected", self.injected), ("misses", self.cases), ("causes", self.words)):
            lines += ["", title, *(f"  {n:>9,}  {name}" for name, n in counts.most_common())]
        return "\n".join([*lines, "", "calls", *(f"  {n:>9,}  {name}" for name, n in self.acts.most_common())])


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
                total.add(fly(seed, ticks))
        except Violation as violation:
            what = scenario(seed).name
            total.failures[seed] = f"seed {seed} ({what}): {violation}\n  {replay(seed, ticks)}"
    return total
