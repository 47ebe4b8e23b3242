"""The driver on the stand-in's bicycle model: lanes, turns, following, stopping, the emergency brake, and observing."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

import carla

from rtcontrol.agents.road import tools as agent
from rtcontrol_client import Standing
from rtcontrol_client.carla.bridge import execute_safe_calls
from rtcontrol_client.carla.driver import STANDSTILL, Driver, observe
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.observing import Body, Scene
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.carla.drives import DT, HALF_LENGTH, KMH, Drive, all_lights, body, country_opendrive, lane_line, road


def moving(lane: int, s: float, speed: Callable[[float], float]) -> Callable[[float], list[Body]]:
    """Return a function that yields another vehicle straight ahead at each step, with a speed that depends on time."""
    route, at = road().route(lane_line(lane), "straight"), [s]

    def now(time: float) -> list[Body]:
        found, start = max(
            ((known, offset) for known, offset in zip(route.lanes, route.offsets, strict=True) if offset <= at[0]),
            key=lambda pair: pair[1],
        )
        placed = body(found, at[0] - start, speed(time), number=2)
        at[0] += speed(time) * DT
        return [placed]

    return now


def lateral(drive: Drive) -> float:
    view = drive.driver.view
    assert view is not None
    return view.lateral_m


def lane(drive: Drive) -> int:
    return observe(drive.scene, drive.driver)["lane"]


def touched(drive: Drive) -> bool:
    """Return whether our vehicle's box overlaps another vehicle's, lengthwise."""
    own = drive.scene.own
    return any(math.dist((own.x, own.y), (it.x, it.y)) < 2 * HALF_LENGTH for it in drive.scene.others)


def test_lane_is_kept_at_60_kmh_over_loop_and_junction() -> None:
    drive = Drive(body(lane_line(2), 5.0, 55 / KMH))
    drive.obey("set_speed", kmh=60)
    offsets, speeds = [], []
    for _ in range(round(80 / DT)):
        drive.step()
        offsets.append(abs(lateral(drive)))
        speeds.append(drive.scene.own.speed * KMH)
    offsets.sort()
    assert offsets[int(0.99 * len(offsets))] < 0.3
    assert speeds[-1] == pytest.approx(60.0, abs=0.5) and max(speeds) < 61.0
    counts = drive.driver.counts
    assert counts.distance_m == pytest.approx(80 * 60 / KMH, rel=0.02)
    assert counts.top_kmh == pytest.approx(max(speeds), abs=0.1)
    assert counts.emergencies == 0


@pytest.mark.parametrize("kmh", [10, 90])
@pytest.mark.parametrize(("start", "direction"), [(1, "right"), (3, "left")])
def test_lane_change_ends_in_the_centre_of_the_other_lane(start: int, direction: str, kmh: int) -> None:
    drive = Drive(body(lane_line(start), 150.0, kmh / KMH))
    drive.obey("set_speed", kmh=kmh)
    drive.run(0.5)
    side = 1 if direction == "right" else -1
    assert drive.obey("change_lane", direction=direction) is None
    assert drive.driver.shift == side
    lanes, overshoot = [], 0.0
    assert drive.run(6.0, until=lambda: lanes.append(lane(drive)) or drive.driver.shift == 0)  # type: ignore[func-returns-value]
    assert lanes == sorted(lanes, reverse=side < 0) and set(lanes) == {start, start + side}
    assert abs(lateral(drive)) < 0.4
    for _ in range(round(4 / DT)):
        drive.step()
        overshoot = max(overshoot, side * lateral(drive))
    assert overshoot < 0.5 and abs(lateral(drive)) < 0.1
    assert lane(drive) == start + side and drive.driver.counts.lane_changes == 1


def test_refused_lane_change_gives_a_reason() -> None:
    edge = Drive(body(lane_line(1), 150.0, 10.0))
    assert edge.obey("change_lane", direction="left") == "there is no lane to the left"
    near = Drive(body(lane_line(2), lane_line(2).length - 15.0, 10.0))
    assert near.obey("change_lane", direction="left") == "too close to a junction"
    inside = Drive(body(lane_line(2).after[0], 10.0, 10.0))
    assert inside.obey("change_lane", direction="left") == "too close to a junction"
    beside = Drive(body(lane_line(2), 150.0, 10.0), moving(3, 152.0, lambda time: 10.0))
    assert beside.obey("change_lane", direction="right") == "another vehicle is next to us"
    assert beside.obey("change_lane", direction="left") is None
    fast = Drive(body(lane_line(2), 150.0, 10.0), moving(3, 140.0, lambda time: 20.0))
    assert fast.obey("change_lane", direction="right") == "another vehicle is next to us"
    slow = Drive(body(lane_line(2), 150.0, 16.0), moving(1, 158.0, lambda time: 12.0))
    assert slow.obey("change_lane", direction="left") == "another vehicle is next to us"
    for drive in (edge, near, inside, beside, fast, slow):
        assert drive.driver.shift in (0, -1)


@pytest.mark.parametrize(
    ("start", "turn", "arrives"),
    [(1, "left", 1), (3, "right", 3), (2, "left", 2)],
)
@pytest.mark.parametrize("kmh", [20, 60])
def test_turn_is_taken_if_the_lane_allows_and_then_cleared(start: int, turn: str, arrives: int, kmh: int) -> None:
    known = lane_line(start)
    drive = Drive(body(known, known.length - 110.0, kmh / KMH))
    drive.obey("set_speed", kmh=kmh)
    drive.obey("turn", at_next_junction=turn)
    offsets, inside = [], []

    def behind() -> bool:
        offsets.append(abs(lateral(drive)))
        seen = observe(drive.scene, drive.driver)
        if seen["junction_m"] == 0:
            inside.append(seen)
        return bool(inside) and seen["junction_m"] is None

    assert drive.run(40.0, until=behind)
    assert max(offsets) < 0.4
    assert all(seen["turn"] == turn for seen in inside)
    assert observe(drive.scene, drive.driver)["turn"] == "straight"
    assert lane(drive) == arrives


@pytest.mark.parametrize(("lane", "turn", "needed"), [(3, "right", 85), (1, "left", 77)])
def test_turn_called_too_late_is_refused_and_logged(
    lane: int, turn: str, needed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The needed distance follows docs/clients.md: from 80 km/h to the corner's speed at 3 m/s2, plus 0.5 s and 2 m."""
    known = lane_line(lane)
    late = Drive(body(known, known.length - 10.0, 80 / KMH))
    late.obey("set_speed", kmh=80)
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        for _ in range(3):  # a model repeats its call
            assert late.obey("turn", at_next_junction=turn) == (
                f"too late to turn {turn}: {needed} m are needed at 80 km/h, 10 m are left"
            )
    (told,) = caplog.messages
    assert told.startswith(f"call refused: too late to turn {turn}: {needed} m")
    assert observe(late.scene, late.driver)["turn"] == "straight"
    in_time = Drive(body(known, known.length - needed - 1.0, 80 / KMH))
    assert in_time.obey("turn", at_next_junction=turn) is None
    # Repeating the chosen turn is accepted, however near the junction is.
    slow = Drive(body(known, known.length - 40.0, 30 / KMH))
    assert slow.obey("turn", at_next_junction=turn) is None
    slow.bicycle.speed = 80 / KMH
    slow.step()
    assert slow.obey("turn", at_next_junction=turn) is None


def test_stop_from_60_kmh_brings_the_car_to_rest() -> None:
    drive = Drive(body(lane_line(2), 50.0, 60 / KMH))
    drive.obey("stop")
    before = drive.driver.counts.distance_m
    assert drive.run(9.0, until=lambda: drive.scene.own.speed < 0.01)
    assert drive.driver.counts.distance_m - before == pytest.approx((60 / KMH) ** 2 / 6.0, rel=0.15)
    stood = drive.scene.own
    drive.run(5.0)
    assert math.dist((stood.x, stood.y), (drive.scene.own.x, drive.scene.own.y)) < 0.01
    assert drive.control.throttle == 0.0 and drive.control.hand_brake
    drive.obey("set_speed", kmh=30)
    drive.run(8.0)
    assert drive.scene.own.speed * KMH == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize("gap", [10, 20, 40])
def test_follow_keeps_the_gap_behind_a_car_at_40_kmh(gap: int) -> None:
    drive = Drive(body(lane_line(2), 30.0, 60 / KMH), moving(2, 120.0, lambda time: 40 / KMH))
    drive.obey("follow", gap=gap)
    drive.run(25.0)
    for _ in range(round(10 / DT)):
        drive.step()
        seen = observe(drive.scene, drive.driver)
        assert seen["ahead_m"] == pytest.approx(gap, abs=2.0)
        assert seen["ahead_kmh"] == pytest.approx(40.0, abs=0.5)
    assert drive.driver.counts.emergencies == 0


@pytest.mark.parametrize("kmh", [30, 60, 90])
def test_emergency_brake_avoids_a_stopped_car(kmh: int) -> None:
    drive = Drive(body(lane_line(2), 30.0, kmh / KMH), moving(2, 250.0, lambda time: 0.0))
    drive.obey("set_speed", kmh=kmh)
    drive.run(30.0)
    assert not touched(drive) and drive.scene.own.speed < 0.1
    assert drive.driver.counts.emergencies >= 1
    assert observe(drive.scene, drive.driver)["ahead_m"] > 0.3


@pytest.mark.parametrize("behind", [6.0, 7.0, 8.0])
def test_lane_change_avoids_a_car_that_comes_next_to_us(behind: float) -> None:
    # The other car accelerates when we start to change lanes, and ignores us.
    drive = Drive(body(lane_line(2), 150.0, 12.0), moving(1, 150.0 - behind, lambda time: min(12.0 + 6.0 * time, 20.0)))
    drive.obey("set_speed", kmh=40)
    assert drive.obey("change_lane", direction="left") is None
    nearest = math.inf
    for _ in range(round(8 / DT)):
        drive.step()
        (other,) = drive.scene.others
        own = drive.scene.own
        s, aside = lane_line(2).search(own.x, own.y)
        at, lateral_ = lane_line(2).search(other.x, other.y)
        if abs(s - at) < 2 * HALF_LENGTH:
            nearest = min(nearest, abs(aside - lateral_))
    assert nearest > 2 * 0.95 and drive.driver.counts.lane_changes == 0 and lane(drive) == 2


def test_scene_with_nan_makes_the_driver_brake() -> None:
    good = body(lane_line(2), 50.0, 10.0)
    driver = Driver(road(), DT)
    driver.obey("set_speed", {"kmh": 60})
    driver.step(Scene(good))
    for field in ("x", "y", "z", "yaw_deg", "vx", "vy"):
        for bad in (math.nan, math.inf):
            assert driver.step(Scene(good._replace(**{field: bad}))) == STANDSTILL
    others = [good._replace(number=2, x=math.nan), good._replace(number=3, vx=math.inf)]
    told = driver.step(Scene(good, others, limit_kmh=math.nan))
    assert math.isfinite(told.throttle) and told.throttle > 0


def test_invalid_calls_are_refused_and_keep_the_mode() -> None:
    drive = Drive(body(lane_line(2), 50.0, 10.0))
    drive.obey("set_speed", kmh=50)
    calls = [
        ("fly", {}), ("set_speed", {}), ("set_speed", {"kmh": "fast"}), ("set_speed", {"kmh": math.nan}),
        ("set_speed", {"kmh": -10}), ("follow", {"gap": math.inf}), ("brake", {"level": None}),
        ("turn", {"at_next_junction": "back"}), ("change_lane", {"direction": 1}),
    ]  # fmt: skip
    for name, arguments in calls:
        assert drive.driver.obey(name, arguments) is not None, name
    assert (drive.driver.intent.mode, drive.driver.intent.kmh) == ("speed", 50.0)


def test_all_safe_calls_are_executed_and_a_refused_one_stops() -> None:
    drive = Drive(body(lane_line(1), 5.0, 20 / KMH))
    brake, turn = FunctionCall(name="brake", arguments={"level": 40}), FunctionCall(name="turn", arguments={})
    turn.arguments["at_next_junction"] = "left"
    intent = drive.driver.intent
    execute_safe_calls(drive.driver, Standing(brake, "safe", more=(turn,)))
    assert (intent.mode, intent.level, intent.turn) == ("brake", 40, "left")
    execute_safe_calls(drive.driver, Standing(turn, "safe", more=(FunctionCall(name="fly"),)))
    assert intent.mode == "stop"
    execute_safe_calls(drive.driver, Standing(brake, "safe"))
    execute_safe_calls(drive.driver, Standing(None, "safe"))
    assert intent.mode == "stop"


# Observations equal plain geometry along the map's waypoints; and a town's lanes.


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
    words = agent.parse_observation(agent.observe(data))
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
