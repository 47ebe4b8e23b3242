"""`rtcontrol eval`: evaluate checkpoints and endpoints on rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.bench.situations import situations
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row, write_rows
from rtcontrol.run import assembly
from rtcontrol.run.api import Model

ROWS = 12


@pytest.fixture(scope="session")
def lander_rows() -> list[Row]:
    """Return rows with the calls of the lander's model, except a different call in the first row."""
    tools = assembly.agents()["lander"].tools.schemas
    session = Model("lander").session()
    rows = []
    for n, one in enumerate(situations("lander", ROWS)):
        call = session.decide(one.observation, one.instruction).call
        assert call is not None
        right = Call(call.name, {**call.arguments, "main": 0 if call.arguments["main"] else 100}) if n == 0 else call
        names = {"id": f"r{n}", "sample": f"s{n // 2}", "source": f"source {n % 3}"}
        rows.append(Row(one.instruction, one.observation, right, (), tools, **names))
    return rows


@pytest.fixture
def lander_file(tmp_path: Path, lander_rows: list[Row]) -> Path:
    path = tmp_path / "rows.jsonl"
    write_rows(path, lander_rows)
    return path


def evaluated(rows: Path, *arguments: str) -> dict[str, Any]:
    scores = rows.with_name("scores.json")
    assert call("eval", str(rows), *arguments, "--json", str(scores)) == 0
    return dict(json.loads(scores.read_text()))


def test_a_model_is_judged_by_its_rows(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    found = evaluated(lander_file, "--model", "lander")
    assert (found["rule"], found["model"]["name"]) == ("exact", "lander")
    # One call of twelve is wrong, hence one of six samples.
    assert (found["rows"]["right"], found["rows"]["count"]) == (11, 12)
    assert (found["overall"]["right"], found["overall"]["count"], found["function"]["right"]) == (5, 6, 6)
    assert found["samples"]["s0"] == 0 and found["wrong"] == {"argument main": 1}
    assert found["latency_ms"]["count"] == 12 and found["passes"]["p50"] >= 1
    assert found["data"]["counts"]["rows"] == {"source 0": 4, "source 1": 4, "source 2": 4}
    assert call("eval", str(lander_file), "--model", "lander") == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("source 2", "together", "5/6", "83.33", "argument main"))


def test_answers_are_written_one_per_line(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    given = ("--model", "lander", "--set", f"eval.out={out}")
    evaluated(lander_file, *given)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in answers] == [f"r{n}" for n in range(ROWS)]
    assert all(len(one["calls"]) == 1 and one["confidence"].keys() >= {"function"} for one in answers)
    assert "already exists" in refused(capsys, "eval", str(lander_file), *given)
