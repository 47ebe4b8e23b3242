"""The vehicles beside ours that the bridge puts on a CARLA server, and drives."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import carla

from rtcontrol_client.carla import server
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.observing import Scene

if TYPE_CHECKING:
    from rtcontrol_client.carla.journal import Journal


from rtcontrol_client.carla.traffic import TrafficDrivers

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
