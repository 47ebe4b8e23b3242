"""Run one seed, whatever its world is, and count what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace

from tests.simulation.faults import Faults
from tests.simulation.remote import RemoteRun
from tests.simulation.run import Machine, Scenario, SimRun, Trace, scenario, simulated


@dataclass(slots=True)
class Tally:
    """What runs came to. By kind of fault: how many were `injected`, were `felt` (cost a tick), and their misses that
    are `attributed`, or `unknown`. `cases` counts misses, `words` their causes, `acts` calls, `modes` ticks."""

    ticks: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    felt: Counter[str] = field(default_factory=Counter)
    attributed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for one in fields(Tally):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def local(what: Scenario, ticks: int, trace: Trace = None) -> tuple[list[SimRun], Faults]:
    """Run a loop for so many releases; where its decoder gives up, another one after it. Raises Violation."""
    machine, runs = Machine(what), list[SimRun]()
    time, period_ns = machine.time, what.settings.period_ns
    end_ns = time.now_ns + ticks * period_ns
    with simulated(time):
        machine.faults.start()
        while time.now_ns < end_ns - period_ns and sum(run.referee.ticks for run in runs) < ticks:
            if runs:
                machine.faults.settle()
            run = SimRun(what, trace, machine)
            runs.append(run)
            run.limit = ticks
            time.at(end_ns, run.end)
            run.loop()
    return runs, machine.faults


def fly(seed: int, ticks: int, trace: Trace = None, only: tuple[str, ...] = ()) -> Tally:
    """Run one seed, with its kinds of faults or `only` these. Raises Violation."""
    what = scenario(seed)
    what = replace(what, kinds=only) if only else what
    if what.remote:
        remote = RemoteRun(what, trace)
        remote.fly(ticks)
        runs, faults = remote.runs, remote.faults
    else:
        runs, faults = local(what, ticks, trace)
    tally = Tally(0, faults.count, faults.felt, faults.attributed, faults.unknown)
    for run in runs:
        referee = run.referee
        tally.ticks += referee.ticks + referee.skipped
        tally.cases += referee.cases
        tally.words += referee.words
        tally.acts += Counter({"fresh": len(referee.acts), "safe": len(referee.safes)})
    tally.modes[what.mode] = tally.ticks
    return tally
