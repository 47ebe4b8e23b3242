"""`rtcontrol eval`: checkpoints and endpoints on rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.bench.situations import situations
from rtcontrol.evaluation.answers import RemoteAnswerer
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow, write_rows
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.api import Model
from tests.models.small import tool
from tests.rtcontrol.hosts.standin_endpoint import standin

GO = tool("a.go", to=["left", "right"], speed={"type": "integer", "minimum": 0, "maximum": 2})
OPEN = tool("write", text={"type": "string"})
LEFT = Call("a.go", {"to": "left", "speed": 1})
ROW = DataRow("1", "1", "test", "go left", "a wall", (GO,), ("a.go(to=right)",), LEFT)


@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_a_decision_endpoint_answers_rows_whose_values_can_be_listed(api: str) -> None:
    wanted = {"function": "a.go", "to": "left", "speed": "1"}
    with standin(choose=lambda told, name, options: wanted.get(name.rpartition(".")[2], options[0])) as server:
        made = RemoteAnswerer(f"{api}:{server.url}#jev")
        found = made.answer(ROW)
        refused_row = made.answer(replace(ROW, tools=(OPEN,), call=Call("write", {"text": "x"})))
    assert found.calls == (LEFT,) and found.error is None and found.confidence["arg1"] == 0.8
    assert found.tokens == 40 and found.passes == 1
    assert str(refused_row.error).startswith("refused: Tool write, parameter text") and not refused_row.calls


def test_a_decision_endpoints_nonsense_is_wrong_and_its_refusal_ends_the_run() -> None:
    with standin(lambda n: (0.0, "garbage")) as server:
        assert "malformed" in str(RemoteAnswerer(f"decisions:{server.url}").answer(ROW).error)
    with standin(lambda n: (0.0, 401)) as server, pytest.raises(UserError, match=r"does not answer \(http: HTTP 401"):
        RemoteAnswerer(f"decisions:{server.url}").answer(ROW)
    with standin(lambda n: (0.0, "drop")) as server, pytest.raises(UserError, match="What was answered is kept"):
        RemoteAnswerer(f"decisions:{server.url}").answer(ROW)


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


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert call("eval", *arguments, "--json", "-") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_model_is_judged_by_its_rows(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    found = evaluated(capsys, str(lander_file), "--model", "lander")
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


def test_run_that_was_stopped_goes_on_and_ends_as_if_it_was_not(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    whole = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    lines = out.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + ROWS
    out.write_text("".join(lines[:5]))
    again = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    assert again["samples"] == whole["samples"] and again["overall"] == whole["overall"]
    assert out.read_text().startswith("".join(lines[:5])) and len(out.read_text().splitlines()) == len(lines)


def test_answers_of_another_model_or_other_rows_are_refused(
    capsys: pytest.CaptureFixture[str], lander_file: Path, lander_rows: list[DataRow], tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    before = out.read_bytes()
    said = refused(capsys, "eval", str(lander_file), "--model", "base", "--out", str(out))
    assert "another model: name 'lander', not 'base'" in said
    other = tmp_path / "other.jsonl"
    write_rows(other, [replace(row, instruction="go up") for row in lander_rows])
    assert "another data" in refused(capsys, "eval", str(other), "--model", "lander", "--out", str(out))
    assert out.read_bytes() == before
    moved = tmp_path / "moved.jsonl"
    lander_file.rename(moved)
    evaluated(capsys, str(moved), "--model", "lander", "--out", str(out))  # the same rows
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere.jsonl", "--model", "lander"), "neither a file nor a set"),
        (("seal-tools", "--model", "lander"), "Where seal-tools is was not said"),
        (("ROWS", "--model", "nobody"), "nobody"),
        (("ROWS", "--model", "decisions:ftp://x"), "its URL is none"),
    ],
)
def test_mistakes_are_told_before_anything_is_answered(
    capsys: pytest.CaptureFixture[str], lander_file: Path, arguments: tuple[str, ...], named: str
) -> None:
    said = refused(capsys, "eval", *(str(lander_file) if one == "ROWS" else one for one in arguments))
    assert re.search(named, said)
