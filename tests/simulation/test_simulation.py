"""Tests that no law breaks if loop, actuator, decoder and world run in simulated time with injected faults.

A failing seed prints the command that replays it. The million's table: `rtcontrol drill --simulate
--set "drill.seeds=[1000, 3400]"`.
"""

from __future__ import annotations

import pytest

from rtcontrol.drill.simulation.campaign import TICKS, SimTally, run_seeds, simulate
from tests.simulation.crowd import crowds
from tests.simulation.mutants import found_by, mutants

CHUNK, CHUNKS = 22, 20  # seeds: some 10,000 ticks
BATCH, BATCHES = 120, 20  # seeds: more than 50,000 ticks


def judge(total: SimTally) -> None:
    assert not total.failures, "\n".join(total.failures.values())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_simulated_faults_break_no_law(chunk: int) -> None:
    judge(run_seeds(range(CHUNK * chunk, CHUNK * (chunk + 1)), TICKS))


@pytest.mark.parametrize("chunk", range(2))
def test_simulated_crowds_break_no_law(chunk: int) -> None:
    judge(crowds(range(12 * chunk, 12 * (chunk + 1))))


def test_same_seed_records_the_same() -> None:
    runs: list[list[str]] = [[], []]
    for lines in runs:
        simulate(5, TICKS, lambda run, line, lines=lines: lines.append(f"{run.time.now_ns} {line}"))
    assert runs[0] == runs[1]


def test_each_mutant_matches_its_module_once() -> None:
    for mutant in mutants():
        assert mutant.broken()


@pytest.mark.integration
@pytest.mark.parametrize("batch", range(BATCHES))
def test_million_ticks_have_their_faults_attributed(batch: int) -> None:
    total = run_seeds(range(1000 + BATCH * batch, 1000 + BATCH * (batch + 1)), TICKS)
    print(total.table())
    judge(total)
    assert total.ticks >= 1_000_000 / BATCHES
    assert total.injected.total() >= 100_000 / BATCHES
    others = total.unknown.total() - total.unknown["delivered_late"]  # which leaves no evidence, in every tick of a run
    assert others <= total.causes.total() / 500


@pytest.mark.integration
def test_many_simulated_crowds_break_no_law() -> None:
    total = crowds(range(1000, 1300))
    print(total.table())
    judge(total)
    assert total.ticks > 300_000


@pytest.mark.integration
@pytest.mark.parametrize("i", range(len(mutants())), ids=[mutant.claim for mutant in mutants()])
def test_seed_finds_mutant(i: int) -> None:
    assert found_by(i), f"no seed finds: {mutants()[i].claim}"
