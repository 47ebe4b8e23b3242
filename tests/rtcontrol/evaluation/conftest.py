"""Rows that a bundled model can answer, and this folder's helpers within reach of its tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rtcontrol.bench.situations import situations
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow, write_rows
from rtcontrol.run import assembly
from rtcontrol.run.api import Model

ROWS = 12


@pytest.fixture(scope="session")
def lander_rows() -> list[DataRow]:
    """What the lander sees, and what its model calls there; but the first row's call is another one."""
    tools = tuple(assembly.agents()["lander"].tools.openai())
    session = Model("lander").session()
    rows = []
    for n, one in enumerate(situations("lander", ROWS)):
        call = session.decide(one.observation, one.instruction).call
        assert call is not None
        right = Call(call.name, {**call.arguments, "main": 0 if call.arguments["main"] else 100}) if n == 0 else call
        rows.append(
            DataRow(f"r{n}", f"s{n // 2}", f"source {n % 3}", one.instruction, one.observation, tools, (), right)
        )
    return rows


@pytest.fixture
def lander_file(tmp_path: Path, lander_rows: list[DataRow]) -> Path:
    path = tmp_path / "rows.jsonl"
    write_rows(path, lander_rows)
    return path
