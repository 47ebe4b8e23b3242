"""Run many seeds, each with its own world, and show a table of the results."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.drill.simulation.faults import SIMULATED
from rtcontrol.drill.simulation.referee import Violation
from rtcontrol.drill.simulation.remote import RemoteRun
from rtcontrol.drill.simulation.run import SimRun, Trace, scenario

TICKS = 500  # ticks of one seed


@dataclass(slots=True)
class SimTally:
    """The results of runs. By kind of fault: how many were `injected`, how many were `felt` (cost a tick), and how many
    misses are `attributed` or `unknown`. `causes` counts the causes of all misses.

    `failures`: by seed, the broken law and the command that replays the seed."""

    ticks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    felt: Counter[str] = field(default_factory=Counter)
    attributed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: SimTally) -> None:
        self.ticks += other.ticks
        self.failures |= other.failures
        for name in ("injected", "felt", "attributed", "unknown", "causes"):
            getattr(self, name).update(getattr(other, name))

    def table(self) -> str:
        """Return a table of injected faults, causes of misses, and attributed misses."""
        head = f"{self.ticks:,} ticks, {self.injected.total():,} injected faults, {self.causes.total():,} misses judged"
        lines = [head, f"unknown {self.unknown.total():,}, laws broken by {len(self.failures)} seeds", ""]
        lines.append(f"{'fault':17}{'injected':>10}{'cost ticks':>12}{'attributed':>12}{'unknown':>9}")
        for name in SIMULATED:
            counts = (self.injected[name], self.felt[name], self.attributed[name], self.unknown[name])
            lines.append("{:17}{:>10,}{:>12,}{:>12,}{:>9,}".format(name, *counts))
        lines += ["", "causes", *(f"  {n:>9,}  {name}" for name, n in self.causes.most_common())]
        return "\n".join([*lines, *self.failures.values()])


def campaign(seeds: Iterable[int], ticks: int = TICKS, only: tuple[str, ...] = (), trace: Trace = None) -> SimTally:
    """Run each seed for so many ticks, with its own kinds of faults or `only` the given ones. `trace` takes each
    recorded line."""
    total = SimTally()
    for seed in seeds:
        try:
            with uncollected():
                total.add(simulate(seed, ticks, trace, only))
        except Violation as violation:
            failure = f"seed {seed} ({scenario(seed, only).name}): {violation}"
            total.failures[seed] = f"{failure}\n  {replay_command(seed, ticks, only)}"
    return total


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection until the end of a seed, since it would take a tenth of the time for little
    garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def replay_command(seed: int, ticks: int, only: tuple[str, ...] = ()) -> str:
    """Return the command that replays a seed and shows its ticks."""
    chosen = "".join(f" --set drill.only={name}" for name in only)
    return f"rtcontrol drill --simulate --seed {seed} --set drill.ticks={ticks}{chosen} --set drill.trace=true"


def simulate(seed: int, ticks: int, trace: Trace = None, only: tuple[str, ...] = ()) -> SimTally:
    """Run one seed, with its own kinds of faults or `only` the given ones. Raises Violation if a law is broken."""
    chosen = scenario(seed, only)
    if chosen.mode == "remote":
        remote = RemoteRun(chosen, trace)
        remote.run(ticks)
        runs, faults = remote.runs, remote.faults
    else:
        run = SimRun(chosen, trace)
        run.simulate(ticks)
        runs, faults = [run], run.faults
    ticks = sum(run.referee.ticks for run in runs)
    causes = sum((run.referee.words for run in runs), Counter[str]())
    return SimTally(ticks, faults.count, faults.felt, faults.attributed, faults.unknown, causes)


def traced(run: SimRun, line: dict[str, Any]) -> str:
    """Return a line of the record with the time of writing, and the faults at this time."""
    now, origin_ns = run.time.now_ns, run.referee.origin_ns
    near = [fault.kind.name for fault in run.faults.recent[-4:] if fault.end_ns >= now]
    return f"{(now - origin_ns) / 1e9:12.6f} {' '.join(near):30} {line}"
