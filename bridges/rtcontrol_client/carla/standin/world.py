"""The world: its settings, its actors and its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from rtcontrol_client.carla.standin import actors, lights, wire
from rtcontrol_client.carla.standin.actors import CAR, Actor, Bicycle, TrafficLight, Vehicle
from rtcontrol_client.carla.standin.roads import ARMS, Pose, lanes
from rtcontrol_client.carla.standin.wire import Refused

# Of the wall clock's step without a fixed one.
LONGEST_STEP_S = 0.1
SUBSTEP_S = 0.01
SPAWN_EVERY_M = 40.0
FIRST_ACTOR = 24

AnyActor = TypeVar("AnyActor", bound=Actor)


class World:
    """`on_step` is given each step's packet."""

    def __init__(self, on_step: Callable[[bytes], None] = lambda packet: None) -> None:
        self.on_step = on_step
        self.episode = 0
        self.frame = 0
        self.delta_s = 0.0
        self.settings = wire.Settings()
        self.started_s = self.stepped_s = time.monotonic()
        self.next_number = FIRST_ACTOR
        self.gone: list[dict[str, Any]] = []
        self.begin()

    def begin(self) -> None:
        """A new episode: only the spectator and the lights, as at the start."""
        self.episode += 1
        self.elapsed_s = 0.0
        self.actors: dict[int, Actor] = {}
        self.spectator = self.add(Actor(self.number(), actors.description("spectator")))
        self.lights: dict[str, TrafficLight] = {}
        described = actors.description("traffic.traffic_light")
        for arm in ARMS:
            self.lights[arm] = self.add(TrafficLight(self.number(), described, arm, lights.generated(arm)))

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def add(self, actor: AnyActor) -> AnyActor:
        self.actors[actor.number] = actor
        return actor

    @property
    def vehicles(self) -> list[Vehicle]:
        return [actor for actor in self.actors.values() if isinstance(actor, Vehicle)]

    def spawn_points(self) -> list[Pose]:
        points = []
        for curve in lanes().values():
            first = SPAWN_EVERY_M / 2
            points += [curve.at(first + SPAWN_EVERY_M * n) for n in range(int(curve.length / SPAWN_EVERY_M))]
        return points

    def spawn(self, described: list[Any], pose: Pose) -> Vehicle:
        """A vehicle for a client. Refused where another is."""
        if described[1] != actors.MODEL3:
            raise Refused(f"the CARLA stand-in has no blueprint {described[1]!r}")
        if any(math.dist(pose[:2], (one.body.x, one.body.y)) < 2 * actors.EXTENT[0] for one in self.vehicles):
            raise Refused("Spawn failed because of collision at spawn position")
        return self.add(Vehicle(self.number(), described, actors.EXTENT, tags=CAR, body=Bicycle(*pose)))

    def driven(self, number: int) -> Vehicle:
        actor = self.actors.get(number)
        if not isinstance(actor, Vehicle):
            raise Refused(f"unable to find the actor {number}: actor not found")
        return actor

    def control(self, number: int, values: list[Any]) -> None:
        self.driven(number).body.control = actors.read_control(values)

    def destroy(self, number: int) -> bool:
        actor = self.actors.get(number)
        if not isinstance(actor, Vehicle):
            return False
        del self.actors[number]
        self.gone.append(self.to_dict(actor))
        return True

    def to_dict(self, vehicle: Vehicle) -> dict[str, Any]:
        """What a vehicle has done."""
        return {
            "id": vehicle.number,
            "type_id": vehicle.type_id,
            "role_name": vehicle.attributes.get("role_name", ""),
        }

    def step_s(self) -> float:
        now = time.monotonic()
        wall, self.stepped_s = now - self.stepped_s, now
        return self.settings.fixed_delta_s or min(max(wall, 1e-3), LONGEST_STEP_S)

    def step(self) -> int:
        """One step of all; its frame number."""
        delta_s = self.step_s()
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
        """Takes settings over; the frame at which they hold."""
        if settings.fixed_delta_s is not None and settings.fixed_delta_s <= 0.0:
            settings = replace(settings, fixed_delta_s=None)
        self.settings = settings
        return self.frame
