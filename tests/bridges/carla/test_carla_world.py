"""The server as the bridge finds it, and the vehicle as CARLA tells of it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol_client.carla import journal
from rtcontrol_client.carla.journal import Journal, UndoRecord
from rtcontrol_client.carla.options import STANDIN, CarlaBridgeError, WorldOptions
from tests.bridges.carla.standin_process import StandIn

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from rtcontrol_client.carla import server  # noqa: E402
from rtcontrol_client.carla.world import CarlaWorld  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(state=tmp_path_factory.mktemp("standin") / "state.json") as made:
        yield made


def world(port: int, **options: Any) -> CarlaWorld:
    return CarlaWorld(WorldOptions(port=port, **options), Journal(journal.place("127.0.0.1", port), "127.0.0.1", port))


def synchronous(port: int) -> Any:
    """A client that makes the server synchronous, as one that died may have left it."""
    other = carla.Client("127.0.0.1", port).get_world()
    settings = other.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
    other.apply_settings(settings)
    return other


@contextlib.contextmanager
def ticked_by(other: Any) -> Iterator[None]:
    """Somebody lets the server go on."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.02):
            other.tick(2.0)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield
    finally:
        stop.set()
        ticking.join()


def test_server_that_another_client_ticks_is_left_alone(standin: StandIn) -> None:
    mine = world(standin.port)
    with ticked_by(synchronous(standin.port)):
        with pytest.raises(CarlaBridgeError, match="Another client ticks the CARLA server"):
            mine.open()
        mine.close()
    state = standin.state()
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (True, 0.05)
    assert state["alive"] == []


def test_town_is_loaded_and_driven_in_and_the_settings_are_those_found(standin: StandIn) -> None:
    before = carla.Client("127.0.0.1", standin.port).get_world().id
    mine = world(standin.port, town="Standin2")
    mine.open()
    assert (mine.town, mine.what) == ("Standin2", STANDIN)
    assert mine.scene().own.number == mine.ego.id
    mine.close()
    again = world(standin.port, town="Standin")
    again.open()
    again.close()
    state = standin.state()
    assert state["alive"] == [] and state["settings"]["synchronous"] is False
    assert carla.Client("127.0.0.1", standin.port).get_world().id == before + 2


def test_town_is_not_loaded_under_a_client_that_ticks(standin: StandIn) -> None:
    other = synchronous(standin.port)
    episode = other.id
    mine = world(standin.port, town="Standin2")
    with ticked_by(other):
        with pytest.raises(CarlaBridgeError, match="Another client ticks the CARLA server"):
            mine.open()
        mine.close()
    assert carla.Client("127.0.0.1", standin.port).get_world().id == episode


def test_server_that_was_left_standing_still_is_taken_and_left_running(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    synchronous(standin.port)
    mine = world(standin.port)
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        mine.open()
    assert "left synchronous" in caplog.text
    frame = mine.frame
    mine.tick()
    assert mine.frame == frame + 1
    assert mine.scene().own.number == mine.ego.id
    mine.close()
    state = standin.state()
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (False, None)
    assert state["alive"] == []


def test_settings_of_a_world_that_another_client_loaded_and_ticks_are_left_alone(standin: StandIn) -> None:
    other = synchronous(standin.port)
    left = UndoRecord("127.0.0.1", standin.port, episode=other.id + 1, settings={"synchronous_mode": False})
    client = carla.Client("127.0.0.1", standin.port)
    with ticked_by(other):
        assert "left alone" in server.undo(client, client.get_world(), left)[-1]
    assert standin.state()["settings"]["synchronous"] is True
    assert server.undo(client, client.get_world(), left)[-1] == "settings restored (asynchronous)"
    assert standin.state()["settings"]["synchronous"] is False


CURVE, CAR = [(0, 1.0), (120, 0.7)], [(150, -80), (150, 80), (-140, -80), (-140, 80)]
MEASURED = {"wheelbase_m": 2.9, "max_steer_deg": 70.0}


@pytest.mark.parametrize(
    "wheels, curve, figures",
    [
        (CAR, CURVE, {**MEASURED, "steering_curve": CURVE}),
        (CAR, [], MEASURED),
        ([(1, 0)] * 4, [], {}),
        ([(50, 0), (-50, 0)], [], {}),
    ],
)
def test_vehicles_own_figures_are_taken_where_they_can_be_right(wheels: Any, curve: Any, figures: Any) -> None:
    points = [SimpleNamespace(x=x, y=y) for x, y in wheels]
    told = SimpleNamespace(
        wheels=[SimpleNamespace(position=at, max_steer_angle=70.0 if at.x > 0 else 0.0) for at in points],
        steering_curve=[SimpleNamespace(x=x, y=y) for x, y in curve],
    )
    mine = world(1)
    mine.ego = SimpleNamespace(get_physics_control=lambda: told)
    assert mine.figures() == figures
