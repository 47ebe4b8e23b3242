"""Loop, actuator, decoder and world run by simulated time, with injected faults: no law breaks.

A failing seed prints the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.campaign import TICKS, Campaign, campaign
from tests.simulation.flight import fly
from tests.simulation.mutants import found_by, mutants

CHUNK = 20  # seeds: 10,000 ticks
CHUNKS = 20


def judge(total: Campaign) -> None:
    assert not total.failures, "\n".join(total.failures.values())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_simulated_faults_break_no_law(chunk: int) -> None:
    judge(campaign(range(CHUNK * chunk, CHUNK * (chunk + 1)), TICKS))


def test_same_seed_records_the_same() -> None:
    runs: list[list[str]] = [[], []]
    for lines in runs:
        fly(5, TICKS, lambda run, line, lines=lines: lines.append(f"{run.time.now_ns} {line}"))
    assert runs[0] == runs[1]


@pytest.mark.integration
def test_million_ticks_have_their_faults_attributed() -> None:
    total = campaign(range(1_000, 3_010), TICKS)
    judge(total)
    unknown = sum(count for case, count in total.cases.items() if case.startswith("unknown"))
    print(total.table())
    assert total.ticks >= 1_000_000
    assert sum(total.injected.values()) >= 100_000
    assert unknown <= sum(total.cases.values()) / 500


@pytest.mark.integration
@pytest.mark.parametrize("i", range(len(mutants())), ids=[mutant.claim for mutant in mutants()])
def test_seed_finds_mutant(i: int) -> None:
    assert found_by(i) is not None, f"no seed finds: {mutants()[i].claim}"
