"""What is in the world: vehicles, traffic lights and the spectator, and how each is told."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import Any

from rtcontrol_client.carla.control import MAX_STEER, WHEELBASE_M, Control, steering_left
from rtcontrol_client.carla.standin import lights, wire
from rtcontrol_client.carla.standin.roads import LIMIT_KMH, Pose

STEER_RATE = math.radians(180.0)
PUSH_MPS2 = 4.0
# Above the speed at which this power gives PUSH_MPS2, the push falls with speed.
POWER_W_PER_KG = 40.0
BRAKE_MPS2 = 8.0
ROLLING_MPS2 = 0.15
DRAG_PER_M = 0.0006
GRIP_MPS2 = 8.0


def read_control(values: list[Any]) -> Control:
    throttle, steer, brake, hand_brake = values[:4]
    return Control(
        min(max(throttle, 0.0), 1.0), min(max(steer, -1.0), 1.0), min(max(brake, 0.0), 1.0), bool(hand_brake)
    )


class Bicycle:
    """Place, speed and wheels of one vehicle, which drives forwards only."""

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
            self.substep(delta_s / substeps)

    def substep(self, delta_s: float) -> None:
        control, speed = self.control, self.speed
        pace = abs(speed)
        # To the right is positive for CARLA and negative here.
        wanted = -control.steer * MAX_STEER * steering_left(pace * 3.6)
        self.wheels += min(max(wanted - self.wheels, -STEER_RATE * delta_s), STEER_RATE * delta_s)
        push = control.throttle * min(PUSH_MPS2, POWER_W_PER_KG / max(pace, 0.1))
        speed += push * delta_s
        hold = BRAKE_MPS2 * (1.0 if control.hand_brake else control.brake)
        if pace > 0.0 or push == 0.0:
            hold += ROLLING_MPS2 + DRAG_PER_M * pace * pace
        # Brakes and friction stop a vehicle; they never drive it the other way.
        self.speed = math.copysign(max(abs(speed) - hold * delta_s, 0.0), speed)
        self.slip = math.atan(0.5 * math.tan(self.wheels))
        curvature = math.cos(self.slip) * math.tan(self.wheels) / WHEELBASE_M
        most = GRIP_MPS2 / max(self.speed * self.speed, 1.0)
        if abs(curvature) > most:
            curvature = math.copysign(most, curvature)
            self.slip = math.asin(min(max(0.5 * WHEELBASE_M * curvature, -1.0), 1.0))
        turn_rate = self.speed * curvature
        direction = self.heading + self.slip + 0.5 * turn_rate * delta_s
        self.x += self.speed * math.cos(direction) * delta_s
        self.y += self.speed * math.sin(direction) * delta_s
        self.heading += turn_rate * delta_s


STRING = 4  # of an attribute


MODEL3, EXTENT = "vehicle.tesla.model3", (2.40, 1.08, 0.74)  # the one blueprint: half its length, width and height (m)


def definitions() -> list[Any]:
    role = ["role_name", STRING, "autopilot", ["autopilot", "scenario", "ego_vehicle"], True, False]
    return [[1, MODEL3, MODEL3.replace(".", ","), [role]]]


def description(type_id: str) -> list[Any]:
    """What an actor that the server itself has made is described as."""
    return [0, type_id, []]


# What is in the world: vehicles, traffic lights and the spectator, and how each is told.


# Semantic tags.
CAR, LIGHT = b"\x0e", b"\x07"


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
        """Its part of a packet."""
        return wire.OTHER_ACTOR.pack(*self.where())

    def where(self) -> tuple[float, ...]:
        place = (self.pose.x, -self.pose.y, 0.0, 0.0, wire.yaw(self.pose.heading), 0.0)
        return (self.number, wire.ACTIVE, *place, *(0.0,) * 9)


class TrafficLight(Actor):
    """The light of one arm."""

    def __init__(self, number: int, description: list[Any], arm: str, placed: lights.Placed) -> None:
        super().__init__(number, description, pose=placed.pole, tags=LIGHT)
        self.arm, self.placed = arm, placed

    def box(self) -> list[Any]:
        """Of a light CARLA tells what triggers it, not how large it is."""
        return self.placed.volume

    def pack(self, elapsed_s: float) -> bytes:
        state = lights.state(self.arm, elapsed_s)
        times = (
            lights.GREEN_S,
            lights.YELLOW_S,
            lights.CLEAR_S,
            0.0,
        )  # the last: since its change, which we do not tell
        return wire.TRAFFIC_LIGHT.pack(*self.where(), self.placed.sign.encode(), *times, 0, False, state)


@dataclass(eq=False)
class Vehicle(Actor):
    """A vehicle."""

    body: Bicycle = None  # type: ignore[assignment]

    def pack(self, elapsed_s: float) -> bytes:
        body, control = self.body, self.body.control
        x, y = body.velocity()
        place = (body.x, -body.y, 0.0, 0.0, wire.yaw(body.heading), 0.0)
        moves = (x, -y, 0.0, *(0.0,) * 6)  # no turn rate, no acceleration
        pedals, light = (*astuple(control), False, False, int(body.speed > 0.1)), (wire.GREEN, False, 0, 0)
        return wire.VEHICLE.pack(self.number, wire.ACTIVE, *place, *moves, *pedals, LIMIT_KMH, *light)
