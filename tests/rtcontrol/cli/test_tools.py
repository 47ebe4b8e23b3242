"""Tests of `rtcontrol tools check` and `--tools`: tools from files and servers, and reports on refused tools."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused, report_in

from rtcontrol.models.errors import UserError
from rtcontrol.run.toolsets import load_tools
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import free_port, until
from tests.rtcontrol.run.yard import world_file

CLOSED = {"name": "drive", "parameters": {"properties": {"speed": {"enum": [0, 1, 2]}}, "required": ["speed"]}}
FREE = {"type": "function", "function": {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}}
FUNCTIONS = """
import pydantic
from rtcontrol.agents import tool

class Part(pydantic.BaseModel):
    on: bool

class Wheel(pydantic.BaseModel):
    "Set a wheel."
    hard: bool
    part: Part

def helper(x: int) -> int:
    return x

@tool
def stop(hard: bool) -> None:
    "Stop."
"""
SERVER = """
import sys
from typing import Literal
from mcp.server.mcpserver import MCPServer

server = MCPServer("robot")

@server.tool()
def turn(side: Literal["left", "right"], hard: bool = False) -> str:
    "Turn to a side."
    return side

@server.tool()
def note(text: str) -> str:
    "Write a note."
    return text

server.run("streamable-http", port=int(sys.argv[1]))
"""


def checked(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    out = tmp_path / "found.json"
    assert call("tools", "check", source, "--json", str(out)) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert all(t["name"] in shown for t in found["tools"])
    assert all(set(t) == {"name", "kind", "passes", "prefix_tokens", "checked", "remedy"} for t in found["tools"])
    return {t["name"]: t for t in found["tools"]}


def test_tools_check_shows_passes_and_missing_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([CLOSED, FREE]))
    found = checked(tmp_path, str(file), capsys)
    assert (found["drive"]["kind"], found["drive"]["passes"], found["drive"]["remedy"]) == ("closed", 2, None)
    assert found["say"]["kind"] == "free" and found["say"]["passes"] > 1
    assert "parameter text: its values are not listed" in found["say"]["remedy"] and "enum" in found["say"]["remedy"]
    assert all(t["prefix_tokens"] > 5 for t in found.values())
    file.write_text(json.dumps({"tools": [{"name": "drive", "inputSchema": CLOSED["parameters"]}]}))  # as MCP lists it
    (alone,) = checked(tmp_path, str(file), capsys).values()
    assert (alone["name"], alone["passes"]) == ("drive", 1)
    assert alone["prefix_tokens"] == found["drive"]["prefix_tokens"]


def test_rules_that_no_mask_enforces_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = {"v": {"type": "integer", "minimum": 1, "not": {"const": 5}}, "w": {"enum": ["a", "b"]}, "t": {}}
    root = {"properties": properties, "dependentRequired": {"w": ["t"]}}
    (file := tmp_path / "tools.json").write_text(json.dumps([{"name": "go", "parameters": root}]))
    assert checked(tmp_path, str(file), capsys)["go"]["checked"] == {"v": ["not"], "the call": ["dependentRequired"]}


def test_functions_and_pydantic_models_of_a_python_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "robot_tools.py"
    file.write_text(FUNCTIONS)
    found = checked(tmp_path, str(file), capsys)
    assert {n: (t["kind"], t["passes"]) for n, t in found.items()} == {"stop": ("closed", 2), "Wheel": ("closed", 2)}


@pytest.mark.integration
def test_last_line_of_failed_mcp_server_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.py"
    file.write_text("from mcp.server.fastmcp import FastMCP\n")
    assert call("tools", "check", f"mcp:{sys.executable} {file}") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "did not return a list of tools" in line and "FastMCP was renamed" in line
    for wrong, says in (("mcp:no-such-command-here", "did not return a list"), ("mcp:", "followed by a server")):
        assert call("tools", "check", wrong) == 2 and says in capfd.readouterr().err


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_mcp_server_at_an_address_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    port = free_port()
    place = f"mcp:http://127.0.0.1:{port}"
    assert "did not return a list of tools" in refused(capsys, "tools", "check", f"{place}/mcp")
    with subprocess.Popen([sys.executable, str(file), str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: listens(port))
            found = checked(tmp_path, f"{place}/mcp", capsys)
            assert {n: t["kind"] for n, t in found.items()} == {"turn": "closed", "note": "free"}
            assert "it often ends in /mcp" in refused(capsys, "tools", "check", place)
        finally:
            server.kill()


LOOP = {"$ref": "#/$defs/P"}
CYCLE = {"properties": {"p": LOOP}, "$defs": {"P": {"type": "array", "items": LOOP}}}


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("nothing.json", None, "cannot be read as tools"),
        ("torn.json", "[{", "cannot be read as tools"),
        ("number.json", "3", "has no list of tools"),
        ("empty.py", "x = 1", "has no tools"),
        ("nothing.py", None, "there is no such file"),
        ("cycle.json", json.dumps([{"name": "t", "parameters": CYCLE}]), "parameter p: #/$defs/P refers to itself"),
        ("ones.py", "tools = [1]", "1 is not a tool."),
    ],
)
def test_undecodable_tool_is_refused_with_name_and_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / source).write_text(text)
    assert message in refused(capsys, "tools", "check", str(tmp_path / source))


GO = {"name": "drive", "parameters": {"properties": {"way": {"enum": ["north", "east"]}}, "required": ["way"]}}
# A yard that gets its goal only as the text of the instruction.
TOLD = (("def judge_by(self, goal)", "def instruct(self, text)"), ('goal["thing"]', '"barrel"'))
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
    """Return the calls that acted before the end of the run."""
    return [event for event in read_record(out / "record.mcap") if event.get("why") == "fresh"]


def test_user_world_with_tools_needs_no_agent(tmp_path: Path, tools: Any) -> None:
    out, world = tmp_path / "out", world_file(tmp_path, *TOLD)
    given = ("--env", world, "--tools", tools(GO), "--instruct", "go on", "--out", str(out))
    assert call("run", *given, *CHANCE) == 0
    report = report_in(out)
    assert (report["agent"], report["instruction"]) == ("given", "go on")
    made = calls(out)
    assert len(made) >= 8 and {c["arguments"]["way"] for c in made} == {"north", "east"}


def test_unusable_tools_are_refused_before_the_run(
    tmp_path: Path, tools: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out, world = tmp_path / "out", world_file(tmp_path, *TOLD)
    mine = ("run", "--env", world, "--out", str(out), "--host", "inprocess", "--no-live")
    lander = ("run", "--env", "lander", "--out", str(out), "--host", "inprocess", "--no-live")
    asked = ("--instruct", "go", "--model", "random")
    assert "--instruct TEXT" in refused(capsys, *mine, "--tools", tools(GO))
    jump = {"name": "jump"}
    assert "no binding of this name, and the tool has no function" in refused(
        capsys, *mine, *asked, "--tools", tools(GO, jump)
    )
    assert "the safe call is not valid" in refused(capsys, *lander, "--tools", tools(GO))
    assert "was trained on other tools" in refused(capsys, *lander, "--tools", tools(MAIN))
    assert "--model expert" in refused(capsys, *lander, "--tools", tools(MAIN), "--model", "expert")
    assert "carla-bridge" in refused(capsys, "run", "--env", "carla-bridge", "--tools", tools(GO))
    assert "cannot be read as tools" in refused(capsys, *lander, "--tools", str(tmp_path / "none.json"))
    assert not out.exists()


GOOD = {"name": "lift", "parameters": {"properties": {"up": {"type": "boolean"}}}}
BAD = [
    {"name": "a", "parameters": {"propertys": {"x": {"type": "string"}}}},
    {"name": "b", "params": {"x": {"type": "string"}}},
    {"name": "c", "parameters": {"properties": {"x": {"type": "string", "pattern": "(?=x)"}}}},
    {"name": "d", "parameters": {"properties": {"x": {}}, "patternProperties": {"^y": {}}}},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([BAD[0], GOOD, *BAD[1:]]))
    return path


def test_skipped_tools_are_reported_and_others_used(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tools", "check", str(file), "--set", "host.skip_unsupported=true") == 0
    told = capsys.readouterr()
    assert [line.split("skipped a tool: Tool ")[1][0] for line in told.err.splitlines()] == ["a", "b", "c", "d"]
    assert "lift" in told.out
    with pytest.raises(UserError, match="host.skip_unsupported"):
        load_tools(str(file))
    assert [tool.name for tool in load_tools(str(file), skip_unsupported=True)] == ["lift"]
    assert len(capsys.readouterr().err.splitlines()) == len(BAD)


def test_tools_file_may_have_one_tool_per_line(tmp_path: Path) -> None:
    file = tmp_path / "tools.jsonl"
    file.write_text("".join(json.dumps(tool) + "\n" for tool in (GO, {**GO, "name": "back"})))
    assert [tool.name for tool in load_tools(str(file))] == ["drive", "back"]
