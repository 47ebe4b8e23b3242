"""The CARLA bridge with the real client library and the stand-in, each in a process of its own: the calls that it
executes, what happens when either dies, and that nothing is left behind. The stand-in is not CARLA."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.carla import rig
from tests.bridges.carla.rig import Brain, Line, Program
from tests.bridges.carla.standin_process import StandIn
from tests.bridges.client.worlds import until

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")
Drive = Callable[..., Program]


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(state=tmp_path / "standin.json") as made:
        yield made


@pytest.fixture
def brain() -> Iterator[Brain]:
    made = Brain("set_speed", kmh=50)
    yield made
    made.close()


@pytest.fixture
def drive(tmp_path: Path, standin: StandIn, brain: Brain) -> Iterator[Drive]:
    """Starts a bridge, and waits for its session."""
    made: list[Program] = []

    def start(*options: str, port: int = standin.port) -> Program:
        program = rig.bridge(tmp_path, brain.endpoint, port, *options)
        made.append(program)
        until(lambda: program.log().count("in session") == len(made) or program.popen.poll() is not None, "no session")
        assert program.popen.poll() is None, program.log()
        return program

    yield start
    for one in made:
        one.kill()


def nothing_left(standin: StandIn, program: Program) -> None:
    state = standin.state()
    assert state["alive"] == []
    assert state["settings"]["synchronous"] is False
    assert state["settings"]["fixed_delta_s"] is None
    assert program.left() == []


def of_status(program: Program, status: str) -> list[Line]:
    return [line for line in program.trace() if line["status"] == status]


def test_calls_are_driven_and_sigterm_leaves_the_server_as_it_was(standin: StandIn, brain: Brain, drive: Drive) -> None:
    program = drive("--instruct", "go")
    program.reaches(6)
    state = standin.state()
    assert [(one["role_name"], one["type_id"]) for one in state["alive"]] == [("hero", "vehicle.tesla.model3")]
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (True, 0.0625)
    brain.call("brake", level=100)
    until(lambda: program.last()["kmh"] == 0, "it does not brake")
    brain.call("set_speed", kmh=50)
    program.reaches(4)
    # What no driver knows changes nothing: it goes on as it was told before.
    brain.call("fly", height=3)
    told = {("executed", None), ("refused", "no call of a driver")}
    until(lambda: {(one.outcome, one.error) for one in brain.outcomes} == told, "not acknowledged")
    program.reaches(6)
    assert program.end() == 143
    nothing_left(standin, program)
    # The last thing it did was to stop.
    assert program.last()["kmh"] < 1
    report = program.report()
    assert report["world"] == "CARLA stand-in, not CARLA"
    assert set(report["executed"]) == {"set_speed", "brake"}
    assert report["driver"]["refused"]
    assert report["too_old_executed"] == 0
    assert report["steps"] <= report["on_grid"] + report["late"]
    assert [entry["text"] for entry in report["instructions"]] == ["go"]
    assert "CARLA stand-in, not CARLA, Standin:" in program.log()


def test_call_older_than_its_time_to_live_is_not_executed(standin: StandIn, brain: Brain, drive: Drive) -> None:
    program = drive("--supervised")
    program.reaches(5)
    brain.age_ms = 600.0
    until(lambda: bool(of_status(program, "safe")) and program.last()["kmh"] == 0, "it does not stop")
    assert of_status(program, "safe")[-1]["cause"] == "expired"
    brain.age_ms = 0.0
    program.reaches(3)
    # A line on its input is the new instruction; the end of its input is its own.
    assert program.popen.stdin is not None
    program.popen.stdin.write(b"overtake\n")
    program.popen.stdin.flush()
    until(lambda: brain.instruction == "overtake", "not instructed")
    program.popen.stdin.close()
    assert program.popen.wait(20) == 0
    nothing_left(standin, program)
    told = program.report()
    assert told["calls"]["expired"] > 0 and told["too_old_executed"] == 0
    assert told["oldest_executed_ms"] <= 500


def test_frozen_server_is_found_and_the_car_brakes_first_when_it_goes_on(standin: StandIn, drive: Drive) -> None:
    program = drive()
    program.reaches(8)
    standin.command("freeze")
    program.says("is lost")
    frozen = program.last()
    assert frozen["status"] == "fresh"
    standin.command("thaw")
    program.says("with the vehicle where it was")
    until(lambda: program.last()["frame"] > frozen["frame"], "it does not go on")
    after = next(line for line in program.trace() if line["frame"] > frozen["frame"])
    assert after["kmh"] < frozen["kmh"]
    program.reaches(frozen["kmh"])
    assert program.end(signal.SIGHUP) == 129
    nothing_left(standin, program)
    (lost,) = program.report()["server_lost"]
    assert lost["back_after_s"] > 0 and lost["speed_kmh"] > 5 and "time-out" in lost["why"]


def test_server_that_was_started_again_is_driven_on_with_a_new_vehicle(
    tmp_path: Path, standin: StandIn, drive: Drive
) -> None:
    program = drive()
    standin.kill()
    program.says("is lost")
    with StandIn("--port", str(standin.port), state=tmp_path / "second.json") as second:
        program.says("with a new vehicle")
        program.reaches(3)
        assert program.end() == 143
        nothing_left(second, program)


def test_what_a_bridge_that_was_killed_left_is_undone_by_the_next(standin: StandIn, drive: Drive) -> None:
    # Who connects anew while nobody ticks is told of no vehicle.
    standin.command("reticent")
    first = drive()
    first.popen.send_signal(signal.SIGKILL)
    assert first.popen.wait(20) == -signal.SIGKILL
    left: Any = standin.state()
    assert left["settings"]["synchronous"] is True and len(left["alive"]) == 1
    assert len(first.left()) == 1
    second = drive()
    assert f"a bridge that died (process {first.popen.pid}): 1 vehicle destroyed; settings restored" in second.log()
    assert [one["id"] for one in standin.state()["destroyed"]] == [left["alive"][0]["id"]]
    assert second.end() == 143
    nothing_left(standin, second)


def test_traffic_of_the_bridge_is_driven_and_removed_and_a_second_bridge_is_refused(
    tmp_path: Path, standin: StandIn, brain: Brain, drive: Drive
) -> None:
    program = drive("--traffic", "3")
    second = rig.bridge(tmp_path, brain.endpoint, standin.port)
    assert second.popen.wait(20) == 2
    assert f"Another bridge (process {program.popen.pid}) drives on the CARLA server" in program.log()
    until(
        lambda: sum(one["speed_kmh"] > 2 for one in standin.state()["alive"] if one["role_name"] == "rtcontrol") == 3,
        "the others do not drive",
    )
    assert program.end() == 143
    nothing_left(standin, program)
