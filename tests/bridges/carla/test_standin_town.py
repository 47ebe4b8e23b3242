"""The stand-in's town as CARLA's own map reads it."""

from __future__ import annotations

import random

import pytest

from tests.bridges.carla.standin.roads import ARMS, LANES, WIDTH_M
from tests.bridges.carla.standin.town import opendrive

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")


@pytest.fixture(scope="module")
def town() -> carla.Map:
    return carla.Map("standin", opendrive())


@pytest.mark.parametrize("way", ["next", "previous"])
def test_a_drive_of_20_km_with_random_turns_never_ends(town: carla.Map, way: str) -> None:
    dice, forks = random.Random(7), set()
    for lane in range(1, LANES + 1):
        waypoint = town.get_waypoint(carla.Location(100.0, WIDTH_M * (lane - 0.5), 0.0))
        for _ in range(10_000):
            choices = getattr(waypoint, way)(2.0)
            assert choices, f"a dead end on road {waypoint.road_id}, lane {waypoint.lane_id}"
            chosen = dice.choice(choices)
            # Metres of the reference line, which a bend's inner and outer lanes are off by a tenth.
            assert 1.75 < chosen.transform.location.distance(waypoint.transform.location) < 2.25
            forks.add(len(choices))
            waypoint = chosen
    assert forks == {1, 2}


@pytest.mark.parametrize("arm", ARMS)
def test_each_lane_of_each_arm_offers_its_movements(town: carla.Map, arm: str) -> None:
    turns = {1: [0, 90], 2: [0], 3: [-90, 0]}
    entering = [one for one, after in town.get_topology() if not one.is_junction and after.is_junction]
    road = ARMS[arm][0]
    found = {}
    for waypoint in entering:
        if waypoint.road_id != road:
            continue
        at_stop = waypoint.next_until_lane_end(1.0)[-1]
        bends = [at_stop.transform.rotation.yaw - after.transform.rotation.yaw for after in at_stop.next(50.0)]
        found[abs(waypoint.lane_id)] = sorted({round(bend + 180) % 360 - 180 for bend in bends})
    assert found == turns


def test_lanes_stand_beside_each_other_and_may_be_changed(town: carla.Map) -> None:
    seen = 0
    for waypoint in town.generate_waypoints(5.0):
        lane, right = abs(waypoint.lane_id), waypoint.get_right_lane()
        if waypoint.is_junction:
            assert waypoint.lane_change == carla.LaneChange.NONE
            continue
        seen += 1
        assert waypoint.lane_width == WIDTH_M
        assert (right is None) == (lane == LANES)
        if right is not None:
            assert right.lane_id * waypoint.lane_id > 0
            assert right.transform.location.distance(waypoint.transform.location) == pytest.approx(WIDTH_M, abs=0.01)
        left_allowed = bool(waypoint.lane_change & carla.LaneChange.Left)
        right_allowed = bool(waypoint.lane_change & carla.LaneChange.Right)
        assert (left_allowed, right_allowed) == (lane > 1, lane < LANES)
    assert seen > 2000


def test_every_arm_has_a_light_that_is_seen_from_its_lanes_only(town: carla.Map) -> None:
    for arm, (road, begins, _) in ARMS.items():
        lane = 1 if begins else -1
        waypoint = town.get_waypoint_xodr(road, lane, 16.0 if begins else 560.0)
        lights = waypoint.get_landmarks_of_type(100.0, "1000001")
        assert {light.name for light in lights} == {f"light {arm}"}
        assert not town.get_waypoint_xodr(road, -lane, 16.0 if begins else 560.0).get_landmarks(100.0)
