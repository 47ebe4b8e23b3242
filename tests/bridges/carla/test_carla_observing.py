"""What the driver is told, against plain geometry: every distance measured along the map's own waypoints."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

from rtcontrol.agents.road import tools as agent  # noqa: E402
from rtcontrol.bridges.carla.driver import Driver, observe  # noqa: E402
from rtcontrol.bridges.carla.neighbours import Body, LaneOccupancy  # noqa: E402
from rtcontrol.bridges.carla.observing import Scene  # noqa: E402
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, all_lights, body, lane_line, road  # noqa: E402

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
