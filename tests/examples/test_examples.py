"""The programs of examples/ run as they stand there. `supervise.py` is in tests/rtcontrol/gateway/test_mcp_server.py,
`own_loop.py` in tests/bridges/client/test_client.py."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bridges.client.worlds import free_port
from tests.helpers.processes import ROOT, Program, cli, python

HERE = ROOT / "examples"
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
