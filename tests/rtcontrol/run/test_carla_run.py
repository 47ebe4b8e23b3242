"""Tests of `rtcontrol run --env carla-bridge`, which starts the bridge, watches the bridge and cleans up."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from commands import report_in

from rtcontrol.models.errors import UserError
from rtcontrol.run import carla_bridge as standins
from rtcontrol.run.carla_bridge import BridgeProcess
from tests.bridges.carla import rig
from tests.bridges.carla.rig import Program, StandIn
from tests.helpers.processes import until

RANDOM = ["--model", "random", "--host", "inprocess"]


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    pytest.importorskip("carla")
    made: list[Program] = []
    yield made
    for one in made:
        one.kill()


def test_two_lockstep_runs_with_one_seed_are_equal(tmp_path: Path, programs: list[Program]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        programs.append(rig.run(tmp_path / name, None, *RANDOM, "--clock", "lockstep", "--duration", "3"))
    programs[1].says("in session")
    children = psutil.Process(programs[1].popen.pid).children(recursive=True)
    [simulator] = [child for child in children if standins.MODULE in " ".join(child.cmdline())]
    simulator.suspend()
    time.sleep(1.1)
    simulator.resume()
    drives = []
    for program in programs:
        assert program.popen.wait(90) == 0, program.log()
        kept = ("x", "y", "yaw", "kmh", "call", "throttle", "brake", "steer")
        drives.append([[line[name] for name in kept] for line in program.trace()])
        # The car is driven by answers alone: the safe call that ends the session may come before or after the last one.
        rows = [(line["status"], line["cause"]) for line in program.trace()]
        assert rows[:48] == [("fresh", None)] * 48 and set(rows[48:]) <= {("safe", "ended")}
        assert report_in(program.folder / "out")["ended_by"] == "duration"
        assert "CARLA stand-in, not CARLA" in program.log() and "lost" not in program.log()
        state = json.loads((program.folder / "out" / "standin.json").read_text())
        assert state["alive"] == [] and state["settings"]["synchronous"] is False
    assert len(drives[0]) > 45
    assert drives[0] == drives[1]


def test_aborted_bridge_ends_run_and_is_cleaned_up(tmp_path: Path, programs: list[Program]) -> None:
    with StandIn(state=tmp_path / "standin.json") as standin:
        program = rig.run(tmp_path, standin.port, *RANDOM)
        programs.append(program)
        program.says("in session")
        children = psutil.Process(program.popen.pid).children(recursive=True)
        standin.command("garbage")
        assert program.popen.wait(60) == 1
        state = standin.state()
        assert state["alive"] == [] and state["settings"]["synchronous"] is False
    assert program.left() == []
    assert not any(child.is_running() for child in children)
    assert report_in(program.folder / "out")["ended_by"] == "bridge"


def test_killed_run_also_ends_the_bridge(tmp_path: Path, programs: list[Program]) -> None:
    with StandIn(state=tmp_path / "standin.json") as standin:
        program = rig.run(tmp_path, standin.port, *RANDOM)
        programs.append(program)
        program.says("ego vehicle")
        bridge = next(c for c in psutil.Process(program.popen.pid).children() if "--set=once=True" in c.cmdline())
        folder = Path(next(a for a in bridge.cmdline() if "=ipc://" in a).partition("ipc://")[2]).parent
        assert folder.is_dir()
        program.popen.send_signal(signal.SIGKILL)
        until(lambda: standin.state()["alive"] == [] and not standin.state()["settings"]["synchronous"], "left behind")
    until(lambda: program.left() == [], "the list of what is to undo is kept")
    until(lambda: not folder.exists(), "its temporary folder is kept")


Make = Callable[[str], BridgeProcess]
BEGIN = """
import json, os, signal, sys, time
def tell(**event): print(json.dumps(event), flush=True)
if "--clean" in sys.argv:
    os.unlink(sys.argv[-1])
    sys.exit(print("all undone", file=sys.stderr))
left = f"{__file__}.{os.getpid()}.left"
open(left, "w").close()
tell(event="begun", journal=left)
print("a library's own words", flush=True)
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a bridge process from the code of its program."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def bridged(program: str) -> BridgeProcess:
        (tmp_path / "bridge_of_test.py").write_text(BEGIN + textwrap.dedent(program))
        return BridgeProcess([sys.executable, "-m", "bridge_of_test"])

    return bridged


def test_bridge_error_ends_run_and_cleans_up(make: Make, tmp_path: Path) -> None:
    told = 'tell(event="mistake", what="No server.", remedy="Start one."); sys.exit(2)'
    with make(told) as bridged, pytest.raises(UserError, match=r"No server\. Start one\."):
        bridged.await_ready()
    assert list(tmp_path.glob("*.left")) == []


@pytest.mark.parametrize(("status", "told"), [(0, "ended before the run"), (1, r"before the run \(exit status 1\)")])
def test_bridge_that_ends_before_the_run_is_reported(make: Make, status: int, told: str) -> None:
    with make(f"sys.exit({status})") as bridged, pytest.raises(UserError, match=told):
        bridged.await_ready()


def test_bridge_that_hangs_is_killed_and_cleaned_up(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtcontrol.run.carla_bridge.END_S", 0.1)
    monkeypatch.setattr("rtcontrol.run.carla_bridge.TERM_S", 0.1)
    with make('signal.signal(signal.SIGTERM, signal.SIG_IGN); tell(event="ready"); time.sleep(60)') as bridged:
        bridged.await_ready()
        process = bridged._process
    assert process is not None and process.returncode == -9
    assert list(tmp_path.glob("*.left")) == []
