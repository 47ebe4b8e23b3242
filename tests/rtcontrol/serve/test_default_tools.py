"""`rtcontrol serve --tools`: the tools of those who bring none."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import refused
from test_solo import fly as fly

from rtcontrol.bridges.wire.messages import Bye
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServeOptions
from tests.bridges.client.worlds import free_port
from tests.helpers.processes import cli
from tests.rtcontrol.serve.wire_peer import WirePeer

TURN = {"name": "turn", "parameters": {"properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}}
OWN = {"name": "move", "parameters": {"properties": {"dx": {"enum": [-1, 1]}}, "required": ["dx"]}}
LISTED = """
import pathlib, sys
from typing import Literal
from mcp.server.mcpserver import MCPServer

with open(pathlib.Path(__file__).with_name("asked"), "a") as log:
    log.write("asked\\n")
server = MCPServer("robot")

@server.tool()
def turn(side: Literal["left", "right"]) -> str:
    "Turn to a side."
    return side

server.run()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (path := tmp_path / "tools.json").write_text(json.dumps([TURN]))
    return str(path)


def test_a_client_without_tools_has_the_servers_and_others_their_own(bench: Any, file: str) -> None:
    made = bench(tools=file)
    peer = made.enter(tools=None, instruction="turn", pacing="client")
    assert peer.welcome.agent is None and [t["function"]["name"] for t in peer.welcome.tools] == ["turn"]
    assert {peer.ask().call.name for _ in range(5)} == {"turn"}
    assert made.enter(tools=[OWN], instruction="go", pacing="client").ask().call.name == "move"
    assert made.enter(agent="lander", pacing="client").ask().call.name == "engines"
    assert "Own tools need an instruction" in made.peer().denied(tools=None).message


def test_an_mcp_server_is_asked_once_at_the_start(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(LISTED)
    made = bench(tools=f"mcp:{sys.executable} {tmp_path / 'server.py'}")
    for _ in range(3):
        assert made.enter(tools=None, instruction="turn", pacing="client").ask().call.name == "turn"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_requests_of_v1_without_tools_have_the_servers(process: Any, file: str) -> None:
    web = free_port()
    process("--tools", file, "--http", f"127.0.0.1:{web}")
    said = [{"role": "user", "content": "turn"}]
    url = f"http://127.0.0.1:{web}/v1/"
    chat = httpx.post(url + "chat/completions", json={"model": "random", "messages": said}, timeout=60).json()
    assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "turn"
    assert httpx.post(url + "function_call", json={"messages": said}, timeout=60).json()["function"] == "turn"


def test_requests_of_v1_without_tools_have_those_of_the_one_agent(process: Any, file: str) -> None:
    web = free_port()
    process("--agent", "lander", "--model", "lander", "--http", f"127.0.0.1:{web}")
    said = [{"role": "user", "content": "land on the pad"}]
    url = f"http://127.0.0.1:{web}/v1/"
    asked = {"model": "default", "messages": said, "environment": ["x 0.10 y 0.90 vx 0.00 vy -0.20"]}
    chat = httpx.post(url + "chat/completions", json=asked, timeout=60).json()
    assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "engines"
    assert httpx.post(url + "function_call", json={"messages": said}, timeout=60).json()["function"] == "engines"
    other = httpx.post(url + "chat/completions", json={**asked, "tools": [{"type": "function", "function": TURN}]})
    told = other.json()["error"]["message"]
    assert other.status_code == 400 and "rtcontrol serve --model M" in told and "a client's" not in told


def test_the_one_client_of_a_run_has_the_tools_of_its_command_line(fly: Any, file: str) -> None:
    status: Future[int]
    status, endpoint = fly(tools=file)
    with WirePeer(endpoint) as peer:
        peer.enter(tools=None, instruction="turn", pacing="client")
        assert (call := peer.ask().call) is not None and call.name == "turn"
        peer.send(Bye(session=peer.token))
        assert status.result(timeout=30) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent": "lander"}, "--agent and --tools exclude each other"),
        ({"model": None}, "No model here was trained on these tools"),
        ({"model": "lander"}, "was trained on other tools"),
    ],
)
def test_tools_that_nobody_could_decide_for_are_refused_at_the_start(
    file: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        ServeOptions(**{"model": "random", "tools": file, **options}).ready()


def test_a_server_that_does_not_start_leaves_no_folder(
    tmp_path: Path, file: str, made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = made.server.endpoints[0]
    out = tmp_path / "left"
    (tmp_path / "cwd").mkdir()
    serve = ("serve", "--model", "random", "--host", "inprocess", "--out", str(out))
    assert "is the port free?" in refused(capsys, *serve, "--bind", taken)
    assert "cannot be bound" in refused(
        capsys, *serve, "--bind", "tcp://127.0.0.1:*", "--http", f"127.0.0.1:{taken.rpartition(':')[2]}"
    )
    assert "cannot be read as tools" in refused(capsys, *serve, "--tools", f"{file}.none")
    assert "--hz 0" in refused(capsys, *serve, "--hz", "0")
    assert not out.exists()
    ended = cli(*serve[:-2], "--bind", taken, "--supervise", cwd=tmp_path / "cwd")
    assert ended.returncode == 2 and "is the port free?" in ended.stderr
    assert [*(tmp_path / "cwd").iterdir()] == []
