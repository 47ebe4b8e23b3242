"""Compare the driver's observation with plain geometry along the map's waypoints; and test a town's lanes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

import carla

from rtcontrol.agents.road import tools as agent
from rtcontrol_client.carla.driver import Driver, observe
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.observing import Body, Scene
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Drive, all_lights, body, country_opendrive, lane_line, road

SIGHT_M, EVERY_M = 150.0, 0.5
SIDES = ("left_", "", "right_")


def seen(own: Body, others: list[Body], *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    driver = Driver(road(), DT)
    scene = Scene(own, others, 60.0, all_lights("green"))
    driver.look(Scene(own, others, 60.0, all_lights("green")))
    for name, arguments in calls:
        assert driver.obey(name, arguments) is None
    data = observe(scene, driver)
    # The observation is valid for the agent, and its text loses little by rounding.
    words = agent.read_back(agent.observe(data))
    assert words["lane"] == data["lane"] and words["lanes"] == data["lanes"]
    return data


def walked(x: float, y: float, way: str) -> list[tuple[float, float, float, float]]:
    """Return (metres from here, x, y, yaw) ahead or back by the map alone, straight over junctions."""
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
    """Return the nearest vehicle of each direction in our lane and its neighbours, by brute force."""
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
        # Everything in sight is on the loop.
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


def test_chosen_turn_decides_which_cars_are_seen_beyond_the_junction() -> None:
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


def test_car_in_our_way_inside_the_junction_counts_whatever_its_route() -> None:
    known = lane_line(1)
    straight, left = (road().route(known, turn).lanes[1] for turn in ("straight", "left"))  # type: ignore[arg-type]
    own = body(known, known.length - 10.0, 5.0)
    # The other vehicle's tail is still in the way straight on.
    turning = body(left, 6.0, 4.0, number=2)
    assert seen(own, [turning])["ahead_m"] == pytest.approx(16.0 - 2 * HALF_LENGTH, abs=0.5)
    # A vehicle that drives across our way is not a leader; one that stands across it blocks us.
    x, y, tx, ty = straight.at(24.0)
    across = Body(3, x, y, 0.0, math.degrees(math.atan2(tx, -ty)), -ty * 8.0, tx * 8.0, HALF_LENGTH, 0.95)
    assert "ahead_m" not in seen(own, [across])
    stuck = across._replace(vx=0.0, vy=0.0)
    data = seen(own, [stuck])
    assert data["ahead_m"] == pytest.approx(10.0 + 24.0 - HALF_LENGTH - 0.95, abs=0.1) and data["ahead_kmh"] == 0.0


# The lanes of a town: their numbers, their connections, and their accuracy.


def test_sections_shoulders_and_unlinked_lanes_are_read() -> None:
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


def test_car_stops_at_the_end_of_the_road() -> None:
    country = TownRoad(carla.Map("country", country_opendrive()))
    known = next(it for it in country.lanes() if it.key == (7, 0, -2))
    drive = Drive(body(known, 20.0, 15.0), on=country)
    drive.obey("set_speed", kmh=60)
    drive.run(12.0)
    assert drive.driver.obey("change_lane", {"direction": "right"}) is None  # the third lane has started here
    drive.run(25.0)
    assert drive.scene.own.speed < 0.3 and 285.0 < drive.scene.own.x < 300.0 and drive.driver.counts.emergencies == 0
