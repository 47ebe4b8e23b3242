"""The methods that clients call, by CARLA's names, on the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtcontrol.bridges.carla.standin import blueprints, lights, wire
from rtcontrol.bridges.carla.standin.actors import physics
from rtcontrol.bridges.carla.standin.rpc import Refused, Table, answering
from rtcontrol.bridges.carla.standin.town import opendrive
from rtcontrol.bridges.carla.standin.world import World

# The second is the same town with lights that were placed by hand.
MAPS = ("Standin/Maps/Standin", "Standin/Maps/Standin2")


class Methods:
    """What needs more than one line of the world."""

    def __init__(self, world: World, stream_port: int, version: str) -> None:
        self.world, self.stream_port, self.version = world, stream_port, version
        self.map = MAPS[0]

    def token(self, stream: int = wire.WORLD_STREAM) -> list[bytes]:
        return [wire.token(stream, self.stream_port)]

    def map_info(self) -> list[Any]:
        return [self.map, [wire.write_transform(pose, 0.3) for pose in self.world.spawn_points()]]

    def actors(self, numbers: list[int]) -> list[Any]:
        return [self.world.actors[number].write() for number in numbers if number in self.world.actors]

    def box(self, number: int) -> list[Any]:
        if number not in self.world.actors:
            raise Refused(f"unable to find the actor {number}: actor not found")
        return self.world.actors[number].box()

    def spawn(self, described: list[Any], transform: list[Any]) -> list[Any]:
        return self.world.spawn(described, wire.read_transform(transform)).write()

    def load(self, name: str, reset: bool = True, layers: int = 0) -> None:
        # Without a name: the same again.
        if name:
            known = {there.rsplit("/", 1)[-1]: there for there in MAPS}
            if (short := name.rsplit("/", 1)[-1]) not in known:
                raise Refused("map not found")
            self.map = known[short]
        self.world.begin(lights.by_hand if self.map == MAPS[1] else lights.generated)
        if reset:
            self.world.apply(wire.Settings())
        self.world.on_step(self.world.packet())

    def tick(self) -> int:
        """In asynchronous mode a cue changes nothing: the next frame comes by itself."""
        return self.world.step() if self.world.settings.synchronous else self.world.frame + 1

    def batch(self, commands: list[Any], tick: bool) -> list[Any]:
        # Whoever wants a tick, too, cues it after the batch.
        return [self.command(*command[0]) for command in commands]

    def command(self, variant: int, fields: list[Any]) -> list[Any]:
        """One command of a batch: the actor's id, or why not."""
        world = self.world
        does: dict[int, Callable[..., Any]] = {1: world.destroy, 2: world.control}
        try:
            if variant == 0:
                return [[1, world.spawn(fields[0], wire.read_transform(fields[1])).number]]
            if variant not in does:
                raise Refused(f"the CARLA stand-in does not know command {variant}")
            if does[variant](*fields) is False:
                raise Refused(f"unable to destroy actor {fields[0]}: not found")
        except Refused as refused:
            return [[0, [str(refused)]]]
        return [[1, fields[0]]]


def table(world: World, stream_port: int, version: str = wire.VERSION) -> Table:
    """All methods of the server."""
    methods = Methods(world, stream_port, version)
    values: dict[str, Callable[..., Any]] = {
        "version": lambda: methods.version,
        "get_episode_info": lambda: [world.episode, methods.token()],
        "get_sensor_token": methods.token,
        "get_episode_settings": lambda: world.settings.write(),
        "set_episode_settings": lambda values: world.apply(wire.Settings.read(values)),
        "get_required_files": lambda folder="": [],
        "query_lights_state": lambda address="": [],
        "get_actor_definitions": blueprints.definitions,
        "get_map_info": methods.map_info,
        "get_map_data": opendrive,
        "get_available_maps": lambda: [f"/Game/{there}" for there in MAPS],
        "get_spectator": lambda: world.spectator.write(),
        "get_actors_by_id": methods.actors,
        "spawn_actor": methods.spawn,
        "destroy_actor": world.destroy,
        "get_actor_bounding_box": methods.box,
        "tick_cue": methods.tick,
        "get_physics_control": lambda number: physics(world.driven(number)),
    }
    voids: dict[str, Callable[..., Any]] = {
        "apply_control_to_vehicle": world.control,
        "set_actor_transform": world.place,
        "set_actor_target_velocity": world.push,
        "load_new_episode": methods.load,
    }
    found = {name: answering(method) for name, method in values.items()}
    found |= {name: answering(method, void=True) for name, method in voids.items()}
    return found | {"apply_batch": methods.batch}
