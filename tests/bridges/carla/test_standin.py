"""The stand-in against CARLA's unmodified client, and its world by itself: lanes, physics, lights, what it counts."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.carla.standin import lights
from rtcontrol_client.carla.standin.actors import BRAKE_MPS2, MAX_STEER, WHEELBASE_M, Bicycle, Control
from rtcontrol_client.carla.standin.roads import ARMS, Box, network, overlap
from rtcontrol_client.carla.standin.town import opendrive
from rtcontrol_client.carla.standin.wire import GREEN, RED, YELLOW, yaw
from tests.bridges.carla.standin_process import StandIn

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

import carla

STEP_S = 0.0625


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(state=tmp_path_factory.mktemp("standin") / "state.json") as started:
        yield started


@pytest.fixture
def client(standin: StandIn) -> Any:
    made = carla.Client("127.0.0.1", standin.port)
    made.set_timeout(5.0)
    return made


@pytest.fixture
def world(client: Any) -> Iterator[Any]:
    """In lockstep, from its beginning."""
    settings = client.get_world().get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, STEP_S
    client.get_world().apply_settings(settings)
    made = client.reload_world(False)
    end = time.monotonic() + 5.0
    while made.get_snapshot().frame == 0 and time.monotonic() < end:  # it may be asked before it has heard
        time.sleep(0.005)
    yield made
    client.reload_world(True)


def put(world: Any, point: int = 0) -> Any:
    blueprint = world.get_blueprint_library().find("vehicle.tesla.model3")
    return world.spawn_actor(blueprint, world.get_map().get_spawn_points()[point])


def test_client_finds_the_town_and_the_blueprints(client: Any) -> None:
    town = client.get_world().get_map()
    assert (town.name, town.to_opendrive()) == ("Standin/Maps/Standin", opendrive())
    points = town.get_spawn_points()
    assert len(points) > 300
    assert all(town.get_waypoint(point.location, project_to_road=False) is not None for point in points)
    assert {b.get_attribute("number_of_wheels").as_int() for b in client.get_world().get_blueprint_library()} == {4}
    with pytest.raises(RuntimeError, match="map not found"):
        client.load_world("Town10HD")


def test_synchronous_time_passes_by_ticks_alone_and_a_vehicle_obeys_from_the_next_one_on(world: Any) -> None:
    vehicle = put(world)
    first = world.get_snapshot()
    time.sleep(0.1)
    assert world.get_snapshot().frame == first.frame
    vehicle.apply_control(carla.VehicleControl(throttle=0.5, steer=0.1))
    frames, speeds = [], [vehicle.get_velocity().length()]
    for _ in range(32):
        frames.append(world.tick(5.0))
        speeds.append(vehicle.get_velocity().length())
    last = world.get_snapshot().timestamp
    assert frames == [*range(first.frame + 1, first.frame + 33)]
    assert (last.elapsed_seconds - first.timestamp.elapsed_seconds, last.delta_seconds) == (2.0, STEP_S)
    assert speeds[0] == 0.0 and speeds[1] > 0.05 and speeds == sorted(speeds)
    control = vehicle.get_control()
    assert [control.throttle, control.steer, control.brake, control.gear] == pytest.approx([0.5, 0.1, 0.0, 1])
    assert vehicle.get_transform().rotation.yaw > 1.0 and vehicle.get_angular_velocity().z > 1.0
    assert vehicle.get_acceleration().y > 0.0 and vehicle.get_speed_limit() == 60.0


def test_vehicle_is_told_with_its_size_and_wheels_and_a_batch_answers_each_of_its_commands(
    client: Any, world: Any
) -> None:
    vehicle = put(world)
    extent, wheels = vehicle.bounding_box.extent, vehicle.get_physics_control().wheels
    assert [extent.x, extent.y, extent.z] == pytest.approx([2.4, 1.08, 0.74])
    assert [wheel.max_steer_angle for wheel in wheels] == [70.0, 70.0, 0.0, 0.0]
    assert abs(wheels[0].position.x - wheels[2].position.x) / 100 == pytest.approx(2.85)
    blueprint, points = world.get_blueprint_library().find("vehicle.audi.tt"), world.get_map().get_spawn_points()
    assert world.try_spawn_actor(blueprint, points[0]) is None
    frame = world.get_snapshot().frame
    free, taken = client.apply_batch_sync([carla.command.SpawnActor(blueprint, points[n]) for n in (9, 0)], True)
    assert (free.error, taken.error) == ("", "Spawn failed because of collision at spawn position")
    assert world.get_snapshot().frame == frame + 1
    commands = [carla.command.SetAutopilot(free.actor_id, False), carla.command.DestroyActor(12345)]
    commands.append(carla.command.DestroyActor(free.actor_id))
    unknown, none, destroyed = client.apply_batch_sync(commands, True)
    assert "does not know command 16" in unknown.error and "12345" in none.error and destroyed.error == ""
    assert [actor.id for actor in world.get_actors().filter("vehicle.*")] == [vehicle.id]
    assert world.get_snapshot().find(free.actor_id) is None


def test_asynchronous_time_passes_by_itself_as_the_wall_clock_does(client: Any) -> None:
    world = client.get_world()
    settings = world.get_settings()
    settings.fixed_delta_seconds = STEP_S
    world.apply_settings(settings)
    world.wait_for_tick(5.0)
    seen = [world.wait_for_tick(5.0) for _ in range(20)]
    # On a busy machine a client may sleep through a frame.
    assert [one.frame for one in seen] == sorted({one.frame for one in seen})
    assert {one.timestamp.delta_seconds for one in seen} == {STEP_S}
    # Not as fast as it can (a thousand steps a second); half, as a late first step makes the rest look quick.
    first, last = seen[0].timestamp, seen[-1].timestamp
    passed = last.elapsed_seconds - first.elapsed_seconds
    assert passed < 2.0 * (last.platform_timestamp - first.platform_timestamp)
    assert world.tick(5.0) > seen[-1].frame


def test_what_it_does_not_know_is_an_error_and_not_its_end(standin: StandIn, world: Any) -> None:
    vehicle = put(world)
    with pytest.raises(RuntimeError, match="get_wheel_steer_angle"):
        vehicle.get_wheel_steer_angle(carla.VehicleWheelLocation.FL_Wheel)
    with pytest.raises(RuntimeError, match="spawn_actor_with_parent"):
        world.spawn_actor(world.get_blueprint_library()[0], carla.Transform(), attach_to=vehicle)
    with socket.create_connection(("127.0.0.1", standin.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(5.0)
        assert stranger.recv(1) == b""
    assert world.tick(5.0) > 0


def test_it_does_not_outlive_who_started_it_and_writes_its_state(tmp_path: Path) -> None:
    with StandIn(state=tmp_path / "state.json") as started:
        assert started.process.stdin is not None
        started.process.stdin.close()
        started.process.stdin = None
        assert started.process.wait(5.0) == 0
    assert '"what": "the CARLA stand-in, not CARLA"' in (tmp_path / "state.json").read_text()


# The stand-in's world by itself: its lanes, its physics, its lights and what it counts.


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


def test_rectangles_touch_only_where_they_overlap() -> None:
    one = Box(0.0, 0.0, 0.3, 2.4, 1.0)
    for x, y, heading, touch in (
        (-2.1 * math.sin(0.3), 2.1 * math.cos(0.3), 0.3, False),
        (-1.9 * math.sin(0.3), 1.9 * math.cos(0.3), 0.3, True),
        (2.0, 2.0, math.pi / 2, True),
        (4.0, 3.5, math.pi / 2, False),
    ):
        assert overlap(one, Box(x, y, heading, 2.4, 1.0)) == touch
