"""One bad tool of a foreign source is told with all the others, and need not cost the good ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands import call

from rtcontrol.models.errors import UserError
from rtcontrol.run.toolsets import tools_from
from rtcontrol.serve.options import ServeOptions

GOOD = {"name": "lift", "parameters": {"properties": {"up": {"type": "boolean"}}}}
BAD = [
    {"name": "a", "parameters": {"propertys": {"x": {"type": "string"}}}},
    {"name": "b", "params": {"x": {"type": "string"}}},
    {"name": "c", "parameters": {"properties": {"x": {"type": "string", "pattern": "(?=x)"}}}},
    {"name": "d", "parameters": {"properties": {"x": {}}, "patternProperties": {"^y": {}}}},
]
SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("robot")

@server.tool()
def lift(up: bool) -> str:
    "Lift."
    return ""

@server.tool()
def label(**marks: str) -> str:
    "Label."
    return ""

tool = server._tool_manager._tools["label"]
tool.parameters = {"type": "object", "patternProperties": {"^x": {"type": "string"}}}
server.run()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([BAD[0], GOOD, *BAD[1:]]))
    return path


def test_all_tools_that_cannot_be_taken_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tools", "check", str(file)) == 2
    said = capsys.readouterr().err
    assert all(f"Tool {bad['name']}" in said for bad in BAD) and "4 tools" in said and "Traceback" not in said


def test_skipped_tools_are_told_a_line_each_and_the_others_are_taken(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("tools", "check", str(file), "--skip-unsupported") == 0
    told = capsys.readouterr()
    assert [line.split("left out: Tool ")[1][0] for line in told.err.splitlines()] == ["a", "b", "c", "d"]
    assert "lift" in told.out
    with pytest.raises(UserError, match="--skip-unsupported leaves such tools out"):
        tools_from(str(file))
    said: list[str] = []
    assert [tool.name for tool in tools_from(str(file), said.append, skip_unsupported=True)] == ["lift"]
    assert len(said) == len(BAD)


def test_a_server_serves_what_is_left_and_none_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ServeOptions(tools=str(file), model="noop", skip_unsupported=True).ready()
    assert [tool["function"]["name"] for tool in made.default_tools] == ["lift"]
    file.write_text(json.dumps(BAD))
    with pytest.raises(UserError, match="Tool a: .* 4 of the 4 tools"):
        ServeOptions(tools=str(file), model="noop", skip_unsupported=True).ready()


def test_a_run_whose_safe_call_is_left_out_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([GOOD, {"name": "engines", "params": {"main": {"type": "integer"}}}]))
    assert call("run", "--env", "lander", "--tools", str(path), "--skip-unsupported", "--model", "noop") == 2
    said = capsys.readouterr().err
    assert "left out: Tool engines" in said and "cannot take the place of the tools of lander" in said


def test_a_bad_tool_of_an_mcp_server_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    source = f"mcp:{sys.executable} {path}"
    assert call("tools", "check", source) == 2
    assert "`patternProperties` gives a call arguments without names" in capsys.readouterr().err
    assert call("tools", "check", source, "--skip-unsupported") == 0
    told = capsys.readouterr()
    assert "left out: Tool label" in told.err and "lift" in told.out


def test_more_tools_than_are_taken_are_refused_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.json"
    path.write_text(json.dumps([{"name": f"t{i}"} for i in range(129)]))
    assert call("tools", "check", str(path)) == 2
    assert "129 tools, and 128 are taken." in capsys.readouterr().err
