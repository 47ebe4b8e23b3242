"""The vehicles beside ours that the bridge puts on a CARLA server, and drives."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import carla

from rtcontrol.bridges.carla import server
from rtcontrol.bridges.carla.lanes import TownRoad
from rtcontrol.bridges.carla.observing import Scene

if TYPE_CHECKING:
    from rtcontrol.bridges.carla.journal import Journal


from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rtcontrol.bridges.carla.control import Control
from rtcontrol.bridges.carla.driver import Driver
from rtcontrol.bridges.carla.intent import Intent
from rtcontrol.bridges.carla.neighbours import Body, LaneOccupancy
from rtcontrol.bridges.carla.observing import Light

GAP_M, GAP_S = 5.0, 1.0


NO_LIGHTS: Mapping[int, Light] = MappingProxyType({})


LIMIT_KMH = 50.0


class TrafficDrivers:
    """The drivers of many vehicles, stepped together: what is where is found out once for all of them."""

    def __init__(self, road: TownRoad, dt_s: float) -> None:
        self.road, self.dt_s = road, dt_s
        self._occupancy = LaneOccupancy(road)
        self.drivers: dict[int, Driver] = {}  # by the vehicles' numbers
        self._share: dict[int, float] = {}

    def add(self, number: int, share: float = 1.0) -> None:
        """A vehicle by its number; it likes to drive at a share of the speed limit."""
        driver = self.drivers[number] = Driver(self.road, self.dt_s, alone=True)
        driver.intent = Intent("follow", gap_m=GAP_M)
        self._share[number] = share

    def step(
        self,
        bodies: Iterable[Body],
        limits_kmh: Mapping[int, float],
        lights: Mapping[int, Light] = NO_LIGHTS,
    ) -> list[tuple[int, Control]]:
        """What each of ours does until the next step; `bodies` are all vehicles of the moment, ours among them.

        Limits by vehicle; where none is told: 50 km/h. Lights by their own numbers. Who is not among the bodies does
        nothing.
        """
        here = list(bodies)
        self._occupancy.update(here)
        told = []
        for body in here:
            driver = self.drivers.get(body.number)
            if driver is None:
                continue
            driver.intent.gap_m = GAP_M + GAP_S * body.speed
            limit_kmh = self._share[body.number] * limits_kmh.get(body.number, LIMIT_KMH)
            scene = Scene(body, (), limit_kmh, lights, self._occupancy)
            told.append((body.number, driver.step(scene)))
        return told


ROLE = "rtcontrol"
WHEELS = "4"
SHARES = (0.7, 1.05)  # of the speed limit that each one drives at
log = logging.getLogger("rtcontrol.carla")


class Fleet:
    """Up to `count` vehicles at free spawn points; methods raise RuntimeError where the server does not answer."""

    def __init__(self, client: Any, world: Any, journal: Journal, count: int, seed: int) -> None:
        self._client = client
        dice = random.Random(f"{seed} traffic")
        library = world.get_blueprint_library().filter("vehicle.*")
        cars = [b for b in library if str(b.get_attribute("number_of_wheels").as_int()) == WHEELS]
        points = world.get_map().get_spawn_points()
        dice.shuffle(points)
        batch = []
        for point in points[: 2 * count]:
            blueprint = dice.choice(sorted(cars, key=lambda b: b.id))
            blueprint.set_attribute("role_name", ROLE)
            batch.append(carla.command.SpawnActor(blueprint, point))
        journal.spawning(ROLE, server.vehicles(world))
        numbers: list[int] = []
        for at in range(0, len(batch), max(1, count)):
            answers = client.apply_batch_sync(batch[at : at + count - len(numbers)], False)
            numbers += [answer.actor_id for answer in answers if not answer.error]
        journal.spawned(ROLE, numbers)
        self._shares = [dice.uniform(*SHARES) for _ in numbers]
        self._vehicles: dict[int, Any] = {actor.id: actor for actor in world.get_actors(numbers)}
        if len(numbers) < count:
            log.warning("room for %d of %d other vehicles only", len(numbers), count)

    def again(self, client: Any, world: Any) -> None:
        """By another connection from now on."""
        self._client = client
        self._vehicles = {actor.id: actor for actor in world.get_actors(list(self._vehicles))}

    def drivers(self, road: TownRoad, step_s: float) -> TrafficDrivers:
        """Their drivers."""
        traffic = TrafficDrivers(road, step_s)
        for number, share in zip(sorted(self._vehicles), self._shares, strict=False):
            traffic.add(number, share)
        return traffic

    def drive(self, traffic: TrafficDrivers, scene: Scene) -> None:
        """What each does until the next step."""
        limits = {number: one.get_speed_limit() or 50.0 for number, one in self._vehicles.items()}
        commands = [
            carla.command.ApplyVehicleControl(
                number,
                carla.VehicleControl(
                    throttle=told.throttle, steer=told.steer, brake=told.brake, hand_brake=told.hand_brake
                ),
            )
            for number, told in traffic.step([scene.own, *scene.others], limits, scene.lights)
        ]
        self._client.apply_batch(commands)
