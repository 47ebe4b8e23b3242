"""The town's lanes as lanes: what is counted, what leads where, and how exactly."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from rtcontrol.bridges.carla.lanes import TownRoad  # noqa: E402
from tests.bridges.carla.country_road import opendrive  # noqa: E402
from tests.bridges.carla.drives import Drive, body, lane_line, road  # noqa: E402


def test_lanes_are_counted_from_the_left() -> None:
    loops = [known for known in road().lanes() if not known.junction]
    assert {(known.index, known.count) for known in loops} == {(1, 3), (2, 3), (3, 3)}
    for known in loops:
        assert (known.left is None) == (known.index == 1)
        assert (known.right is None) == (known.index == 3)
        if known.right is not None:
            assert known.right.left is known and known.right.index == known.index + 1
            # Beside each other: the width apart, the right one on the right.
            x, y, _, _ = known.right.at(known.right.length / 2)
            assert known.project(x, y, known.length / 2)[1] == pytest.approx(3.5, abs=0.05)


def test_no_lane_ends() -> None:
    for known in road().lanes():
        assert known.after and known.before
        for after in known.after:
            assert known in after.before
            end, start = known.at(known.length), after.at(0.0)
            assert math.dist(end[:2], start[:2]) < 0.02
            assert end[2] * start[2] + end[3] * start[3] > 0.999


def test_lines_follow_the_maps_waypoints() -> None:
    lanes = {known.key: known for known in road().lanes()}
    seen = set()
    for waypoint in road().map.generate_waypoints(7.0):
        known = lanes[waypoint.road_id, waypoint.section_id, waypoint.lane_id]
        seen.add(known.key)
        at = waypoint.transform
        along, lateral = known.search(at.location.x, at.location.y)
        assert abs(lateral) < 0.02 and -0.01 <= along <= known.length + 0.01
        tx, ty = known.at(along)[2:]
        yaw = math.radians(at.rotation.yaw)
        assert tx * math.cos(yaw) + ty * math.sin(yaw) > 0.998
        assert known.junction == waypoint.is_junction
    assert seen == set(lanes)


def test_a_place_is_found_with_its_offset_and_direction() -> None:
    rng = random.Random(2)
    for known in road().lanes():
        for _ in range(5):
            s, offset = rng.uniform(2.0, known.length - 2.0), rng.uniform(-1.2, 1.2)
            x, y, tx, ty = known.at(s)
            yaw = math.degrees(math.atan2(ty, tx))
            found = road().place(x - ty * offset, y + tx * offset, 0.0, yaw)
            assert found is not None
            if known.junction:  # lanes begin and end on one another there: the lane or one that lies upon it
                assert abs(found.lateral_m) < 1.8
                continue
            assert found.lane is known
            assert found.s == pytest.approx(s, abs=0.05)
            assert found.lateral_m == pytest.approx(offset, abs=0.02)
            assert found.lane.count == 3


@pytest.mark.parametrize(
    ("lane", "turn", "taken"),
    [
        (1, "left", "left"),
        (1, "straight", "straight"),
        (1, "right", "straight"),
        (2, "left", "straight"),
        (2, "right", "straight"),
        (3, "right", "right"),
        (3, "left", "straight"),
    ],
)
def test_a_lane_that_does_not_allow_the_turn_leads_straight_on(lane: int, turn: str, taken: str) -> None:
    known = lane_line(lane)
    route = road().route(known, turn)  # type: ignore[arg-type]
    assert route.taken == taken
    assert route.lanes[1].junction and route.lanes[1].way == taken
    assert route.junction_at == pytest.approx(known.length)
    # Without a jump, and far enough.
    for n in range(int(route.length)):
        assert math.dist(route.at(n)[:2], route.at(n + 1)[:2]) == pytest.approx(1.0, abs=0.05)
    assert route.length - known.length >= 150.0


@pytest.mark.parametrize(("lane", "turn", "side"), [(1, "left", -1), (3, "right", 1), (2, "straight", 0)])
def test_the_way_bends_to_the_side_of_the_turn(lane: int, turn: str, side: int) -> None:
    known = lane_line(lane)
    route = road().route(known, turn)  # type: ignore[arg-type]
    assert route.taken == turn
    end = route.at(known.length + 70.0)
    x, y, tx, ty = known.at(known.length - 10.0)
    aside = (end[1] - y) * tx - (end[0] - x) * ty
    assert aside * side > 20.0 if side else abs(aside) < 0.1


def test_sections_shoulders_and_lanes_without_a_link_are_read() -> None:
    country = TownRoad(carla.Map("country", opendrive()))
    found = {known.key: (known.index, known.count, [it.key for it in known.after]) for known in country.lanes()}
    assert found == {
        (7, 0, -1): (1, 2, [(7, 1, -1)]),
        (7, 0, -2): (2, 2, [(7, 1, -2)]),
        (7, 1, -1): (1, 3, []),
        (7, 1, -2): (2, 3, []),
        (7, 1, -3): (3, 3, []),
        (7, 1, 1): (1, 1, [(7, 0, 1)]),
        (7, 0, 1): (1, 1, []),
    }
    shoulder = country.place(100.0, 9.0, 0.0)
    assert shoulder is not None and shoulder.lane.key == (7, 0, -2) and shoulder.lateral_m == pytest.approx(3.75)


def test_where_the_road_ends_the_car_stops() -> None:
    country = TownRoad(carla.Map("country", opendrive()))
    known = next(it for it in country.lanes() if it.key == (7, 0, -2))
    drive = Drive(body(known, 20.0, 15.0), on=country)
    drive.obey("set_speed", kmh=60)
    drive.run(12.0)
    assert drive.driver.obey("change_lane", {"direction": "right"}) is None  # where the third lane has begun
    drive.run(25.0)
    assert drive.scene.own.speed < 0.3 and 285.0 < drive.scene.own.x < 300.0 and drive.driver.counts.emergencies == 0


def test_nothing_of_this_needs_the_wheel_to_be_imported() -> None:
    names = ("driver", "traffic", "lanes", "observing", "control")
    imports = "; ".join(f"import rtcontrol.bridges.carla.{name}" for name in names)
    code = f"import sys; sys.modules['carla'] = None; {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
