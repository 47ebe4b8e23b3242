"""Run one seed, whatever its world is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tests.simulation.remote import RemoteRun
from tests.simulation.run import SimRun, Trace, scenario


@dataclass(slots=True)
class Result:
    """What a run came to."""

    ticks: int
    injected: Counter[str]
    cases: Counter[str]
    words: Counter[str]
    acts: Counter[str]


def fly(seed: int, ticks: int, trace: Trace = None, only: tuple[str, ...] = ()) -> Result:
    """Run one seed, with its kinds of faults or `only` these. Raises Violation."""
    what = scenario(seed)
    what = replace(what, kinds=only) if only else what
    if what.remote:
        remote = RemoteRun(what, trace)
        remote.fly(ticks)
        runs, faults = remote.runs, remote.faults
    else:
        local = SimRun(what, trace)
        local.fly(ticks)
        runs, faults = [local], local.faults
    result = Result(0, faults.count, Counter(), Counter(), Counter())
    for run in runs:
        referee = run.referee
        result.ticks += referee.ticks + referee.skipped
        result.cases += referee.cases
        result.words += referee.words
        result.acts += Counter({"fresh": len(referee.acts), "safe": len(referee.safes)})
    return result
