"""What is in the world: vehicles, traffic lights and the spectator, and how each is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.bridges.carla.standin import lights, wire
from tests.bridges.carla.standin.collisions import Box
from tests.bridges.carla.standin.geometry import Pose
from tests.bridges.carla.standin.physics import Bicycle
from tests.bridges.carla.standin.roads import LIMIT_KMH, signal_number

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
        return wire.OTHER_ACTOR.pack(*self.placed())

    def placed(self) -> tuple[float, ...]:
        place = (self.pose.x, -self.pose.y, 0.0, 0.0, wire.yaw(self.pose.heading), 0.0)
        return (self.number, wire.ACTIVE, *place, *(0.0,) * 9)


class TrafficLight(Actor):
    """The light of one arm."""

    arm: str = ""

    def box(self) -> list[Any]:
        """Of a light CARLA tells what triggers it, not how large it is."""
        return lights.volume(self.arm)

    def pack(self, elapsed_s: float) -> bytes:
        state, since = lights.state(self.arm, elapsed_s), lights.since_change(self.arm, elapsed_s)
        times = (lights.GREEN_S, lights.YELLOW_S, lights.CLEAR_S, since)
        return wire.TRAFFIC_LIGHT.pack(*self.placed(), str(signal_number(self.arm)).encode(), *times, 0, False, state)


@dataclass(eq=False)
class Vehicle(Actor):
    """A vehicle, and what it has done that a test may ask about."""

    body: Bicycle = None  # type: ignore[assignment]
    # The light whose trigger box it touches, and the arm by which it enters the junction.
    light: TrafficLight | None = None
    entering: str | None = None
    metres: float = 0.0
    top_kmh: float = 0.0
    collisions: int = 0
    red_lights_run: int = 0

    def boxed(self) -> Box:
        return Box(self.body.x, self.body.y, self.body.heading, self.extent[0], self.extent[1])

    def pack(self, elapsed_s: float) -> bytes:
        body, control = self.body, self.body.control
        x, y = body.velocity()
        cos, sin = math.cos(body.heading), math.sin(body.heading)
        sideways = body.speed * body.turn_rate
        state = wire.GREEN if self.light is None else lights.state(self.light.arm, elapsed_s)
        gear = control.gear if control.manual_gear_shift else -1 if control.reverse else int(body.speed > 0.1)
        return wire.VEHICLE.pack(
            self.number,
            wire.ACTIVE,
            body.x,
            -body.y,
            0.0,
            0.0,
            wire.yaw(body.heading),
            0.0,
            x,
            -y,
            0.0,
            0.0,
            0.0,
            -math.degrees(body.turn_rate),
            body.acceleration * cos - sideways * sin,
            -body.acceleration * sin - sideways * cos,
            0.0,
            control.throttle,
            control.steer,
            control.brake,
            control.hand_brake,
            control.reverse,
            control.manual_gear_shift,
            gear,
            LIMIT_KMH,
            state,
            self.light is not None,
            self.light.number if self.light else 0,
            0,
        )
