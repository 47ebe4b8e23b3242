"""The stand-in's world: settings, actors and simulation steps."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import Any, TypeVar

from rtcontrol_client.carla.control import MAX_STEER, WHEELBASE_M, Control, steering_share
from rtcontrol_client.carla.standin import town, wire
from rtcontrol_client.carla.standin.town import ARMS, LIMIT_KMH, lanes
from rtcontrol_client.carla.standin.wire import Pose, RequestRefused

STEER_RATE = math.radians(180.0)
PUSH_MPS2 = 4.0
# At high speeds, the power of the engine limits the acceleration below PUSH_MPS2.
POWER_W_PER_KG = 40.0
BRAKE_MPS2 = 8.0
ROLLING_MPS2 = 0.15
DRAG_PER_M = 0.0006
GRIP_MPS2 = 8.0


class Bicycle:
    """A kinematic bicycle model of a vehicle, which drives only forwards."""

    def __init__(self, x: float, y: float, heading: float) -> None:
        self.x, self.y, self.heading = x, y, heading
        self.speed = 0.0
        self.wheels = 0.0
        self.slip = 0.0
        self.control = Control()

    def velocity(self) -> tuple[float, float]:
        direction = self.heading + self.slip
        return self.speed * math.cos(direction), self.speed * math.sin(direction)

    def step(self, delta_s: float, substeps: int) -> None:
        for _ in range(substeps):
            self._substep(delta_s / substeps)

    def _substep(self, delta_s: float) -> None:
        control, speed = self.control, self.speed
        pace = abs(speed)
        # Steering to the right is positive in CARLA and negative in this model.
        wanted = -control.steer * MAX_STEER * steering_share(pace * 3.6)
        self.wheels += min(max(wanted - self.wheels, -STEER_RATE * delta_s), STEER_RATE * delta_s)
        push = control.throttle * min(PUSH_MPS2, POWER_W_PER_KG / max(pace, 0.1))
        speed += push * delta_s
        hold = BRAKE_MPS2 * (1.0 if control.hand_brake else control.brake)
        if pace > 0.0 or push == 0.0:
            hold += ROLLING_MPS2 + DRAG_PER_M * pace * pace
        # Brakes and friction can stop a vehicle, but never drive it backwards.
        self.speed = math.copysign(max(abs(speed) - hold * delta_s, 0.0), speed)
        self.slip = math.atan(0.5 * math.tan(self.wheels))
        curvature = math.cos(self.slip) * math.tan(self.wheels) / WHEELBASE_M
        max_curvature = GRIP_MPS2 / max(self.speed * self.speed, 1.0)
        if abs(curvature) > max_curvature:
            curvature = math.copysign(max_curvature, curvature)
            self.slip = math.asin(min(max(0.5 * WHEELBASE_M * curvature, -1.0), 1.0))
        turn_rate = self.speed * curvature
        direction = self.heading + self.slip + 0.5 * turn_rate * delta_s
        self.x += self.speed * math.cos(direction) * delta_s
        self.y += self.speed * math.sin(direction) * delta_s
        self.heading += turn_rate * delta_s


STRING = 4  # CARLA's number for attributes of the type string
CAR, LIGHT = b"\x0e", b"\x07"  # CARLA's semantic tags of cars and traffic lights
MODEL3, EXTENT = "vehicle.tesla.model3", (2.40, 1.08, 0.74)  # the only blueprint; its half length, width, height (m)


def actor_definitions() -> list[Any]:
    role = ["role_name", STRING, "autopilot", ["autopilot", "scenario", "ego_vehicle"], True, False]
    return [[1, MODEL3, MODEL3.replace(".", ","), [role]]]


def description(type_id: str) -> list[Any]:
    """Return CARLA's description of an actor that the server creates."""
    return [0, type_id, []]


@dataclass(eq=False)
class Actor:
    number: int
    description: list[Any]
    extent: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pose: Pose = field(default=Pose(0.0, 0.0, 0.0))
    tags: bytes = b""

    @property
    def type_id(self) -> str:
        return str(self.description[1])

    @property
    def attributes(self) -> dict[str, str]:
        return {name: text for name, _, text in self.description[2]}

    def box(self) -> list[Any]:
        return [[0.0, 0.0, self.extent[2]], list(self.extent), [0.0, 0.0, 0.0]]

    def write(self) -> list[Any]:
        return [self.number, 0, self.description, self.box(), self.tags, b""]

    def pack(self, elapsed_s: float) -> bytes:
        """Return the actor's bytes in a packet of the stream."""
        return wire.OTHER_ACTOR.pack(*self.where())

    def where(self) -> tuple[float, ...]:
        place = (self.pose.x, -self.pose.y, 0.0, 0.0, wire.yaw(self.pose.heading), 0.0)
        return (self.number, wire.ACTIVE, *place, *(0.0,) * 9)


class TrafficLight(Actor):
    """The traffic light of one arm."""

    def __init__(self, number: int, description: list[Any], arm: str, placed: town.PlacedLight) -> None:
        super().__init__(number, description, pose=placed.pole, tags=LIGHT)
        self.arm, self.placed = arm, placed

    def box(self) -> list[Any]:
        """Return the trigger volume, which CARLA sends in place of a light's size."""
        return self.placed.volume

    def pack(self, elapsed_s: float) -> bytes:
        state = town.light_state(self.arm, elapsed_s)
        since_change_s = 0.0  # the stand-in does not measure this time
        times = town.GREEN_S, town.YELLOW_S, town.CLEAR_S, since_change_s
        return wire.TRAFFIC_LIGHT.pack(*self.where(), self.placed.sign.encode(), *times, 0, False, state)


@dataclass(eq=False)
class Vehicle(Actor):
    """A vehicle that a client spawned and controls."""

    body: Bicycle = None  # type: ignore[assignment]

    def pack(self, elapsed_s: float) -> bytes:
        body, control = self.body, self.body.control
        x, y = body.velocity()
        place = (body.x, -body.y, 0.0, 0.0, wire.yaw(body.heading), 0.0)
        moves = (x, -y, 0.0, *(0.0,) * 6)  # turn rate and acceleration are 0
        pedals, light = (*astuple(control), False, False, int(body.speed > 0.1)), (wire.GREEN, False, 0, 0)
        return wire.VEHICLE.pack(self.number, wire.ACTIVE, *place, *moves, *pedals, LIMIT_KMH, *light)


# Maximum step in seconds that follows the wall clock.
LONGEST_STEP_S = 0.1
SUBSTEP_S = 0.01
SPAWN_EVERY_M = 40.0
FIRST_ACTOR = 24

AnyActor = TypeVar("AnyActor", bound=Actor)


class World:
    """The simulated world; `on_step` is called with the packet of the world's state after each step."""

    def __init__(self, on_step: Callable[[bytes], None] = lambda packet: None) -> None:
        self.on_step = on_step
        self.episode = 0
        self.frame = 0
        self.delta_s = 0.0
        self.settings = wire.Settings()
        self.started_s = self.stepped_s = time.monotonic()
        self.numbers = itertools.count(FIRST_ACTOR)
        self.destroyed_vehicles: list[dict[str, Any]] = []
        self.start_episode()

    def start_episode(self) -> None:
        """Start a new episode with only the spectator and the lights."""
        self.episode += 1
        self.elapsed_s = 0.0
        self.actors: dict[int, Actor] = {}
        self.spectator = self.add(Actor(next(self.numbers), description("spectator")))
        described = description("traffic.traffic_light")
        for arm in ARMS:
            self.add(TrafficLight(next(self.numbers), described, arm, town.generate_light(arm)))

    def add(self, actor: AnyActor) -> AnyActor:
        self.actors[actor.number] = actor
        return actor

    @property
    def vehicles(self) -> list[Vehicle]:
        return [actor for actor in self.actors.values() if isinstance(actor, Vehicle)]

    def spawn_points(self) -> list[Pose]:
        places = ((curve, n) for curve in lanes().values() for n in range(int(curve.length / SPAWN_EVERY_M)))
        return [curve.at(SPAWN_EVERY_M * (n + 0.5)) for curve, n in places]

    def spawn(self, described: list[Any], pose: Pose) -> Vehicle:
        """Create a vehicle for a client. Raises RequestRefused if another vehicle occupies the place."""
        if described[1] != MODEL3:
            raise RequestRefused(f"the CARLA stand-in has no blueprint {described[1]!r}")
        if any(math.dist(pose[:2], (car.body.x, car.body.y)) < 2 * EXTENT[0] for car in self.vehicles):
            raise RequestRefused("Spawn failed because of collision at spawn position")
        return self.add(Vehicle(next(self.numbers), described, EXTENT, tags=CAR, body=Bicycle(*pose)))

    def control(self, number: int, values: list[Any]) -> None:
        actor = self.actors.get(number)
        if not isinstance(actor, Vehicle):
            raise RequestRefused(f"unable to find the actor {number}: actor not found")
        throttle, steer, brake = (
            min(max(value, low), 1.0) for value, low in zip(values[:3], (0.0, -1.0, 0.0), strict=True)
        )
        actor.body.control = Control(throttle, steer, brake, bool(values[3]))

    def destroy(self, number: int) -> bool:
        actor = self.actors.get(number)
        if not isinstance(actor, Vehicle):
            return False
        del self.actors[number]
        self.destroyed_vehicles.append(self.to_dict(actor))
        return True

    def to_dict(self, vehicle: Vehicle) -> dict[str, Any]:
        """Return a vehicle's id, type and role for the state file."""
        role = vehicle.attributes.get("role_name", "")
        return {"id": vehicle.number, "type_id": vehicle.type_id, "role_name": role}

    def step(self) -> int:
        """Make one step; return its frame number."""
        wall_s, self.stepped_s = time.monotonic() - self.stepped_s, time.monotonic()
        delta_s = self.settings.fixed_delta_s or min(max(wall_s, 1e-3), LONGEST_STEP_S)
        self.frame += 1
        self.delta_s = delta_s
        self.elapsed_s += delta_s
        substeps = max(math.ceil(delta_s / SUBSTEP_S - 1e-9), 1)
        for vehicle in self.vehicles:
            vehicle.body.step(delta_s, substeps)
        self.on_step(self.packet())
        return self.frame

    def packet(self) -> bytes:
        platform_s = time.monotonic() - self.started_s
        actors = [actor.pack(self.elapsed_s) for actor in self.actors.values()]
        return wire.packet(self.frame, self.elapsed_s, self.episode, platform_s, self.delta_s, actors)

    def apply(self, settings: wire.Settings) -> int:
        """Apply settings; return the number of the frame from which they are active."""
        if settings.fixed_delta_s is not None and settings.fixed_delta_s <= 0.0:
            settings = replace(settings, fixed_delta_s=None)
        self.settings = settings
        return self.frame
