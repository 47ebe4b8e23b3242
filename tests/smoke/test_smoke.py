"""End-to-end tests of real programs in the default tier, without checks of wall-clock times."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.examples.test_examples import ran, serving
from tests.helpers.processes import cli


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with 32 ticks."""
    out = tmp_path_factory.mktemp("flown") / "run"
    flight = ("--env", "lander", "--model", "expert", "--host", "inprocess", "--clock", "lockstep", "--duration", "2")
    done = cli("run", *flight, "--no-live", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def test_model_is_trained_for_function_tool_and_calls_it() -> None:
    found = re.findall(r"-> heat\(power=(\d+)\) -> the heater is at (\d+) %", ran("function_tools", "0.2"))
    assert len(found) == 3 and all(one == other for one, other in found)


def test_server_decides_a_request_of_pythons_library(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "random", http=True) as address:
        told = ran("http_request", f"{address}/")
    assert re.match(r'engines \{"main": (0|50|100), "side": (-50|0|50)\} [\d.]+ ms', told)


def test_record_is_readable_without_our_code(flown: Path) -> None:
    told = ran("read_record", str(flown / "record.mcap"))
    assert told.startswith("32 ticks: {'on time': 32}")
    assert "engines(" in told


def test_run_is_replayed_with_another_model(flown: Path, tmp_path: Path) -> None:
    same = ran("replay", str(flown))
    assert same.startswith("expert then, expert now: 32 of 32 calls are the same\n  instructed ")
    other = re.match(r"expert then, random now: (\d+) of 32 calls", ran("replay", str(flown), "random"))
    assert other is not None and int(other[1]) < 32
    assert "record" in ran("replay", str(tmp_path), status=1)


def test_carla_bridge_drives_in_the_stand_in(tmp_path: Path) -> None:
    pytest.importorskip("carla")
    drive = ("--env", "carla-bridge", "--set", "carla.standin=true", "--model", "random", "--host", "inprocess")
    done = cli("run", *drive, "--clock", "lockstep", "--duration", "1", "--no-live", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["ended_by"] == "duration" and report["on_time"] > 0
    assert json.loads((tmp_path / "out" / "standin.json").read_text())["alive"] == []
