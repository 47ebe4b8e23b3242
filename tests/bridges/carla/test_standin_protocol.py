"""The stand-in against CARLA's unmodified client. Each client is a process of its own, as its library may abort."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.carla.standin.process import ROOT, StandIn
from tests.bridges.carla.standin.town import opendrive

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

STEP_S = 0.0625
MODULE = "tests.bridges.carla.test_standin_protocol"


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(state=tmp_path / "state.json") as started:
        yield started


def start(does: Callable[[int], Any], port: int) -> subprocess.Popen[str]:
    """A client's process that calls one of this file's functions and prints what it returns."""
    program = f"import json; from {MODULE} import {does.__name__} as does; print(json.dumps(does({port})), flush=True)"
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def client(does: Callable[[int], Any], port: int) -> Any:
    with start(does, port) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, f"{does.__name__} ended with {process.returncode}"
    return json.loads(said.splitlines()[-1])


def connect(port: int, timeout_s: float = 5.0) -> Any:
    import carla

    found = carla.Client("127.0.0.1", port)
    found.set_timeout(timeout_s)
    return found


def lockstep(world: Any) -> None:
    settings = world.get_settings()
    settings.synchronous_mode = True
    settings.fixed_delta_seconds = STEP_S
    world.apply_settings(settings)
    seen(world)


def seen(world: Any) -> None:
    """Until the client has heard of the world: it may be asked before."""
    end = time.monotonic() + 5.0
    while world.get_snapshot().frame == 0 and time.monotonic() < end:
        time.sleep(0.005)


def put(world: Any, point: int = 0, role: str = "ego") -> Any:
    blueprint = world.get_blueprint_library().find("vehicle.tesla.model3")
    blueprint.set_attribute("role_name", role)
    return world.spawn_actor(blueprint, world.get_map().get_spawn_points()[point])


def looks_around(port: int) -> dict[str, Any]:
    asked = connect(port)
    world = asked.get_world()
    town = world.get_map()
    settings = world.get_settings()
    library = world.get_blueprint_library()
    return {
        "version": [asked.get_server_version(), asked.get_client_version()],
        "maps": asked.get_available_maps(),
        "name": town.name,
        "text": town.to_opendrive(),
        "points": [[point.location.x, point.location.y] for point in town.get_spawn_points()],
        "on_road": [town.get_waypoint(p.location, project_to_road=False) is not None for p in town.get_spawn_points()],
        "settings": [settings.synchronous_mode, settings.fixed_delta_seconds, settings.max_substeps],
        "blueprints": sorted(blueprint.id for blueprint in library.filter("vehicle.*")),
        "wheels": [blueprint.get_attribute("number_of_wheels").as_int() for blueprint in library],
        "weather": world.get_weather().sun_altitude_angle,
    }


def test_a_client_finds_the_town_the_blueprints_and_the_settings(standin: StandIn) -> None:
    found = client(looks_around, standin.port)
    assert found["version"] == ["0.9.16", "0.9.16"]
    assert found["name"] == "Standin/Maps/Standin"
    assert found["maps"] == ["/Game/Standin/Maps/Standin", "/Game/Standin/Maps/Standin2"]
    assert found["text"] == opendrive()
    assert len(found["points"]) > 300
    assert all(found["on_road"])
    assert found["settings"] == [False, None, 10]
    assert "vehicle.tesla.model3" in found["blueprints"]
    assert set(found["wheels"]) == {4}
    assert found["weather"] == 45.0


def spawns_and_destroys(port: int) -> dict[str, Any]:
    world = connect(port).get_world()
    lockstep(world)
    vehicle = put(world)
    library = world.get_blueprint_library()
    where = world.get_map().get_spawn_points()
    taken = world.try_spawn_actor(library.find("vehicle.audi.tt"), where[0])
    free = world.try_spawn_actor(library.find("vehicle.audi.tt"), where[5])
    world.tick(5.0)
    alive = {actor.id: actor.attributes.get("role_name") for actor in world.get_actors().filter("vehicle.*")}
    box = vehicle.bounding_box
    steering = vehicle.get_physics_control()
    destroyed = [free.destroy()]
    world.tick(5.0)
    return {
        "taken": taken is None,
        "ids": [vehicle.id, free.id],
        "alive": alive,
        "extent": [box.extent.x, box.extent.y, box.location.z],
        "destroyed": destroyed,
        "left": [actor.id for actor in world.get_actors().filter("vehicle.*")],
        "in_snapshot": world.get_snapshot().find(free.id) is not None,
        "steer": [wheel.max_steer_angle for wheel in steering.wheels],
        "base": abs(steering.wheels[0].position.x - steering.wheels[2].position.x) / 100,
    }


def test_vehicles_are_spawned_told_and_destroyed(standin: StandIn) -> None:
    found = client(spawns_and_destroys, standin.port)
    ego, other = found["ids"]
    assert found["taken"]
    assert found["alive"] == {str(ego): "ego", str(other): "autopilot"}
    assert found["extent"] == pytest.approx([2.4, 1.08, 0.74])
    assert found["destroyed"] == [True]
    assert found["left"] == [ego]
    assert not found["in_snapshot"]
    assert found["steer"] == [70.0, 70.0, 0.0, 0.0]
    assert found["base"] == pytest.approx(2.85)
    # What was not destroyed outlives its client, and so do its settings: the state file tells on it.
    state = standin.state()
    assert [(one["id"], one["role_name"]) for one in state["alive"]] == [(ego, "ego")]
    assert [one["id"] for one in state["destroyed"]] == [other]
    assert (state["settings"]["synchronous"], state["settings"]["fixed_delta_s"]) == (True, STEP_S)


def ticks(port: int) -> dict[str, Any]:
    world = connect(port).get_world()
    lockstep(world)
    first = world.get_snapshot()
    time.sleep(0.3)
    still = world.get_snapshot().frame == first.frame
    frames = [world.tick(5.0) for _ in range(160)]
    last = world.get_snapshot()
    settings = world.get_settings()
    return {
        "still": still,
        "frames": [first.frame, *frames, last.frame],
        "passed": last.timestamp.elapsed_seconds - first.timestamp.elapsed_seconds,
        "delta": last.timestamp.delta_seconds,
        "settings": [settings.synchronous_mode, settings.fixed_delta_seconds, settings.substepping],
    }


def test_synchronous_time_passes_by_ticks_alone(standin: StandIn) -> None:
    found = client(ticks, standin.port)
    first = found["frames"][0]
    assert found["still"]
    assert found["frames"] == [*range(first, first + 161), first + 160]
    assert found["passed"] == pytest.approx(10.0)
    assert found["delta"] == STEP_S
    assert found["settings"] == [True, STEP_S, True]


def drives(port: int) -> dict[str, Any]:
    import carla

    world = connect(port).get_world()
    lockstep(world)
    vehicle = put(world)
    world.tick(5.0)
    start_at = vehicle.get_location()
    speeds = [vehicle.get_velocity().length()]
    vehicle.apply_control(carla.VehicleControl(throttle=0.5, steer=0.1))
    for _ in range(32):
        world.tick(5.0)
        speeds.append(vehicle.get_velocity().length())
    told = vehicle.get_control()
    spun, pushed = vehicle.get_angular_velocity().z, vehicle.get_acceleration()
    yaw = vehicle.get_transform().rotation.yaw
    vehicle.apply_ackermann_control(carla.VehicleAckermannControl(speed=3.0))
    for _ in range(96):
        world.tick(5.0)
    return {
        "speeds": speeds,
        "control": [told.throttle, told.steer, told.brake, told.gear],
        "yaw": yaw,
        "spun": spun,
        "pushed": [pushed.x, pushed.y],
        "moved": vehicle.get_location().distance(start_at),
        "ackermann": vehicle.get_velocity().length(),
        "limit": vehicle.get_speed_limit(),
    }


def test_a_vehicle_obeys_its_controls_from_the_next_tick_on(standin: StandIn) -> None:
    found = client(drives, standin.port)
    assert found["speeds"][0] == 0.0
    assert found["speeds"][1] > 0.05
    assert found["speeds"] == sorted(found["speeds"])
    assert found["control"] == pytest.approx([0.5, 0.1, 0.0, 1])
    assert found["yaw"] > 1.0
    assert found["spun"] > 1.0
    assert found["pushed"][1] > 0.0
    assert found["ackermann"] == pytest.approx(3.0, abs=0.1)
    assert found["limit"] == 60.0


def batches(port: int) -> dict[str, Any]:
    import carla

    asked = connect(port)
    world = asked.get_world()
    lockstep(world)
    point = world.get_map().get_spawn_points()
    blueprint = world.get_blueprint_library().find("vehicle.nissan.micra")
    commands = [
        carla.command.SpawnActor(blueprint, point[3]),
        carla.command.SpawnActor(blueprint, point[3]),
        carla.command.SpawnActor(blueprint, point[9]),
    ]
    before = world.get_snapshot().frame
    first = asked.apply_batch_sync(commands, True)
    one, other = first[0].actor_id, first[2].actor_id
    ticked = world.get_snapshot().frame - before
    second = asked.apply_batch_sync(
        [
            carla.command.ApplyVehicleControl(one, carla.VehicleControl(throttle=1.0)),
            carla.command.ApplyTargetVelocity(other, carla.Vector3D(1.0, 0.0, 0.0)),
            carla.command.SetAutopilot(one, False),
            carla.command.DestroyActor(12345),
        ],
        False,
    )
    world.tick(5.0)
    moving = world.get_actor(one).get_velocity().length()
    third = asked.apply_batch_sync([carla.command.DestroyActor(one), carla.command.DestroyActor(other)], True)
    return {
        "first": [answer.error for answer in first],
        "ticked": ticked,
        "second": [answer.error for answer in second],
        "moving": moving,
        "third": [[answer.actor_id, answer.error] for answer in third],
        "ids": [one, other],
        "left": len(world.get_actors().filter("vehicle.*")),
    }


def test_a_batch_answers_each_of_its_commands(standin: StandIn) -> None:
    found = client(batches, standin.port)
    assert found["first"] == ["", "Spawn failed because of collision at spawn position", ""]
    assert found["ticked"] == 1
    assert found["second"][:2] == ["", ""]
    assert "does not know command 16" in found["second"][2]
    assert "12345" in found["second"][3]
    assert found["moving"] > 0.1
    assert found["third"] == [[found["ids"][0], ""], [found["ids"][1], ""]]
    assert found["left"] == 0


def watches(port: int) -> dict[str, Any]:
    world = connect(port, 20.0).get_world()
    print("ready", flush=True)
    seen: list[int] = []
    while len(seen) < 20 or not len(world.get_actors().filter("vehicle.*")):
        seen.append(world.wait_for_tick(20.0).frame)
    return {"frames": seen, "vehicles": [actor.id for actor in world.get_actors().filter("vehicle.*")]}


def test_a_second_client_sees_what_the_first_one_does(standin: StandIn) -> None:
    with start(watches, standin.port) as watcher:
        assert watcher.stdout
        assert watcher.stdout.readline() == "ready\n"
        drove = client(drives, standin.port)
        said, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    found = json.loads(said.splitlines()[-1])
    assert found["frames"] == sorted(set(found["frames"]))
    assert found["vehicles"] == [one["id"] for one in standin.state()["alive"]]
    assert drove["moved"] > 1.0


def runs_free(port: int) -> dict[str, Any]:
    import carla

    world = connect(port).get_world()
    vehicle = put(world)
    vehicle.apply_control(carla.VehicleControl(throttle=1.0))
    seen = [world.wait_for_tick(5.0) for _ in range(10)]
    settings = world.get_settings()
    settings.fixed_delta_seconds = STEP_S
    world.apply_settings(settings)
    world.wait_for_tick(5.0)
    fixed = [world.wait_for_tick(5.0) for _ in range(40)]
    return {
        "frames": [snapshot.frame for snapshot in seen],
        "elapsed": [snapshot.timestamp.elapsed_seconds for snapshot in seen],
        "passed": fixed[-1].timestamp.elapsed_seconds - fixed[0].timestamp.elapsed_seconds,
        "wall": fixed[-1].timestamp.platform_timestamp - fixed[0].timestamp.platform_timestamp,
        "fixed": [snapshot.timestamp.delta_seconds for snapshot in fixed],
        "moving": vehicle.get_velocity().length(),
        "tick": world.tick(5.0) - fixed[-1].frame,
    }


def test_asynchronous_time_passes_by_itself_as_the_wall_clock_does(standin: StandIn) -> None:
    found = client(runs_free, standin.port)
    # On a busy machine a client may sleep through a frame.
    assert found["frames"] == sorted(set(found["frames"]))
    assert found["elapsed"] == sorted(set(found["elapsed"]))
    # Not as fast as it can (a thousand steps a second); half, as a late first step makes the rest look quick.
    assert found["passed"] < 2.0 * found["wall"]
    assert set(found["fixed"]) == {STEP_S}
    assert found["moving"] > 0.5
    assert found["tick"] >= 1


def reloads(port: int) -> dict[str, Any]:
    asked = connect(port)
    world = asked.get_world()
    put(world)
    episode = world.id
    try:
        asked.load_world("Town10HD")
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    world = asked.load_world("Standin")
    loaded, there = world.id, asked.reload_world()
    seen(there)
    return {
        "refused": refused,
        "episodes": [episode, loaded, there.id],
        "vehicles": len(there.get_actors().filter("vehicle.*")),
    }


def test_its_own_towns_can_be_loaded_and_no_other(standin: StandIn) -> None:
    found = client(reloads, standin.port)
    assert found["refused"] == "map not found"
    assert found["episodes"] == [1, 2, 3]
    assert found["vehicles"] == 0


def waits_at_a_light(port: int) -> dict[str, Any]:
    """The west arm, whose trigger boxes end 1.5 m before the line and beyond it; the car's front is so far from it."""
    import carla

    world = connect(port).get_world()
    lockstep(world)
    vehicle = put(world)
    half = vehicle.bounding_box.extent.x
    found: dict[str, Any] = {"at": {}}
    for left in (45.0, 5.5, 1.0, -1.0 - 2 * half):
        vehicle.set_transform(carla.Transform(carla.Location(x=5.25, y=24.0 + left + half), carla.Rotation(yaw=-90.0)))
        world.tick(5.0)
        found["at"][f"{left:.1f}"] = vehicle.is_at_traffic_light(), str(vehicle.get_traffic_light_state())
        if vehicle.is_at_traffic_light():
            light = vehicle.get_traffic_light()
    found["sign"], found["number"] = light.get_opendrive_id(), light.id
    states: dict[str, int] = {}
    for _ in range(int(60 / STEP_S)):
        world.tick(5.0)
        states[str(light.get_state())] = states.get(str(light.get_state()), 0) + 1
    return found | {"states": states}


def test_a_light_is_told_to_whoever_is_in_its_trigger_box_and_is_green_to_all_others(standin: StandIn) -> None:
    """carla#2268, carla#9445; CARLA/Traffic/TrafficLightComponent.cpp, OnBeginOverlapTriggerBox and OnEndOverlap..."""
    found = client(waits_at_a_light, standin.port)
    away = [False, "Green"]
    assert found["at"] == {"45.0": away, "5.5": away, "1.0": [True, "Red"], f"{-1 - 2 * 2.4:.1f}": away}
    assert found["states"] == {"Green": 160, "Yellow": 48, "Red": 752}
    # The sign's number is the map's, not the actor's.
    assert found["sign"] == "4" != str(found["number"])


def looks_for_lights(port: int) -> dict[str, Any]:
    import carla

    world = connect(port).get_world()
    town = world.get_map()
    found: dict[str, Any] = {"stops": {}, "affected": {}, "boxes": {}}
    for light in world.get_actors().filter("traffic.traffic_light*"):
        sign, box = light.get_opendrive_id(), light.trigger_volume
        found["stops"][sign] = sorted([w.road_id, w.lane_id, round(w.s, 1)] for w in light.get_stop_waypoints())
        found["affected"][sign] = sorted([w.road_id, w.lane_id] for w in light.get_affected_lane_waypoints())
        at = light.get_transform()
        middle = at.transform(carla.Location(box.location.x, box.location.y, 0.0))
        turned = round(box.rotation.yaw + at.rotation.yaw) % 360
        found["boxes"][sign] = [*(round(v, 2) for v in (middle.x, middle.y, box.extent.x, box.extent.y)), turned]
    ahead = town.get_waypoint_xodr(1, 1, 40.0)
    found["ahead"] = [light.get_opendrive_id() for light in world.get_traffic_lights_from_waypoint(ahead, 100.0)]
    found["junction"] = len(world.get_traffic_lights_in_junction(100))
    found["poles"] = [mark.waypoint is None for mark in town.get_all_landmarks_of_type("1000001")]
    return found


def test_lights_are_found_as_the_unmodified_client_finds_them(standin: StandIn) -> None:
    """The client computes all of it: LibCarla/source/carla/client/TrafficLight.cpp and World.cpp (carla#4121)."""
    found = client(looks_for_lights, standin.port)
    # The box around all trigger boxes lies along the world's axes (CombineBoxes, BoundingBoxCalculator.cpp), ...
    assert found["boxes"]["2"] == [-5.25, -27.0, 4.38, 1.5, 0] and found["boxes"]["1"] == [24.0, -5.25, 1.5, 4.38, 0]
    # ... the client goes along the *actor's* axis by its x: on an arm that lies along x it misses the outer lanes, and
    # what it finds lies in the junction already.
    assert found["stops"]["2"] == [[2, -3, 577.1], [2, -2, 577.1], [2, -1, 577.1]]
    assert [road for road, _, _ in found["stops"]["1"]] == [101]
    # Starts of lanes within the junction.
    assert found["affected"]["1"] == [[101, -3], [101, -2], [101, -1], [102, -1], [103, -1]]
    assert (found["ahead"], found["junction"]) == (["1"], 4)
    assert all(found["poles"])


def asks_the_unknown(port: int) -> list[str]:
    import carla

    world = connect(port).get_world()
    vehicle = put(world)
    errors = []
    for call in (
        lambda: vehicle.get_wheel_steer_angle(carla.VehicleWheelLocation.FL_Wheel),
        lambda: world.spawn_actor(world.get_blueprint_library()[0], carla.Transform(), attach_to=vehicle),
    ):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    vehicle.apply_control(carla.VehicleControl())
    world.wait_for_tick(5.0)
    return errors


def test_what_it_does_not_know_is_an_error_and_not_its_end(standin: StandIn) -> None:
    rpc, attached = client(asks_the_unknown, standin.port)
    assert "get_wheel_steer_angle" in rpc
    assert "no sensors" in attached
    assert standin.process.poll() is None
