"""The stand-in's world by itself: its lanes, its physics, its traffic, its lights and what it counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bridges.carla.standin import lights
from tests.bridges.carla.standin.blueprints import description
from tests.bridges.carla.standin.collisions import Box, overlap
from tests.bridges.carla.standin.geometry import Pose
from tests.bridges.carla.standin.lanes import Lane, network
from tests.bridges.carla.standin.physics import (
    BRAKE_MPS2,
    MAX_STEER,
    WHEELBASE_M,
    Ackermann,
    Bicycle,
    Control,
)
from tests.bridges.carla.standin.rails import Rail
from tests.bridges.carla.standin.roads import ARMS
from tests.bridges.carla.standin.rpc import Refused
from tests.bridges.carla.standin.town import opendrive
from tests.bridges.carla.standin.wire import GREEN, RED, YELLOW, yaw
from tests.bridges.carla.standin.world import World

STEP_S = 0.0625


def still_world(traffic: int = 0, seed: int = 0) -> World:
    world = World(traffic, seed)
    world.settings = replace(world.settings, synchronous=True, fixed_delta_s=STEP_S)
    return world


def entering(arm: str, number: int = 1) -> Lane:
    """The lane (counted from the left) by which an arm enters the junction."""
    return next(lane for lane in network().loops if lane.arm == arm and abs(lane.number) == number)


def spawn(world: World, lane: Lane, before_end_m: float) -> tuple[int, Bicycle]:
    pose = lane.curve.at(lane.length - before_end_m)
    vehicle = world.spawn(description("vehicle.tesla.model3", "ego"), pose)
    assert isinstance(vehicle.body, Bicycle)
    return vehicle.number, vehicle.body


def test_the_lanes_of_traffic_are_the_lanes_of_the_map() -> None:
    carla = pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")
    town = carla.Map("standin", opendrive())
    for lane in network().loops:
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
    for lane in network().over:
        starts = town.get_waypoint_xodr(lane.road, lane.number, 0.01).transform
        x, y, heading = lane.curve.at(0.0)
        assert math.hypot(starts.location.x - x, starts.location.y + y) < 0.02
        assert math.remainder(starts.rotation.yaw - yaw(heading), 360.0) == pytest.approx(0.0, abs=0.1)


def test_a_lane_is_found_again_from_any_place_on_it() -> None:
    for lane in network().lanes.values():
        for share in (0.01, 0.3, 0.5, 0.99):
            places = network().places(lane.curve.at(share * lane.length))
            assert lane in [place.lane for place in places]
            assert next(place.s for place in places if place.lane is lane) == pytest.approx(share * lane.length)
    assert network().places(Pose(1000.0, 1000.0, 0.0)) == []


def test_full_throttle_pushes_less_the_faster_it_goes_and_a_brake_stops_for_good() -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.control = Control(throttle=1.0)
    pushes = []
    for _ in range(320):
        body.step(STEP_S, 7)
        pushes.append(body.acceleration)
    assert pushes[0] == pytest.approx(3.87, abs=0.02)
    assert pushes == sorted(pushes, reverse=True)
    before = body.x
    start = body.speed
    body.control = Control(brake=1.0)
    while body.speed > 0.0:
        body.step(STEP_S, 7)
    assert 0.9 * start**2 / (2 * BRAKE_MPS2) < body.x - before < start**2 / (2 * BRAKE_MPS2)
    body.step(STEP_S, 7)
    assert body.speed == 0.0


def test_without_throttle_it_rolls_out() -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.speed = 15.0
    body.step(STEP_S, 7)
    assert -0.5 < body.acceleration < -0.2


def test_steering_right_turns_right_on_the_bicycles_circle() -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.speed = 2.0
    body.control = Control(steer=0.5, throttle=0.05)
    for _ in range(16):
        body.step(STEP_S, 7)
    assert body.heading < 0.0
    assert body.y < 0.0
    rate = body.turn_rate / body.speed
    slip = math.atan(0.5 * math.tan(body.wheels))
    assert rate == pytest.approx(math.cos(slip) * math.tan(body.wheels) / WHEELBASE_M)
    assert -0.5 * MAX_STEER <= body.wheels < -0.45 * MAX_STEER


def test_grip_limits_a_bend_at_speed() -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.speed = 20.0
    body.control = Control(steer=1.0)
    for _ in range(16):
        body.step(STEP_S, 7)
        assert abs(body.speed * body.turn_rate) < 8.5


@pytest.mark.parametrize("wish", [3.0, 12.0, -2.0, 0.0])
def test_an_ackermann_command_reaches_its_speed_and_keeps_it(wish: float) -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.speed = 6.0
    body.ackermann = Ackermann(0.1, 0.0, wish, 3.0, 0.0)
    for _ in range(160):
        body.step(STEP_S, 7)
        assert abs(body.acceleration) < 3.5
    assert body.speed == pytest.approx(wish, abs=0.05)
    # To the right, as CARLA has it.
    assert body.wheels == pytest.approx(-0.1, abs=0.001)


def test_reverse_drives_backwards() -> None:
    body = Bicycle(0.0, 0.0, 0.0)
    body.control = Control(throttle=0.5, reverse=True)
    for _ in range(16):
        body.step(STEP_S, 7)
    assert body.speed < -1.0
    assert body.x < -0.5


@pytest.mark.parametrize("arm", ARMS)
def test_each_arm_has_its_green_in_turn_and_alone(arm: str) -> None:
    seen = []
    for tenth in range(int(lights.CYCLE_S * 10)):
        now = tenth / 10
        state = lights.state(arm, now)
        if state != RED:
            assert all(lights.state(other, now) == RED for other in ARMS if other != arm)
        if not seen or seen[-1][0] != state:
            seen.append((state, 0))
        seen[-1] = state, seen[-1][1] + 1
    durations = {state: sum(count for one, count in seen if one == state) for state in (GREEN, YELLOW, RED)}
    assert durations == {GREEN: 100, YELLOW: 30, RED: 470}


@pytest.mark.parametrize(("traffic", "seed"), [(20, 1), (20, 2), (60, 3)])
def test_traffic_of_five_minutes_moves_and_never_collides(traffic: int, seed: int) -> None:
    world = still_world(traffic, seed)
    speeds = turned = 0.0
    roads = set()
    for _ in range(int(300 / STEP_S)):
        world.step()
        speeds += sum(vehicle.body.speed for vehicle in world.vehicles) / traffic
    for vehicle in world.vehicles:
        assert isinstance(vehicle.body, Rail)
        roads.add(vehicle.body.lane.road)
        turned += vehicle.body.turn != "straight"
    assert world.collisions == []
    assert speeds / (300 / STEP_S) * 3.6 > 25.0
    assert len(roads) >= 4


def test_traffic_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def after(seed: int) -> list[tuple[float, float]]:
        world = still_world(10, seed)
        for _ in range(400):
            world.step()
        return [(vehicle.body.x, vehicle.body.y) for vehicle in world.vehicles]

    assert after(5) == after(5) != after(6)


def test_a_new_episode_is_the_first_one_again() -> None:
    world = still_world(20, 2)

    def drive() -> list[tuple[float, float, bool]]:
        for _ in range(800):
            world.step()
        return [(vehicle.body.x, vehicle.body.y, vehicle.light is None) for vehicle in world.vehicles]

    first = drive()
    world.begin()
    assert drive() == first


def test_traffic_does_not_pass_a_red_light() -> None:
    world = still_world(40, 4)
    passed = set()
    before: dict[int, Lane] = {}
    for _ in range(int(200 / STEP_S)):
        world.step()
        for vehicle in world.vehicles:
            assert isinstance(vehicle.body, Rail)
            lane = vehicle.body.lane
            last = before.get(vehicle.number, lane)
            if lane.in_junction and last is not lane and last.arm:
                passed.add(lights.state(last.arm, world.elapsed_s))
            before[vehicle.number] = lane
    # Whoever was too near to stop at yellow may be on the line as it turns red, never later.
    assert GREEN in passed
    assert RED not in passed


def test_traffic_stops_behind_a_client_that_stands_in_its_lane() -> None:
    world = still_world()
    lane = entering("E", 2)
    _, body = spawn(world, lane, 300.0)
    rails = []
    for n, back in enumerate((400.0, 440.0, 480.0)):
        rails.append(Rail(lane, lane.length - back, 2.4, n))
        described = description("vehicle.tesla.model3", "standin-traffic")
        vehicle = world.spawn(described, lane.curve.at(lane.length - back))
        vehicle.body = rails[-1]
    for _ in range(int(60 / STEP_S)):
        world.step()
    assert world.collisions == []
    assert body.speed == 0.0
    assert all(rail.speed < 0.1 for rail in rails)
    assert lane.length - 308.0 < rails[0].s < lane.length - 304.0


def test_driving_into_another_is_counted_once() -> None:
    world = still_world()
    lane = entering("W", 2)
    first, _ = spawn(world, lane, 100.0)
    second, body = spawn(world, lane, 130.0)
    body.speed = 12.0
    for _ in range(80):
        world.step()
    assert [collision["ids"] for collision in world.collisions] == [[first, second]]
    assert world.collisions[0]["closing_kmh"] == pytest.approx(43.0, abs=2.0)
    assert world.collisions[0]["role_names"] == ["ego", "ego"]


def test_spawning_on_another_or_right_before_traffic_is_refused() -> None:
    world = still_world()
    lane = entering("S", 1)
    number, _ = spawn(world, lane, 300.0)
    with pytest.raises(Refused, match="collision at spawn"):
        spawn(world, lane, 302.0)
    spawn(world, lane, 294.0)
    vehicle = world.actors[number]
    rail = Rail(lane, lane.length - 300.0, 2.4, 0)
    rail.speed = 15.0
    vehicle.body = rail  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="collision at spawn"):
        spawn(world, lane, 280.0)


def test_running_a_red_light_is_counted_and_green_is_not() -> None:
    world = still_world()
    number, body = spawn(world, entering("S"), 40.0)
    body.speed = 15.0
    green, other = spawn(world, entering("E"), 40.0)
    other.speed = 15.0
    for _ in range(60):
        world.step()
    told = {one.number: world.told(one) for one in world.vehicles}
    assert told[number]["red_lights_run"] == 1
    assert told[green]["red_lights_run"] == 0


def test_rectangles_touch_only_where_they_overlap() -> None:
    one = Box(0.0, 0.0, 0.3, 2.4, 1.0)
    beside = Box(-2.1 * math.sin(0.3), 2.1 * math.cos(0.3), 0.3, 2.4, 1.0)
    assert not overlap(one, beside)
    assert overlap(one, Box(-1.9 * math.sin(0.3), 1.9 * math.cos(0.3), 0.3, 2.4, 1.0))
    assert overlap(one, Box(2.0, 2.0, math.pi / 2, 2.4, 1.0))
    assert not overlap(one, Box(4.0, 3.5, math.pi / 2, 2.4, 1.0))
