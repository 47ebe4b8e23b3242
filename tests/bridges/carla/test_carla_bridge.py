"""The CARLA bridge as a process, with the real client library and the stand-in (which is not CARLA); its command
line."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from rtcontrol_client.carla.bridge import FULL_STOP, CarlaBridge
from rtcontrol_client.carla.cli import main
from rtcontrol_client.carla.options import DriveOptions
from tests.bridges.carla import rig
from tests.bridges.carla.rig import Brain, Program, StandIn
from tests.bridges.client.worlds import free_port, until
from tests.helpers.processes import python

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
    """A function that starts a bridge and waits for its session."""
    made: list[Program] = []

    def start(*options: str, port: int = standin.port) -> Program:
        program = rig.bridge(tmp_path, brain.endpoint, port, *options)
        made.append(program)
        program.says("in session")
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


def test_bridge_drives_calls_and_sigterm_restores_the_server(standin: StandIn, brain: Brain, drive: Drive) -> None:
    program = drive("--instruct", "go", "--set=once=true")
    program.reaches(6)
    # A line on the standard input is a new instruction.
    assert program.popen.stdin is not None
    program.popen.stdin.write("overtake\n")
    program.popen.stdin.flush()
    until(lambda: brain.instruction == "overtake", "not instructed")
    state = standin.state()
    assert [(one["role_name"], one["type_id"]) for one in state["alive"]] == [("hero", "vehicle.tesla.model3")]
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (True, 0.0625)
    brain.call("brake", level=100)
    until(lambda: program.last()["kmh"] == 0, "the car does not brake")
    brain.call("set_speed", kmh=50)
    program.reaches(4)
    # An unknown call changes nothing: the car drives on as before.
    brain.call("fly", height=3)
    told = {("executed", None), ("refused", "this is not a driver's call")}
    until(lambda: {(one.outcome, one.error) for one in brain.outcomes} == told, "not acknowledged")
    program.reaches(6)
    assert program.end() == 143
    nothing_left(standin, program)
    # The car is stopped at the end.
    assert program.last()["kmh"] < 1
    assert all(line["age_ms"] <= 500 for line in program.trace() if line["status"] == "fresh")
    assert "CARLA stand-in, not CARLA, Standin:" in program.log()


def test_frozen_server_is_detected_and_the_car_brakes_on_return(standin: StandIn, drive: Drive) -> None:
    program = drive()
    program.reaches(8)
    standin.command("freeze")
    program.says("is lost")
    frozen = program.last()
    assert frozen["status"] == "fresh"
    standin.command("thaw")
    program.says("is back after")
    until(lambda: program.last()["frame"] > frozen["frame"], "the drive does not continue")
    after = next(line for line in program.trace() if line["frame"] > frozen["frame"])
    assert after["kmh"] < frozen["kmh"] and after["throttle"] == 0.0
    program.reaches(frozen["kmh"])
    assert program.end(signal.SIGHUP) == 129
    nothing_left(standin, program)


def test_hanging_server_ends_the_drive_and_is_undone_later(standin: StandIn, drive: Drive) -> None:
    program = drive("--set=reconnect_s=1")
    program.reaches(8)
    standin.command("freeze")
    assert program.popen.wait(30) == 2
    assert (
        "was lost and did not continue within 1 s. Read the CARLA server's output; `rtcontrol bridge carla --set"
        in program.log()
    )
    # Clean-up failed as well: the journal is kept, and the next bridge or a person can undo everything.
    (left,) = program.left()
    assert f"the list is kept: {left}" in program.log()
    standin.command("thaw")
    undone = bridge("--clean", str(left))
    assert undone.returncode == 0 and undone.stderr == "1 vehicle destroyed; settings restored (asynchronous)\n"
    nothing_left(standin, program)


@pytest.mark.parametrize(
    ("gone", "why"), [(True, "was lost: No CARLA server at "), (False, "The ego vehicle on the CARLA server at ")]
)
def test_lost_server_or_removed_vehicle_ends_the_drive(standin: StandIn, drive: Drive, gone: bool, why: str) -> None:
    import carla

    program = drive()
    program.reaches(8)
    if gone:
        standin.kill()
    else:
        (vehicle,) = standin.state()["alive"]
        command = carla.command.DestroyActor(vehicle["id"])
        carla.Client("127.0.0.1", standin.port).apply_batch_sync([command], False)
    assert program.popen.wait(30) == 2
    assert why in program.log() and program.left() == []  # a server that is gone has nothing to undo


def test_next_bridge_undoes_what_a_killed_bridge_left(standin: StandIn, drive: Drive) -> None:
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


def test_second_bridge_is_refused(tmp_path: Path, standin: StandIn, brain: Brain, drive: Drive) -> None:
    program = drive()
    second = rig.bridge(tmp_path, brain.endpoint, standin.port)
    assert second.popen.wait(20) == 2
    assert f"Another bridge (process {program.popen.pid}) drives on the CARLA server" in second.log()
    assert program.end() == 143
    nothing_left(standin, program)


# Errors on the CARLA bridge's command line are reported before driving.


def bridge(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "rtcontrol_client.carla", *arguments)


def test_missing_server_is_reported_with_the_start_command() -> None:
    ended = bridge("--carla-port", str(free_port()))
    assert ended.returncode == 2
    assert "No CARLA server at 127.0.0.1:" in ended.stderr
    assert "./CarlaUE4.sh -RenderOffScreen -quality-level=Low" in ended.stderr
    assert "carla.standin=true" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--connect", "localhost:5555"), "--connect localhost:5555 is not an endpoint. Write tcp://ADDRESS:PORT"),
        (("--instruct", " "), "instruction= : string should match pattern"),
        (("--carla-host", "a..b"), "'a..b' is not a valid host name"),
        (("--set", "hz=1000"), "hz=1000: input should be less than or equal to 100. The options are"),
        (("--set", "duration_s=nan"), "duration_s=nan: input should be"),
        (("--set", "speed=3"), "speed=3: it is not an option."),
    ],
)
def test_option_error_is_one_line_before_driving(
    given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--carla-port", str(free_port()), *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(said) and told.count("\n") == 1


def test_port_of_another_program_does_not_abort_the_bridge() -> None:
    # ZeroMQ, as in rtcontrol's server, sends first, which would make CARLA's library abort the process.
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        ended = bridge("--carla-port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"The program that listens at 127.0.0.1:{port} is not a CARLA server. Give --carla-port"
    )


@pytest.mark.parametrize("hz, steps", [(16.0, 1), (20.0, 1), (10.0, 2), (15.0, 2), (1.0, 16), (50.0, 1)])
def test_period_is_divided_into_steps_valid_for_the_physics(hz: float, steps: int) -> None:
    options = DriveOptions(hz=hz)
    assert options.steps == steps
    assert options.step_s <= 0.0625
    assert options.steps * options.step_s == pytest.approx(1 / hz)


def test_suspended_bridge_brakes_before_the_process_stops() -> None:
    acts: list[Any] = []
    bridge = CarlaBridge.__new__(CarlaBridge)  # avoids connecting to a server
    bridge._world = SimpleNamespace(control=acts.append)  # type: ignore[assignment]
    bridge._retake, bridge._suspend_process, bridge._stopped = lambda: None, None, True
    bridge.suspend(lambda: acts.append("halt"))
    assert bridge._is_over() and acts == [FULL_STOP, "halt"]
    assert bridge._is_over() and len(acts) == 2
