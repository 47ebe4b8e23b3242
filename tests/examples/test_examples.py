"""The programs of examples/ run as they stand there. `supervise.py` is in tests/rtcontrol/gateway/test_mcp_server.py,
`own_loop.py` in tests/bridges/client/test_client.py."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from websockets.sync.client import connect

from tests.bridges.client.worlds import free_port
from tests.helpers.processes import ROOT, Program, cli, python

HERE = ROOT / "examples"
neuro_game = SimpleNamespace(**runpy.run_path(str(HERE / "neuro_game.py")))

STATE = "coin 2 left 0 down free left right up down"
WAYS = {
    "2 left 1 up free left right up down": "left",
    "1 left 3 up free left right up": "up",
    "2 left 0 up free right up down": "up",
    "2 left 1 up free right": None,
}
ELSEWHERE = {"supervise", "own_loop"}


def ran(name: str, *arguments: str) -> str:
    done = python(str(HERE / f"{name}.py"), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_tool_is_learnt_and_called() -> None:
    found = re.findall(r"-> heat\(power=(\d+)\) -> the heater is at (\d+) %", ran("function_tools", "0.2"))
    assert len(found) == 3 and all(one == other for one, other in found)


def test_calls_become_the_pydantic_models_that_the_tools_are() -> None:
    lines = ran("pydantic_tools", "0.2").splitlines()
    assert len(lines) == 3
    assert all(re.search(r"-> (Grip\(force=\d+\)|Move\(side='(left|right)'\)|Wait\(\))$", line) for line in lines)


def test_a_game_of_the_neuro_api_is_played_by_what_its_rules_taught(tmp_path: Path) -> None:
    out, port = tmp_path / "coins", free_port()
    assert f"--model {out}" in ran("neuro_game", str(out), "0.3")
    given = ("--host", "inprocess", "--neuro", f"127.0.0.1:{port}", "--bind", "tcp://127.0.0.1:*")
    server = Program(
        ["-m", "rtcontrol", "serve", "--model", str(out), *given, "--out", str(tmp_path / "served")], tmp_path / "log"
    )
    try:
        server.says(f"listening on ws://127.0.0.1:{port}/ for games")
        with connect(f"ws://127.0.0.1:{port}/") as game:
            for command, data in (
                ("actions/register", {"actions": [{**one, "schema": one["parameters"]} for one in neuro_game.ACTIONS]}),
                ("actions/force", {"query": "Collect the coin.", "state": STATE, "action_names": ["move", "wait"]}),
            ):
                game.send(json.dumps({"command": command, "game": "Coins", "data": data}))
            told: dict[str, Any] = {}
            while told.get("command") != "action":
                told = json.loads(game.recv(30))
        assert told["data"]["name"] in ("move", "wait")
    finally:
        server.kill()


def test_the_neuro_games_rules_find_a_way_around_a_rock() -> None:
    moved = [neuro_game.teacher("", f"coin {text}\nCollect the coin.") for text in WAYS]
    assert [one["arguments"].get("direction") for one in moved] == list(WAYS.values())


def test_a_server_decides_a_request_of_pythons_own_library(tmp_path: Path) -> None:
    port = free_port()
    given = ("--model", "random", "--host", "inprocess", "--http", f"127.0.0.1:{port}", "--bind", "tcp://127.0.0.1:*")
    server = Program(["-m", "rtcontrol", "serve", *given, "--out", str(tmp_path / "served")], tmp_path / "log")
    try:
        server.says(f"listening on http://127.0.0.1:{port}")
        told = ran("http_request", f"http://127.0.0.1:{port}/")
        assert re.match(r"engines \{'main': (0|50|100), 'side': (-50|0|50)\} [\d.]+ ms", told)
    finally:
        server.kill()


def test_a_record_is_read_with_nothing_of_ours(tmp_path: Path) -> None:
    flight = ("--env", "lander", "--model", "expert", "--host", "inprocess", "--clock", "lockstep", "--duration", "2")
    flown = cli("run", *flight, "--no-live", "--out", str(tmp_path / "run"))
    assert flown.returncode == 0, flown.stderr
    told = ran("read_record", str(tmp_path / "run" / "record.mcap"))
    assert told.startswith("32 ticks: {'on time': 32}")
    assert "engines(" in told


def test_every_example_is_run_by_a_test() -> None:
    names = {path.stem for path in HERE.glob("*.py")}
    assert names - ELSEWHERE == set(re.findall(r'ran\("(\w+)"', Path(__file__).read_text("utf-8")))
