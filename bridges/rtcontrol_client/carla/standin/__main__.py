"""Run the CARLA stand-in: `python -m rtcontrol_client.carla.standin --port P [--state FILE]`.

When it accepts clients, it prints `listening on 127.0.0.1:PORT`. It ends on SIGTERM or SIGINT. Lines on the standard
input cause faults, and each is answered with `done: LINE`:

  freeze       stop answers and streams but keep all connections open; `thaw` ends this
  garbage      send one packet that makes CARLA's client library abort its process
  state        write the state file now
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rtcontrol_client.carla.standin import wire
from rtcontrol_client.carla.standin.town import opendrive
from rtcontrol_client.carla.standin.wire import RequestRefused, RpcConnection, Stream, StreamConnection
from rtcontrol_client.carla.standin.world import World, actor_definitions

MAP = "Standin/Maps/Standin"


class RpcMethods:
    """The RPC methods of the server that need more than an expression in `table`."""

    def __init__(self, world: World, stream_port: int) -> None:
        self.world, self.stream_port = world, stream_port

    def token(self, stream: int = wire.WORLD_STREAM) -> list[bytes]:
        return [wire.token(stream, self.stream_port)]

    def map_info(self) -> list[Any]:
        return [MAP, [wire.write_transform(pose, 0.3) for pose in self.world.spawn_points()]]

    def actors(self, numbers: list[int]) -> list[Any]:
        return [self.world.actors[number].write() for number in numbers if number in self.world.actors]

    def box(self, number: int) -> list[Any]:
        if number not in self.world.actors:
            raise RequestRefused(f"unable to find the actor {number}: actor not found")
        return self.world.actors[number].box()

    def spawn(self, described: list[Any], transform: list[Any]) -> list[Any]:
        return self.world.spawn(described, wire.read_transform(transform)).write()

    def load(self, name: str, reset: bool = True, layers: int = 0) -> None:
        # Without a name, reload the same map.
        if name and name.rsplit("/", 1)[-1] != MAP.rsplit("/", 1)[-1]:
            raise RequestRefused("map not found")
        self.world.start_episode()
        if reset:
            self.world.apply(wire.Settings())
        self.world.on_step(self.world.packet())

    def tick(self) -> int:
        """Make a step in synchronous mode; do nothing in asynchronous mode, in which `keep_time` makes the steps."""
        return self.world.step() if self.world.settings.synchronous else self.world.frame + 1

    def batch(self, commands: list[Any], tick: bool) -> list[Any]:
        # Ignore `tick`, because the bridge never requests a tick after a batch.
        return [self.destroy(*command[0]) for command in commands]

    def destroy(self, variant: int, fields: list[Any]) -> list[Any]:
        """Execute DestroyActor, the only supported batch command; return the actor's id, or the error."""
        if variant == 1 and self.world.destroy(*fields):
            return [[1, fields[0]]]
        return [[0, [f"unable to destroy actor {fields[0]}: not found"]]]


def build_method_table(world: World, stream_port: int) -> wire.MethodTable:
    """Return all RPC methods of the server, by name."""
    methods = RpcMethods(world, stream_port)
    values: dict[str, Callable[..., Any]] = {
        "version": lambda: wire.VERSION,
        "get_episode_info": lambda: [world.episode, methods.token()],
        "get_sensor_token": methods.token,
        "get_episode_settings": lambda: world.settings.write(),
        "set_episode_settings": lambda values: world.apply(wire.Settings.read(values)),
        "get_required_files": lambda folder="": [],
        "query_lights_state": lambda address="": [],
        "get_actor_definitions": actor_definitions,
        "get_map_info": methods.map_info,
        "get_map_data": opendrive,
        "get_available_maps": lambda: [f"/Game/{MAP}"],
        "get_spectator": lambda: world.spectator.write(),
        "get_actors_by_id": methods.actors,
        "spawn_actor": methods.spawn,
        "destroy_actor": world.destroy,
        "get_actor_bounding_box": methods.box,
        "tick_cue": methods.tick,
    }
    voids: dict[str, Callable[..., Any]] = {
        "apply_control_to_vehicle": world.control,
        "load_new_episode": methods.load,
    }
    answers = {name: wire.wrap_method(method) for name, method in values.items()}
    answers |= {name: wire.wrap_method(method, void=True) for name, method in voids.items()}
    return answers | {"apply_batch": methods.batch}


HOST = "127.0.0.1"
PERIOD_S = 0.05  # time between two steps in asynchronous mode without a fixed step


class Server:
    """Serves a world at two ports, steps the world in asynchronous mode, and causes faults on command."""

    def __init__(self, world: World, state_path: Path | None) -> None:
        self.world, self.state_path = world, state_path
        self.stream = Stream(world.packet)
        self.connections: set[RpcConnection] = set()
        self.frozen = False
        self.stopped = asyncio.Event()
        world.on_step = self.stream.send

    async def listen(self, port: int) -> int:
        """Open both listeners; return the port for clients (0 chooses a free one)."""
        loop = asyncio.get_running_loop()
        streams = await loop.create_server(lambda: StreamConnection(self.stream), HOST, 0)
        methods = build_method_table(self.world, streams.sockets[0].getsockname()[1])
        rpc = await loop.create_server(lambda: RpcConnection(methods, self.connections, self.frozen), HOST, port)
        return int(rpc.sockets[0].getsockname()[1])

    async def run(self) -> None:
        """Run until the server is stopped; an error in a step ends the run with this error."""
        tasks = [asyncio.ensure_future(work) for work in (self.stopped.wait(), self.keep_time())]
        ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        self.write_state()
        for task in ended:
            task.result()

    async def keep_time(self) -> None:
        """Step the world on the wall clock's grid in asynchronous mode."""
        due = time.monotonic()
        while True:
            due = max(due + (self.world.settings.fixed_delta_s or PERIOD_S), time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if not self.frozen and not self.world.settings.synchronous:
                self.world.step()

    def write_state(self) -> None:
        if self.state_path:
            write_json(self.state_path, world_state(self.world, len(self.connections)))

    def command(self, text: str) -> None:
        """Execute a line of the standard input, such as `freeze`."""
        match text.split():
            case ["freeze"]:
                self.freeze(True)
            case ["thaw"]:
                self.freeze(False)
            case ["garbage"]:
                # The length prefix is correct, but the content is shorter than any packet of this stream.
                self.stream.send(struct.pack("<I", 7) + b"garbage")
            case ["state"]:
                self.write_state()
            case _:
                print(f"unknown command: {text.strip()}", flush=True)
                return
        print(f"done: {text.strip()}", flush=True)

    def freeze(self, frozen: bool) -> None:
        """Stop all answers but keep the connections open; if `frozen` is False, continue with the pending requests."""
        self.frozen = self.stream.paused = frozen
        for connections in self.connections:
            connections.paused = frozen
            if not frozen:
                connections.serve()


def world_state(world: World, clients: int) -> dict[str, Any]:
    """Return the world's settings, vehicles and destroyed vehicles, for the state file."""
    return {
        "what": "the CARLA stand-in, not CARLA",
        "frame": world.frame,
        "elapsed_s": round(world.elapsed_s, 4),
        "episode": world.episode,
        "clients": clients,
        "settings": asdict(world.settings),
        "alive": [world.to_dict(car) | {"speed_kmh": round(car.body.speed * 3.6, 2)} for car in world.vehicles],
        "destroyed": world.destroyed_vehicles,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the state file completely or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


def read_lines(loop: asyncio.AbstractEventLoop, server: Server, leashed: bool) -> None:
    for line in sys.stdin:
        if line.strip():
            loop.call_soon_threadsafe(server.command, line)
    if leashed:
        loop.call_soon_threadsafe(server.stopped.set)


async def serve(options: argparse.Namespace) -> None:
    server = Server(World(), options.state)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopped.set)
    port = await server.listen(options.port)
    threading.Thread(target=read_lines, args=(loop, server, options.leash), daemon=True).start()
    print(f"listening on {HOST}:{port}", flush=True)
    await server.run()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rtcontrol_client.carla.standin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=2000, help="port of the RPC; 0 takes a free one")
    parser.add_argument("--state", type=Path, help="JSON file that is written at the end")
    parser.add_argument("--leash", action="store_true", help="end when the standard input is closed")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
