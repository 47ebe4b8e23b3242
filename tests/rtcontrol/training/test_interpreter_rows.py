"""Rows that teach an interpreter: each is a goal of its own tools, and none is a sentence that models are judged by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rtcontrol.agents import Goals
from rtcontrol.agents.spoken import bare, nonsense
from rtcontrol.envs import registry
from rtcontrol.models.data.row import DataRow, read_rows
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.training.interpreter_rows import InterpretedAgent, rows, taught

WORLDS = ("lander", "paddle", "road")
AGENT = """
from rtcontrol.agents import Agent, Fallback, Tools, tool
from rtcontrol.models.call import Call

@tool
def go(way: int) -> None:
    "Go."

agent = Agent("walker", "Walks.", Tools([go]), lambda data: "", "stand", Fallback(Call("go", {"way": 0})), "noop")
goals = {"walk to {place}": ["go over to {place}", "{place} please"], "wait {s} seconds": ["{s} seconds"]}
placeholders = {"place": ["door", "window"], "s": [1, 5, 30]}
"""


def made(names: tuple[str, ...], count: int = 1500) -> list[DataRow]:
    agents = [taught(assembly.agent(registry.known()[name].agent)) for name in names]
    return list(rows(agents, count, seed=3))


@pytest.fixture(scope="module")
def drawn() -> list[DataRow]:
    return made(WORLDS)


def test_each_row_asks_for_a_goal_of_its_own_tools_or_for_none(drawn: list[DataRow]) -> None:
    tools = {f"interpreter:{name}": registry.known()[name].phrasings().goal_tools for name in WORLDS}
    for row in drawn:
        assert row.tools == tools[row.source].definitions
        if row.call is not None:
            goal = tools[row.source].goal(row.call)
            assert (told := tools[row.source].canonical(row.instruction)) is None or told == goal
    none = sum(row.call is None for row in drawn)
    assert 0.1 < none / len(drawn) < 0.2
    assert {row.source for row in drawn} == set(tools)


def test_no_row_is_a_sentence_that_models_are_judged_by(drawn: list[DataRow]) -> None:
    for name in WORLDS:
        told = registry.known()[name].phrasings()
        judged = {bare(said) for made in told.lists().values() for kind in told.kinds for said, _ in made(kind)}
        judged |= {bare(said) for said in nonsense(kept=True)}
        assert not judged & {bare(row.instruction) for row in drawn if row.source == f"interpreter:{name}"}


def test_the_same_seed_gives_the_same_rows(drawn: list[DataRow]) -> None:
    assert made(WORLDS, 50) == drawn[:50]


def test_ways_that_are_kept_from_training_are_in_no_row() -> None:
    told = Goals({"go to {a}": ["one {a}", "two {a}", "three {a}", "four {a}", "kept back {a}"], "stop": ["halt"]},
                 {"a": ["door", "lake"]})  # fmt: skip
    found = list(rows([InterpretedAgent("walker", told)], 800))
    assert not any("kept" in row.instruction.lower() for row in found if row.call is not None)
    assert {row.call.name for row in found if row.call is not None} == {"go_to_a", "stop"}


def test_the_command_writes_rows_of_several_agents_into_one_file(tmp_path: Path) -> None:
    (tmp_path / "walker.py").write_text(AGENT)
    asked = ["--env", "paddle", "--agent", "walker.py", "--rows", "60", "--tool-sets", "--out", "rows.jsonl"]
    subprocess.run([sys.executable, "-m", "rtcontrol", "data", "interpret", *asked], cwd=tmp_path, check=True)
    found = list(read_rows(tmp_path / "rows.jsonl"))
    assert len(found) == 60
    assert {row.source for row in found} == {"interpreter:paddle", "interpreter:walker"}


def test_an_agent_without_goals_is_refused_with_what_to_do() -> None:
    from dataclasses import replace

    nameless = replace(assembly.agent("lander"), name="nobody")
    with pytest.raises(UserError, match="no goals"):
        taught(nameless)
