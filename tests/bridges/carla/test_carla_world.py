"""The state in which the bridge finds a server, the vehicle as CARLA reports it, and the stand-in's world."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.carla import journal
from rtcontrol_client.carla.journal import Journal
from rtcontrol_client.carla.options import CarlaBridgeError, DriveOptions
from rtcontrol_client.carla.world import MOST_FOREIGN, CarlaWorld
from tests.bridges.carla.rig import StandIn

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(state=tmp_path_factory.mktemp("standin") / "state.json") as made:
        yield made


def world(port: int, **options: Any) -> CarlaWorld:
    return CarlaWorld(
        DriveOptions(port=port, **options), Journal(journal.journal_path("127.0.0.1", port), "127.0.0.1", port)
    )


def synchronous(port: int) -> Any:
    """Return a client that has made the server synchronous, as a dead client may have left it."""
    other = carla.Client("127.0.0.1", port).get_world()
    settings = other.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
    other.apply_settings(settings)
    return other


@contextlib.contextmanager
def ticked_by(other: Any) -> Iterator[None]:
    """Let another client tick the server during the block."""
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


def test_server_ticked_by_another_client_is_left_alone(standin: StandIn) -> None:
    mine = world(standin.port)
    with ticked_by(synchronous(standin.port)):
        with pytest.raises(CarlaBridgeError, match="Another client ticks the CARLA server"):
            mine.open()
        mine.close()
    state = standin.state()
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (True, 0.05)
    assert state["alive"] == []


def test_synchronous_server_left_idle_is_taken_over_and_left_running(
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


def test_ticks_of_another_client_during_a_drive_are_noticed(standin: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    mine = world(standin.port)
    mine.open()
    mine.tick()
    other = carla.Client("127.0.0.1", standin.port).get_world()
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        other.tick(2.0)
        mine.tick()
        assert caplog.text.count("Another client ticks the CARLA server") == 1
        for _ in range(MOST_FOREIGN):
            other.tick(2.0)
        with pytest.raises(CarlaBridgeError, match="Another client ticks the CARLA server"):
            mine.tick()
        other.tick(2.0)
        mine.tick()  # so that the car can brake
    mine.close()


# The stand-in alone.


def test_standin_ends_with_its_parent_and_writes_its_state(tmp_path: Path) -> None:
    with StandIn(state=tmp_path / "state.json") as started:
        assert started.process.stdin is not None
        started.process.stdin.close()
        started.process.stdin = None
        assert started.process.wait(5.0) == 0
    assert '"what": "the CARLA stand-in, not CARLA"' in (tmp_path / "state.json").read_text()
