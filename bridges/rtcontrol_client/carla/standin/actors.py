"""What is in the world: vehicles, traffic lights and the spectator, and how each is told."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import Any

from rtcontrol_client.carla.standin import lights, wire
from rtcontrol_client.carla.standin.roads import LIMIT_KMH, Box, Pose

WHEELBASE_M = 2.85
MAX_STEER = math.radians(70.0)
# Speed in km/h and share of the steering that is left at it: the steering curve that CARLA's vehicles have.
STEERING_CURVE = ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))
STEER_RATE = math.radians(180.0)
PUSH_MPS2 = 4.0
# Above the speed at which this power gives PUSH_MPS2, the push falls with speed.
POWER_W_PER_KG = 40.0
BRAKE_MPS2 = 8.0
ROLLING_MPS2 = 0.15
DRAG_PER_M = 0.0006
GRIP_MPS2 = 8.0


@dataclass(frozen=True)
class Control:
    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False

    @classmethod
    def read(cls, values: list[Any]) -> Control:
        throttle, steer, brake, hand_brake = values[:4]
        throttle, brake = (min(max(pedal, 0.0), 1.0) for pedal in (throttle, brake))
        steer = min(max(steer, -1.0), 1.0)
        return cls(throttle, steer, brake, bool(hand_brake))


def steering_left(speed_kmh: float) -> float:
    """Share of the steering that is left at a speed."""
    before = STEERING_CURVE[0]
    for point in STEERING_CURVE[1:]:
        if speed_kmh <= point[0]:
            return before[1] + (point[1] - before[1]) * (speed_kmh - before[0]) / (point[0] - before[0])
        before = point
    return before[1]


class Bicycle:
    """Place, speed and wheels of one vehicle, which drives forwards only."""

    def __init__(self, x: float, y: float, heading: float) -> None:
        self.x, self.y, self.heading = x, y, heading
        self.speed = 0.0
        self.wheels = 0.0
        self.turn_rate = 0.0
        self.slip = 0.0
        self.acceleration = 0.0
        self.control = Control()

    def velocity(self) -> tuple[float, float]:
        direction = self.heading + self.slip
        return self.speed * math.cos(direction), self.speed * math.sin(direction)

    def step(self, delta_s: float, substeps: int) -> None:
        before = self.speed
        for _ in range(substeps):
            self.substep(delta_s / substeps)
        self.acceleration = (self.speed - before) / delta_s

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
        self.turn_rate = self.speed * curvature
        direction = self.heading + self.slip + 0.5 * self.turn_rate * delta_s
        self.x += self.speed * math.cos(direction) * delta_s
        self.y += self.speed * math.sin(direction) * delta_s
        self.heading += self.turn_rate * delta_s


BOOL, INT, FLOAT, STRING, COLOR = 1, 2, 3, 4, 5
COLORS = ["200,30,30", "30,60,200", "230,230,230", "20,20,20"]


@dataclass(frozen=True)
class Blueprint:
    """Half the length, width and height in metres."""

    type_id: str
    extent: tuple[float, float, float]
    generation: str = "2"

    def definition(self, number: int) -> list[Any]:
        texts = [
            ("number_of_wheels", INT, "4", [], False),
            ("base_type", STRING, "car", [], False),
            ("generation", INT, self.generation, [], False),
            ("special_type", STRING, "", [], False),
            ("has_lights", BOOL, "false", [], False),
            ("object_type", STRING, "", [], False),
            ("color", COLOR, COLORS[0], COLORS, True),
            ("role_name", STRING, "autopilot", ["autopilot", "scenario", "ego_vehicle"], True),
            ("sticky_control", BOOL, "true", [], True),
        ]
        attributes = [[name, kind, text, choices, free, False] for name, kind, text, choices, free in texts]
        return [number, self.type_id, self.type_id.replace(".", ","), attributes]


BLUEPRINTS = {
    one.type_id: one
    for one in (
        Blueprint("vehicle.tesla.model3", (2.40, 1.08, 0.74), "1"),
        Blueprint("vehicle.lincoln.mkz_2020", (2.45, 1.06, 0.75)),
    )
}


def definitions() -> list[Any]:
    return [one.definition(number) for number, one in enumerate(BLUEPRINTS.values(), start=1)]


def description(type_id: str, role: str) -> list[Any]:
    """What an actor that the server itself has made is described as."""
    uid = list(BLUEPRINTS).index(type_id) + 1 if type_id in BLUEPRINTS else 0
    return [uid, type_id, [["role_name", STRING, role]] if role else []]


# What is in the world: vehicles, traffic lights and the spectator, and how each is told.


# Semantic tags.
CAR, LIGHT = b"\x0e", b"\x07"
# Constants of no meaning in a vehicle's physics.
TRACK_M, RADIUS_CM, MASS_KG = 1.6, 34.0, 1800.0


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

    def boxed(self) -> Box:
        return Box(self.body.x, self.body.y, self.body.heading, self.extent[0], self.extent[1])

    def pack(self, elapsed_s: float) -> bytes:
        body, control = self.body, self.body.control
        x, y = body.velocity()
        cos, sin = math.cos(body.heading), math.sin(body.heading)
        sideways = body.speed * body.turn_rate
        pushed = (body.acceleration * cos - sideways * sin, -body.acceleration * sin - sideways * cos, 0.0)
        place = (body.x, -body.y, 0.0, 0.0, wire.yaw(body.heading), 0.0)
        moves = (x, -y, 0.0, 0.0, 0.0, -math.degrees(body.turn_rate), *pushed)
        pedals, light = (*astuple(control), False, False, int(body.speed > 0.1)), (wire.GREEN, False, 0, 0)
        return wire.VEHICLE.pack(self.number, wire.ACTIVE, *place, *moves, *pedals, LIMIT_KMH, *light)


def physics(vehicle: Vehicle) -> list[Any]:
    """As a client asks for it; of it the bicycle has the geometry alone. Wheels are front left, front right, rear left,
    rear right; their places are in world centimetres, as CARLA's."""
    wheels = []
    cos, sin = math.cos(vehicle.body.heading), math.sin(vehicle.body.heading)
    for ahead, most in ((WHEELBASE_M / 2, math.degrees(MAX_STEER)), (-WHEELBASE_M / 2, 0.0)):
        for left in (TRACK_M / 2, -TRACK_M / 2):
            x = vehicle.body.x + ahead * cos - left * sin
            y = vehicle.body.y + ahead * sin + left * cos
            place = [100.0 * x, -100.0 * y, RADIUS_CM]
            wheels.append(
                [3.5, 0.25, most, RADIUS_CM, 1500.0, 3000.0 if most == 0.0 else 0.0, 2.0, 17.0, 1000.0, place]
            )
    engine = [[[0.0, 500.0], [5000.0, 500.0]], 5000.0, 1.0, 0.15, 2.0, 0.35, True, 0.5, 10.0, 4.0, []]
    steering = [list(point) for point in STEERING_CURVE]
    return [*engine, MASS_KG, 0.3, [0.0, 0.0, 0.0], steering, wheels, False]
