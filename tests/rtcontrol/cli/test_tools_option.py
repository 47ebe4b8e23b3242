"""`rtcontrol run --tools`: other tools for a world that has functions for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused
from test_mistakes import own_world

from rtcontrol.telemetry.record_reader import read_record

GO = {"name": "go", "parameters": {"properties": {"way": {"enum": [-1, 1]}}, "required": ["way"]}}
SIDE = {"type": "integer", "enum": [0]}
MAIN = {
    "name": "engines",
    "parameters": {"properties": {"main": {"enum": [0, 100]}, "side": SIDE}, "required": ["main", "side"]},
}
CHANCE = ("--model", "random", "--host", "inprocess", "--clock", "lockstep", "--no-live", "--duration", "0.5")


@pytest.fixture
def tools(tmp_path: Path) -> Any:
    def write(*definitions: dict[str, Any]) -> str:
        (file := tmp_path / "given.json").write_text(json.dumps(definitions))
        return str(file)

    return write


def calls(out: Path) -> list[dict[str, Any]]:
    """What acted before the run's end."""
    return [event for event in read_record(out / "record.mcap") if event.get("why") == "fresh"]


def test_a_world_of_ones_own_needs_no_agent_where_its_tools_are_given(tmp_path: Path, tools: Any) -> None:
    out, world = tmp_path / "out", own_world(tmp_path, "tools_world.py")
    given = ("--env", world, "--tools", tools(GO), "--instruct", "go on", "--out", str(out))
    assert call("run", *given, *CHANCE) == 0
    report = json.loads((out / "report.json").read_text())
    assert (report["agent"], report["instruction"], report["misses"]) == ("given", "go on", 0)
    made = calls(out)
    assert len(made) >= 8 and {c["called"] for c in made} == {"go"} and {c["arguments"]["way"] for c in made} == {-1, 1}


def test_tools_take_the_place_of_an_agents_own(tmp_path: Path, tools: Any) -> None:
    out = tmp_path / "out"
    assert call("run", "--env", "lander", "--tools", tools(MAIN), "--out", str(out), *CHANCE) == 0
    assert {tuple(c["arguments"].values()) for c in calls(out)} == {(0, 0), (100, 0)}
    assert json.loads((out / "report.json").read_text())["agent"] == "lander"


def test_tools_that_cannot_act_or_be_decided_are_refused_before_the_run(
    tmp_path: Path, tools: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out, world = tmp_path / "out", own_world(tmp_path, "bound_world.py")
    mine = ("run", "--env", world, "--out", str(out), "--host", "inprocess", "--no-live")
    lander = ("run", "--env", "lander", "--out", str(out), "--host", "inprocess", "--no-live")
    asked = ("--instruct", "go", "--model", "random")
    assert "--instruct TEXT" in refused(capsys, *mine, "--tools", tools(GO))
    jump = {"name": "jump"}
    assert "no binding of this name, and the tool has no function" in refused(
        capsys, *mine, *asked, "--tools", tools(GO, jump)
    )
    assert "(jump) acts in the environment" in refused(capsys, *mine, *asked, "--tools", tools(jump))
    assert "its safe call is illegal" in refused(capsys, *lander, "--tools", tools(GO))
    assert "was trained on other tools" in refused(capsys, *lander, "--tools", tools(MAIN))
    assert "--model expert" in refused(capsys, *lander, "--tools", tools(MAIN), "--model", "expert")
    assert "carla-bridge" in refused(capsys, "run", "--env", "carla-bridge", "--tools", tools(GO))
    assert "cannot be read as tools" in refused(capsys, *lander, "--tools", str(tmp_path / "none.json"))
    assert not out.exists()
