"""Run seeds one after the other, whatever the world of each is, and count what came of them, as a table."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from rtcontrol.drill.simulation.faults import SIMULATED, Faults
from rtcontrol.drill.simulation.referee import Violation
from rtcontrol.drill.simulation.remote import RemoteRun
from rtcontrol.drill.simulation.run import Machine, Scenario, SimRun, Trace, scenario, simulated

TICKS = 500  # of one seed


@dataclass(slots=True)
class SimTally:
    """What runs came to. By kind of fault: how many were `injected`, were `felt` (cost a tick), and their misses that
    are `attributed`, or `unknown`. `cases` counts misses, `words` their causes, `acts` calls, `modes` ticks.

    `failures`: by seed, the law that is broken, and the command that replays it."""

    ticks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    felt: Counter[str] = field(default_factory=Counter)
    attributed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: SimTally) -> None:
        for counter in fields(SimTally):
            mine, theirs = getattr(self, counter.name), getattr(other, counter.name)
            setattr(self, counter.name, mine | theirs if counter.name == "failures" else mine + theirs)

    def table(self) -> str:
        """Return what was injected, what the misses were called, and how many were attributed."""
        misses, unknown = sum(self.cases.values()), sum(self.unknown.values())
        head = f"{self.ticks:,} ticks, {self.injected.total():,} injected faults, {misses:,} misses judged"
        lines = [head, f"unknown {unknown:,}, laws broken by {len(self.failures)} seeds", ""]
        lines.append(f"{'fault':17}{'injected':>10}{'cost ticks':>12}{'attributed':>12}{'unknown':>9}")
        for name in SIMULATED:
            counts = (self.injected[name], self.felt[name], self.attributed[name], self.unknown[name])
            lines.append("{:17}{:>10,}{:>12,}{:>12,}{:>9,}".format(name, *counts))
        titled = {"misses": self.cases, "causes": self.words, "calls": self.acts, "ticks": self.modes}
        for title, counter in titled.items():
            lines += ["", title, *(f"  {n:>9,}  {name}" for name, n in counter.most_common())]
        return "\n".join([*lines, *self.failures.values()])


def campaign(seeds: Iterable[int], ticks: int = TICKS, only: tuple[str, ...] = (), trace: Trace = None) -> SimTally:
    """Run each seed for so many ticks, with its kinds of faults or `only` these. `trace` takes each recorded line."""
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
    """Leave garbage until the end of a seed: it is little, and to look for it takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def replay_command(seed: int, ticks: int, only: tuple[str, ...] = ()) -> str:
    """Return the command that shows what a seed does."""
    chosen = f" --only {','.join(only)}" if only else ""
    return f"rtcontrol drill --simulate --seed {seed} --set drill.ticks={ticks}{chosen} --trace"


def simulate(seed: int, ticks: int, trace: Trace = None, only: tuple[str, ...] = ()) -> SimTally:
    """Run one seed, with its kinds of faults or `only` these. Raises Violation."""
    chosen = scenario(seed, only)
    if chosen.remote:
        remote = RemoteRun(chosen, trace)
        remote.run(ticks)
        runs, faults = remote.runs, remote.faults
    else:
        runs, faults = local(chosen, ticks, trace)
    tally = SimTally(0, faults.count, faults.felt, faults.attributed, faults.unknown)
    for run in runs:
        referee = run.referee
        tally.ticks += referee.ticks + referee.skipped
        tally.cases += referee.cases
        tally.words += referee.words
        tally.acts += Counter({"fresh": len(referee.acts), "safe": len(referee.safes)})
    tally.modes[chosen.mode] = tally.ticks
    return tally


def local(chosen: Scenario, ticks: int, trace: Trace = None) -> tuple[list[SimRun], Faults]:
    """Run a loop for so many releases; where its decoder gives up, another one after it. Raises Violation."""
    machine, runs = Machine(chosen), list[SimRun]()
    time, period_ns = machine.time, chosen.settings.period_ns
    end_ns = time.now_ns + ticks * period_ns
    with simulated(time):
        machine.faults.start()
        while time.now_ns < end_ns - period_ns and sum(run.referee.ticks for run in runs) < ticks:
            if runs:
                machine.faults.settle()
            run = SimRun(chosen, trace, machine)
            runs.append(run)
            run.limit = ticks
            time.at(end_ns, run.end)
            run.loop()
    return runs, machine.faults


def traced(run: SimRun, line: dict[str, Any]) -> str:
    """Return a line of the record, with the instant at which it is written, and the faults of this time."""
    now, origin_ns = run.time.now_ns, run.referee.origin_ns
    near = [fault.kind.name for fault in run.faults.recent[-4:] if fault.end_ns >= now]
    return f"{(now - origin_ns) / 1e9:12.6f} {' '.join(near):30} {line}"
