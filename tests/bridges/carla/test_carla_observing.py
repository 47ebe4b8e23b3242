"""What the driver is told, against plain geometry measured along the map's own waypoints; and the lanes of a town."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

import carla

from rtcontrol.agents.road import tools as agent
from rtcontrol_client.carla.driver import Driver, observe
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.neighbours import Body, LaneOccupancy
from rtcontrol_client.carla.observing import Scene
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Drive, all_lights, body, country_opendrive, lane_line, road

SIGHT_M, EVERY_M = 150.0, 0.5
SIDES = ("left_", "", "right_")


def seen(own: Body, others: list[Body], *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    driver = Driver(road(), DT)
    scene = Scene(own, others, 60.0, all_lights("green"))
    driver.look(Scene(own, others, 60.0, all_lights("green")))
    for name, arguments in calls:
        assert driver.obey(name, arguments) is None
    data = observe(road(), scene, driver)
    # It is an observation of the agent, and what its text rounds off is little.
    words = agent.read_back(agent.observe(data))
    assert words["lane"] == data["lane"] and words["lanes"] == data["lanes"]
    return data


def walked(x: float, y: float, way: str) -> list[tuple[float, float, float, float]]:
    """(metres from here, x, y, yaw) along a lane by the map alone, straight over junctions."""
    here = road().map.get_waypoint(carla.Location(x, y, 0.0))
    line, metres = [(0.0, here)], 0.0
    while metres < SIGHT_M + 20.0:
        found = getattr(here, way)(EVERY_M)
        yaw = here.transform.rotation.yaw
        found.sort(key=lambda w: abs(math.remainder(w.transform.rotation.yaw - yaw, 360.0)))
        metres += found[0].transform.location.distance(here.transform.location)
        here = found[0]
        line.append((metres, here))
    return [
        (m if way == "next" else -m, w.transform.location.x, w.transform.location.y, w.transform.rotation.yaw)
        for m, w in line
    ]


def expected(own: Body, others: list[Body], lane: int) -> dict[str, tuple[float, float]]:
    """The nearest in each direction of the own lane and those beside it, by brute force."""
    here = road().map.get_waypoint(carla.Location(own.x, own.y, 0.0))
    found: dict[str, tuple[float, float]] = {}
    for name, start in zip(SIDES, (here.get_left_lane(), here, here.get_right_lane()), strict=True):
        if (name == "left_" and lane == 1) or (name == "right_" and lane == 3):
            continue
        at = start.transform.location
        line = walked(at.x, at.y, "previous") + walked(at.x, at.y, "next")
        for other in others:
            away, metres, yaw = min((math.dist((x, y), (other.x, other.y)), m, yaw) for m, x, y, yaw in line)
            if away > 1.7:
                continue
            speed = other.vx * math.cos(math.radians(yaw)) + other.vy * math.sin(math.radians(yaw))
            gap = max(abs(metres) - 2 * HALF_LENGTH, 0.0)
            which = f"{name}ahead" if metres >= 0 else f"{name}behind"
            if which not in found or gap < found[which][0]:
                found[which] = gap, speed * KMH
    return found


def test_gaps_and_speeds_agree_with_brute_force_on_random_scenes() -> None:
    rng = random.Random(7)
    loops = [known for known in road().lanes() if not known.junction]
    told = 0
    for _ in range(12):
        known = rng.choice(loops)
        # All of what is in sight lies on the loop.
        before_junction = known.after[0].junction
        s = rng.uniform(20.0, 380.0) if before_junction else rng.uniform(200.0, known.length - 20.0)
        own = body(known, s, 12.0, rng.uniform(-0.5, 0.5))
        others = []
        for number in range(2, 26):
            lane = rng.choice([it for it in (known, known.left, known.right, *known.after, *known.before) if it])
            if not lane.junction:
                place = min(max(s + rng.uniform(-170.0, 170.0), 0.0), lane.length)
                others.append(body(lane, place, rng.uniform(0, 20), rng.uniform(-1.0, 1.0), number))
        data = seen(own, others)
        assert (data["lane"], data["lanes"]) == (known.index, 3)
        wanted = expected(own, others, known.index)
        for side in SIDES:
            for end in ("ahead", "behind"):
                name = f"{side}{end}"
                gap, speed = wanted.get(name, (SIGHT_M, 0.0))
                if abs(gap - SIGHT_M) < 1.5 and name not in wanted:
                    assert data.get(f"{name}_m", SIGHT_M) > SIGHT_M - 1.5
                elif gap < SIGHT_M - 1.5:
                    told += 1
                    assert data[f"{name}_m"] == pytest.approx(gap, abs=0.8), name
                    assert data[f"{name}_kmh"] == pytest.approx(speed, abs=0.6), name
    assert told > 40


def test_on_a_straight_the_gap_is_from_bumper_to_bumper() -> None:
    known = lane_line(2)
    s = known.length - 120.0
    data = seen(body(known, s, 10.0), [body(known, s + 34.6, 5.0, number=2), body(known, s - 20.0, 7.0, number=3)])
    assert data["ahead_m"] == pytest.approx(30.0, abs=0.01) and data["ahead_kmh"] == pytest.approx(18.0, abs=0.01)
    assert data["behind_m"] == pytest.approx(15.4, abs=0.01) and data["behind_kmh"] == pytest.approx(25.2, abs=0.01)
    assert data["junction_m"] == pytest.approx(120.0 - HALF_LENGTH, abs=0.01)
    assert not [name for name in data if name.startswith(("left_", "right_"))]


def test_who_comes_from_behind_is_seen_over_the_lanes_start_and_the_junction() -> None:
    known = lane_line(2)
    earlier = known.before[0]
    data = seen(body(known, 30.0, 10.0), [body(earlier, earlier.length - 20.0, 12.0, number=2)])
    assert data["behind_m"] == pytest.approx(50.0 - 2 * HALF_LENGTH, abs=0.05)
    out = road().route(lane_line(1), "left").lanes[2]
    turning, following = (
        body(out.before[0], 5.0, 4.0, number=2),
        body(lane_line(1), lane_line(1).length - 9.0, 6.0, number=3),
    )
    assert seen(body(out, 10.0, 10.0), [turning, following])["behind_m"] < 60.0
    lone = seen(body(out, 10.0, 10.0), [following])
    ways = {round(10.0 + before.length + 9.0 - 2 * HALF_LENGTH, 2) for before in out.before}
    assert round(lone["behind_m"], 2) in ways


def test_speeds_are_along_the_lane() -> None:
    known = lane_line(2)
    slipping = body(known, 330.0, 10.0, number=2)
    tx, ty = known.at(330.0)[2:]
    slipping = slipping._replace(vx=slipping.vx - 5.0 * ty, vy=slipping.vy + 5.0 * tx)
    assert seen(body(known, 300.0, 10.0), [slipping])["ahead_kmh"] == pytest.approx(36.0, abs=0.01)


@pytest.mark.parametrize(("distance", "end"), [(2.0, "ahead"), (0.0, "ahead"), (-2.0, "behind"), (4.5, "ahead")])
def test_who_is_beside_us_has_a_gap_of_zero(distance: float, end: str) -> None:
    known = lane_line(2)
    assert known.right is not None
    x, y, _, _ = known.at(known.length - 100.0)
    s, _ = known.right.search(x, y)
    data = seen(body(known, known.length - 100.0, 10.0), [body(known.right, s + distance + 1e-6, 8.0, number=2)])
    assert data[f"right_{end}_m"] == 0.0 and data[f"right_{end}_kmh"] == pytest.approx(28.8, abs=0.1)


def test_who_is_beyond_150_m_or_off_the_road_is_not_told() -> None:
    known = lane_line(3)
    own = body(known, 100.0, 10.0)
    far = [body(known, 100.0 + 155.0, number=2), body(known, 130.0, lateral=3.0, number=3)]
    data = seen(own, far)
    assert not [name for name in data if name.endswith("_kmh") and "speed" not in name and "limit" not in name]


def test_behind_the_junction_who_is_seen_follows_from_the_turn() -> None:
    known = lane_line(1)
    own = body(known, known.length - 40.0, 10.0)
    left, straight = (road().route(known, turn).lanes[2] for turn in ("left", "straight"))  # type: ignore[arg-type]
    others = [body(left, 20.0, 3.0, number=2), body(straight, 30.0, 6.0, number=3)]
    ahead = seen(own, others)
    assert ahead["ahead_kmh"] == pytest.approx(21.6, abs=0.1)
    assert ahead["ahead_m"] == pytest.approx(40.0 + 48.0 + 30.0 - 2 * HALF_LENGTH, abs=0.1)
    aside = seen(own, others, ("turn", {"at_next_junction": "left"}))
    assert aside["ahead_kmh"] == pytest.approx(10.8, abs=0.1) and aside["turn"] == "left"
    assert aside["ahead_m"] == pytest.approx(40.0 + 25.75 * math.pi / 2 + 20.0 - 2 * HALF_LENGTH, abs=0.2)


def test_inside_the_junction_who_is_on_our_way_counts_wherever_it_is_bound_for() -> None:
    known = lane_line(1)
    straight, left = (road().route(known, turn).lanes[1] for turn in ("straight", "left"))  # type: ignore[arg-type]
    own = body(known, known.length - 10.0, 5.0)
    # Its tail is still on the way straight on.
    turning = body(left, 6.0, 4.0, number=2)
    assert seen(own, [turning])["ahead_m"] == pytest.approx(16.0 - 2 * HALF_LENGTH, abs=0.5)
    # Driving across the way it is no leader; standing across it, it is in the way.
    x, y, tx, ty = straight.at(24.0)
    across = Body(3, x, y, 0.0, math.degrees(math.atan2(tx, -ty)), -ty * 8.0, tx * 8.0, HALF_LENGTH, 0.95)
    assert "ahead_m" not in seen(own, [across])
    stuck = across._replace(vx=0.0, vy=0.0)
    data = seen(own, [stuck])
    assert data["ahead_m"] == pytest.approx(10.0 + 24.0 - HALF_LENGTH - 0.95, abs=0.1) and data["ahead_kmh"] == 0.0


def test_in_a_turn_there_is_one_lane_and_straight_over_as_many_as_before() -> None:
    left, straight = (road().route(lane_line(1), turn).lanes[1] for turn in ("left", "straight"))  # type: ignore[arg-type]
    turning, over = seen(body(left, 10.0, 5.0), []), seen(body(straight, 10.0, 5.0), [])
    assert (turning["lane"], turning["lanes"], turning["junction_m"]) == (1, 1, 0.0)
    assert (over["lane"], over["lanes"], over["junction_m"]) == (1, 3, 0.0)
    assert over["light"] == turning["light"] == "none"  # it is behind us
    assert straight.right is not None
    beside = seen(body(straight, 10.0, 5.0), [body(straight.right, 25.0, 5.0, number=2)])
    assert beside["right_ahead_m"] == pytest.approx(15.0 - 2 * HALF_LENGTH, abs=0.1)


def test_limit_and_speed_are_told_as_they_are() -> None:
    data = seen(body(lane_line(2), 50.0, 13.5), [])
    assert data["speed_kmh"] == pytest.approx(48.6) and data["limit_kmh"] == 60.0
    assert data["shift"] == 0 and data["junction_m"] is None
    assert agent.observe(data) == (
        "speed 49 limit 60 lane 2 3 shift 0 ahead 150 0 behind 150 0 l 150 0 150 0 r 150 0 150 0 "
        "light none junction 150 way onward"
    )


def test_occupancy_followed_for_a_while_is_as_one_looked_up_anew() -> None:
    rng = random.Random(3)
    occupancy, known = LaneOccupancy(road()), lane_line(2)
    places = {number: (rng.choice(road().lanes()), rng.uniform(0.0, 20.0)) for number in range(40)}
    for step in range(60):
        bodies = []
        for number, (lane, s) in places.items():
            if s > lane.length:
                lane, s = lane.after[0], s - lane.length
            places[number] = lane, s + 1.0
            bodies.append(body(lane, s, 16.0, 0.3 * math.sin(step / 9), number))
        occupancy.update(bodies)
        if step % 10 == 0:
            fresh = LaneOccupancy(road())
            fresh.update(bodies)
            route = road().route(known, "straight")
            one, two = ([it[:5] for it in c.ahead(route, 300.0, -1)] for c in (occupancy, fresh))
            assert [pytest.approx(it, abs=0.01) for it in sorted(one)] == sorted(two)


# The town's lanes as lanes: what is counted, what leads where, and how exactly.


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
        (1, "left", "left"), (1, "straight", "straight"), (1, "right", "straight"), (2, "left", "straight"),
        (2, "right", "straight"), (3, "right", "right"), (3, "left", "straight"),
    ],
)  # fmt: skip
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
    country = TownRoad(carla.Map("country", country_opendrive()))
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
    country = TownRoad(carla.Map("country", country_opendrive()))
    known = next(it for it in country.lanes() if it.key == (7, 0, -2))
    drive = Drive(body(known, 20.0, 15.0), on=country)
    drive.obey("set_speed", kmh=60)
    drive.run(12.0)
    assert drive.driver.obey("change_lane", {"direction": "right"}) is None  # where the third lane has begun
    drive.run(25.0)
    assert drive.scene.own.speed < 0.3 and 285.0 < drive.scene.own.x < 300.0 and drive.driver.counts.emergencies == 0


def test_nothing_of_this_needs_the_wheel_to_be_imported() -> None:
    names = ("driver", "lanes", "observing", "control")
    imports = "; ".join(f"import rtcontrol_client.carla.{name}" for name in names)
    code = f"import sys; sys.modules['carla'] = None; {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
