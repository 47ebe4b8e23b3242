"""What the CARLA bridge's command line says about mistakes, before anything is driven."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from rtcontrol.bridges.carla.cli import main
from rtcontrol.bridges.carla.options import CarlaBridgeError, CarlaBridgeOptions, WorldOptions
from rtcontrol.bridges.carla.session import CarlaSession
from tests.bridges.carla.standin_process import StandIn
from tests.bridges.client.worlds import ROOT, free_port

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")


@pytest.fixture(scope="module")
def standin() -> Iterator[StandIn]:
    with StandIn() as made:
        yield made


def bridge(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rtcontrol.bridges.carla", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


def test_no_server_is_told_with_the_command_that_starts_one() -> None:
    ended = bridge("--carla-port", str(free_port()))
    assert ended.returncode == 2
    assert "No CARLA server at 127.0.0.1:" in ended.stderr
    assert "./CarlaUE4.sh -RenderOffScreen -quality-level=Low" in ended.stderr
    assert "--carla-standin" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--hz", "abc"), "Argument --hz: invalid float value: 'abc'. See `python -m rtcontrol.bridges.carla --help`."),
        (("--trafic", "3"), "Unrecognized arguments: --trafic 3. See `python -m rtcontrol.bridges.carla --help`."),
        (("--connect", "localhost:5555"), "--connect localhost:5555 is no endpoint. Write tcp://ADDRESS:PORT"),
        (("--instruct", " "), "--instruct is empty. Say what to do, or leave it out"),
        (("--carla-host", "a..b"), "'a..b' is no host's name"),
        *(
            ((name, value), f"{name} {value} is out of range. Give ")
            for name, value in (
                ("--hz", "1000"),
                ("--traffic", "-1"),
                ("--tick-s", "0"),
                ("--carla-port", "99999"),
                ("--duration", "nan"),
                ("--connect-timeout", "nan"),
                ("--reconnect-s", "-1"),
            )
        ),
    ],
)
def test_mistakes_in_the_options_are_one_line_before_carla_is_driven(
    given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--carla-port", str(free_port()), *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(said) and told.count("\n") == 1


def test_what_listens_but_does_not_answer_is_no_carla(monkeypatch: pytest.MonkeyPatch) -> None:
    from rtcontrol.bridges.carla import server

    monkeypatch.setattr(server, "ANSWER_S", 0.3)
    monkeypatch.setattr(server, "PROBE_S", 0.3)
    refused = pytest.raises(CarlaBridgeError, match="does not answer as a CARLA server")
    with socket.create_server(("127.0.0.1", 0)) as silent, refused:
        server.connect(WorldOptions(port=silent.getsockname()[1]))


def test_port_of_a_program_that_is_no_carla_does_not_abort_the_bridge() -> None:
    # As rtcontrol's own server does, ZeroMQ speaks first; CARLA's library would end the process over it.
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        ended = bridge("--carla-port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"What listens at 127.0.0.1:{port} is no CARLA server. Give --carla-port")


def test_server_of_another_release_is_told_with_both_versions() -> None:
    from rtcontrol.bridges.carla.server import connect

    with StandIn("--claim-version", "0.9.15") as old:
        with pytest.raises(CarlaBridgeError, match=r"is 0\.9\.15, the client here 0\.9\.16") as told:
            connect(WorldOptions(port=old.port))
        assert "pip install carla==0.9.15" in told.value.remedy


def test_unknown_town_is_told_with_those_there_are(standin: StandIn) -> None:
    ended = bridge("--carla-port", str(standin.port), "--town", "Atlantis")
    assert ended.returncode == 2
    assert ended.stderr == "There is no town Atlantis on the server. It has Standin, Standin2.\n"


def test_unknown_vehicle_is_told_with_some_there_are(standin: StandIn) -> None:
    ended = bridge("--carla-port", str(standin.port), "--vehicle", "vehicle.submarine")
    assert ended.returncode == 2
    assert "no vehicle vehicle.submarine" in ended.stderr and "vehicle.audi.tt" in ended.stderr
    assert "settings restored (asynchronous)" in ended.stderr


def test_no_free_spawn_point_is_told_and_nothing_is_left() -> None:
    with StandIn() as full:
        client = carla.Client("127.0.0.1", full.port)
        world = client.get_world()
        blueprint = world.get_blueprint_library().find("vehicle.audi.tt")
        places = world.get_map().get_spawn_points()
        client.apply_batch_sync([carla.command.SpawnActor(blueprint, place) for place in places], False)
        ended = bridge("--carla-port", str(full.port))
        assert ended.returncode == 2
        assert f"None of the {len(places)} spawn points of Standin is free." in ended.stderr
        assert not world.get_settings().synchronous_mode


@pytest.mark.parametrize("hz, steps", [(16.0, 1), (20.0, 1), (10.0, 2), (15.0, 2), (1.0, 16), (50.0, 1)])
def test_period_is_made_of_steps_that_the_physics_can_take(hz: float, steps: int) -> None:
    options = CarlaBridgeOptions(hz=hz)
    assert options.steps == steps
    assert options.step_s <= 0.0625
    assert options.steps * options.step_s == pytest.approx(1 / hz)


def test_instruction_that_no_server_takes_is_warned_of_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    session = CarlaSession(CarlaBridgeOptions(endpoint="tcp://127.0.0.1:9", instruction="Drive on."), "Town01", "car")
    session.keep()
    for text in ("x" * 70_000, " "):
        session.instruct(text)
    assert caplog.text.count("The instruction was not taken") == 2
    assert session._hello()["instruction"] == "Drive on."
    session.close()
