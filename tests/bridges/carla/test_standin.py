"""The stand-in against CARLA's unmodified client, and its world by itself: lanes, physics, lights, what it counts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rtcontrol_client.carla.standin.roads import network
from rtcontrol_client.carla.standin.town import opendrive
from rtcontrol_client.carla.standin.wire import yaw
from tests.bridges.carla.standin_process import StandIn

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")


def test_it_does_not_outlive_who_started_it_and_writes_its_state(tmp_path: Path) -> None:
    with StandIn(state=tmp_path / "state.json") as started:
        assert started.process.stdin is not None
        started.process.stdin.close()
        started.process.stdin = None
        assert started.process.wait(5.0) == 0
    assert '"what": "the CARLA stand-in, not CARLA"' in (tmp_path / "state.json").read_text()


# The stand-in's world by itself: its lanes, its physics, its lights and what it counts.


def test_its_lanes_are_the_lanes_of_the_map() -> None:
    carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")
    town = carla.Map("standin", opendrive())
    for lane in network().lanes.values():
        for s in (1.0, 100.0, 200.0, 400.0, lane.length - 1.0):
            x, y, heading = lane.curve.at(s)
            waypoint = town.get_waypoint(carla.Location(x, -y, 0.0))
            place = waypoint.transform.location
            assert (waypoint.road_id, waypoint.lane_id) == (lane.road, lane.number)
            east, north = place.x - x, -place.y - y
            assert abs(north * math.cos(heading) - east * math.sin(heading)) < 0.01
            # Along an arc the map finds the nearest place less exactly.
            assert math.hypot(east, north) < 0.5
            assert math.remainder(waypoint.transform.rotation.yaw - yaw(heading), 360.0) == pytest.approx(0.0, abs=0.1)
