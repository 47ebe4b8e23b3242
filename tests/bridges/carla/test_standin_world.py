"""The stand-in's world by itself: its lanes, its physics, its lights and what it counts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

import pytest

from rtcontrol.bridges.carla.standin import lights
from rtcontrol.bridges.carla.standin.actors import BRAKE_MPS2, MAX_STEER, WHEELBASE_M, Bicycle, Control
from rtcontrol.bridges.carla.standin.blueprints import description
from rtcontrol.bridges.carla.standin.geometry import Box, overlap
from rtcontrol.bridges.carla.standin.roads import ARMS, network
from rtcontrol.bridges.carla.standin.town import opendrive
from rtcontrol.bridges.carla.standin.wire import GREEN, RED, YELLOW, yaw
from rtcontrol.bridges.carla.standin.world import World

STEP_S = 0.0625


@pytest.fixture
def world() -> World:
    made = World()
    made.settings = replace(made.settings, synchronous=True, fixed_delta_s=STEP_S)
    return made


def spawn(world: World, arm: str, lane: int, before_end_m: float, speed: float = 0.0) -> int:
    """A vehicle in the lane (counted from the left) by which an arm enters the junction; its number."""
    curve = network().arms[arm][lane - 1].curve
    vehicle = world.spawn(description("vehicle.tesla.model3", "ego"), curve.at(curve.length - before_end_m))
    vehicle.body.speed = speed
    return vehicle.number


def bicycle(speed: float = 0.0, **control: float) -> Bicycle:
    body = Bicycle(0.0, 0.0, 0.0)
    body.speed, body.control = speed, Control(**control)  # type: ignore[arg-type]
    return body


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


def test_full_throttle_pushes_less_the_faster_it_goes_and_a_brake_stops_for_good() -> None:
    body, pushes = bicycle(throttle=1.0), []
    for _ in range(320):
        body.step(STEP_S, 7)
        pushes.append(body.acceleration)
    assert pushes[0] == pytest.approx(3.87, abs=0.02)
    assert pushes == sorted(pushes, reverse=True)
    before, start = body.x, body.speed
    body.control = Control(brake=1.0)
    while body.speed > 0.0:
        body.step(STEP_S, 7)
    assert 0.9 * start**2 / (2 * BRAKE_MPS2) < body.x - before < start**2 / (2 * BRAKE_MPS2)
    body.step(STEP_S, 7)
    assert body.speed == 0.0


def test_it_rolls_out_without_throttle_and_drives_backwards_in_reverse() -> None:
    rolling, backwards = bicycle(15.0), bicycle(throttle=0.5, reverse=True)
    rolling.step(STEP_S, 7)
    assert -0.5 < rolling.acceleration < -0.2
    for _ in range(16):
        backwards.step(STEP_S, 7)
    assert backwards.speed < -1.0 and backwards.x < -0.5


def test_steering_right_turns_right_on_the_bicycles_circle_as_far_as_the_grip_allows() -> None:
    slow, fast = bicycle(2.0, steer=0.5, throttle=0.05), bicycle(20.0, steer=1.0)
    for _ in range(16):
        slow.step(STEP_S, 7)
        fast.step(STEP_S, 7)
        assert abs(fast.speed * fast.turn_rate) < 8.5
    assert slow.heading < 0.0 and slow.y < 0.0
    slip = math.atan(0.5 * math.tan(slow.wheels))
    assert slow.turn_rate / slow.speed == pytest.approx(math.cos(slip) * math.tan(slow.wheels) / WHEELBASE_M)
    assert -0.5 * MAX_STEER <= slow.wheels < -0.45 * MAX_STEER


def test_each_arm_has_its_green_in_turn_and_alone() -> None:
    shown = [tuple(lights.state(arm, tenth / 10) for arm in ARMS) for tenth in range(int(lights.CYCLE_S * 10))]
    phases = [(states, len(list(same))) for states, same in groupby(shown)]
    assert [sum(state != RED for state in states) for states, _ in phases] == [1, 1, 0] * len(ARMS)
    for n in range(len(ARMS)):
        assert [(states[n], tenths) for states, tenths in phases[3 * n : 3 * n + 3]] == [
            (GREEN, 100),
            (YELLOW, 30),
            (RED, 20),
        ]


def test_driving_into_another_is_counted_once(world: World) -> None:
    first, second = spawn(world, "W", 2, 100.0), spawn(world, "W", 2, 130.0, speed=12.0)
    for _ in range(80):
        world.step()
    assert [collision["ids"] for collision in world.collisions] == [[first, second]]
    assert world.collisions[0]["closing_kmh"] == pytest.approx(43.0, abs=2.0)
    assert world.collisions[0]["role_names"] == ["ego", "ego"]


def test_running_a_red_light_is_counted_and_green_is_not(world: World) -> None:
    red, green = spawn(world, "S", 1, 40.0, speed=15.0), spawn(world, "E", 1, 40.0, speed=15.0)
    for _ in range(60):
        world.step()
    assert {one.number: one.red_lights_run for one in world.vehicles} == {red: 1, green: 0}


def test_rectangles_touch_only_where_they_overlap() -> None:
    one = Box(0.0, 0.0, 0.3, 2.4, 1.0)
    for x, y, heading, touch in (
        (-2.1 * math.sin(0.3), 2.1 * math.cos(0.3), 0.3, False),
        (-1.9 * math.sin(0.3), 1.9 * math.cos(0.3), 0.3, True),
        (2.0, 2.0, math.pi / 2, True),
        (4.0, 3.5, math.pi / 2, False),
    ):
        assert overlap(one, Box(x, y, heading, 2.4, 1.0)) == touch
