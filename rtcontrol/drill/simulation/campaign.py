"""Simulate many seeds, each with its own scenario, and print a table of the results."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.drill.simulation.faults import FAULT_KINDS
from rtcontrol.drill.simulation.referee import Violation
from rtcontrol.drill.simulation.remote import RemoteRun
from rtcontrol.drill.simulation.run import SimRun, Trace, scenario_for

TICKS = 500  # default number of ticks to simulate per seed


@dataclass(slots=True)
class SimTally:
    """Totals of simulated runs, most of them by kind of fault. `injected`: injected faults. `harmful`: faults that
    caused a miss. `attributed`, `unknown`: misses of the faults with a named cause, and with the cause `unknown`.
    `causes`: number of misses by cause. `failures`: by seed, the violated rule and the command to replay the seed."""

    ticks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    harmful: Counter[str] = field(default_factory=Counter)
    attributed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: SimTally) -> None:
        self.ticks += other.ticks
        self.failures |= other.failures
        for name in ("injected", "harmful", "attributed", "unknown", "causes"):
            getattr(self, name).update(getattr(other, name))

    def table(self) -> str:
        """Return a table of faults and their misses, followed by the causes and the failures."""
        head = f"{self.ticks:,} ticks, {self.injected.total():,} injected faults, {self.causes.total():,} misses judged"
        lines = [head, f"unknown {self.unknown.total():,}, rules violated by {len(self.failures)} seeds", ""]
        lines.append(f"{'fault':17}{'injected':>10}{'cost ticks':>12}{'attributed':>12}{'unknown':>9}")
        for name in FAULT_KINDS:
            counts = (self.injected[name], self.harmful[name], self.attributed[name], self.unknown[name])
            lines.append("{:17}{:>10,}{:>12,}{:>12,}{:>9,}".format(name, *counts))
        lines += ["", "causes", *(f"  {n:>9,}  {name}" for name, n in self.causes.most_common())]
        return "\n".join([*lines, *self.failures.values()])


def run_seeds(seeds: Iterable[int], ticks: int = TICKS, only: tuple[str, ...] = (), trace: Trace = None) -> SimTally:
    """Simulate the scenario of each seed, and return the totals. `only`: inject only these kinds of faults. `trace` is
    called with each line of the record."""
    total = SimTally()
    for seed in seeds:
        try:
            with without_garbage_collection():
                total.add(simulate(seed, ticks, trace, only))
        except Violation as violation:
            failure = f"seed {seed} ({scenario_for(seed, only).name}): {violation}"
            total.failures[seed] = f"{failure}\n  {replay_command(seed, ticks, only)}"
    return total


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the context, because it would take a tenth of the time of a seed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def replay_command(seed: int, ticks: int, only: tuple[str, ...] = ()) -> str:
    """Return the command that simulates a seed again and prints its record."""
    options = "".join(f" --set drill.only={name}" for name in only)
    return f"rtcontrol drill --simulate --seed {seed} --set drill.ticks={ticks}{options} --set drill.trace=true"


def simulate(seed: int, ticks: int, trace: Trace = None, only: tuple[str, ...] = ()) -> SimTally:
    """Simulate the scenario of one seed. Raises Violation if the run violates a rule of the referee."""
    chosen = scenario_for(seed, only)
    if chosen.mode == "remote":
        remote = RemoteRun(chosen, trace)
        remote.run(ticks)
        runs, faults = remote.runs, remote.faults
    else:
        run = SimRun(chosen, trace)
        run.simulate(ticks)
        runs, faults = [run], run.faults
    ticks = sum(run.referee.ticks for run in runs)
    causes = sum((run.referee.cause_counts for run in runs), Counter[str]())
    return SimTally(ticks, faults.injected, faults.harmful, faults.attributed, faults.unknown, causes)


def trace_line(run: SimRun, line: dict[str, Any]) -> str:
    """Format a line of the record, after the simulated time in seconds and the active faults."""
    now, origin_ns = run.time.now_ns, run.referee.origin_ns
    active = [fault.kind.name for fault in run.faults.recent[-4:] if fault.end_ns >= now]
    return f"{(now - origin_ns) / 1e9:12.6f} {' '.join(active):30} {line}"
