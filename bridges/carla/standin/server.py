"""The server: two listeners, the clock of asynchronous mode, and what goes wrong on command."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rtcontrol.bridges.carla.standin.methods import table
from rtcontrol.bridges.carla.standin.rpc import Calls, Stream, Subscriber
from rtcontrol.bridges.carla.standin.world import World

HOST = "127.0.0.1"
# Of asynchronous mode without a fixed step.
PERIOD_S = 0.05
STATE_EVERY_S = 1.0


class Server:
    """Serves a world until it is told to stop."""

    def __init__(self, world: World, version: str, state_path: Path | None) -> None:
        self.world, self.version, self.state_path = world, version, state_path
        self.stream = Stream(world.packet)
        self.calls: set[Calls] = set()
        self.frozen = False
        self.slow_s = 0.0
        self.stopped = asyncio.Event()
        world.on_step = self.stepped

    async def listen(self, port: int) -> int:
        """Opens both listeners; the port that clients connect to (0 asks for a free one)."""
        loop = asyncio.get_running_loop()
        streams = await loop.create_server(lambda: Subscriber(self.stream), HOST, 0)
        methods = table(self.world, streams.sockets[0].getsockname()[1], self.version)
        rpc = await loop.create_server(lambda: self.connect(Calls(methods, self.calls)), HOST, port)
        return int(rpc.sockets[0].getsockname()[1])

    def connect(self, calls: Calls) -> Calls:
        calls.paused = self.frozen
        return calls

    async def run(self) -> None:
        """Until it is told to stop; what fails within a step ends it with that error."""
        tasks = [asyncio.ensure_future(one) for one in (self.stopped.wait(), self.keep_time(), self.keep_state())]
        ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        self.write_state()
        for task in ended:
            task.result()

    async def keep_time(self) -> None:
        """Steps on the wall clock's grid while the mode is asynchronous."""
        due = time.monotonic()
        while True:
            due = max(due + (self.world.settings.fixed_delta_s or PERIOD_S), time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if not self.frozen and not self.world.settings.synchronous:
                self.world.step()

    async def keep_state(self) -> None:
        while True:
            self.write_state()
            await asyncio.sleep(STATE_EVERY_S)

    def write_state(self) -> None:
        if self.state_path:
            write(self.state_path, state(self.world, len(self.calls)))

    def stepped(self, packet: bytes) -> None:
        if self.slow_s:
            time.sleep(self.slow_s)
        self.stream.send(packet)

    def command(self, text: str) -> None:
        """A line of the standard input: what is to go wrong now."""
        match text.split():
            case ["freeze"]:
                self.freeze(True)
            case ["thaw"]:
                self.freeze(False)
            case ["garbage"]:
                # The length is right, the content is shorter than any packet of this stream.
                self.stream.send(struct.pack("<I", 7) + b"garbage")
            case ["slow", milliseconds]:
                self.slow_s = float(milliseconds) / 1e3
            case ["reticent"]:
                self.stream.reticent = True
            case ["tell"]:
                self.stream.send(self.stream.current())
            case ["state"]:
                self.write_state()
            case _:
                print(f"unknown command: {text.strip()}", flush=True)
                return
        print(f"done: {text.strip()}", flush=True)

    def freeze(self, frozen: bool) -> None:
        """Keeps all connections open and says nothing on them; then answers what has come in."""
        self.frozen = self.stream.paused = frozen
        for calls in self.calls:
            calls.paused = frozen
            if not frozen:
                calls.serve()


def state(world: World, clients: int) -> dict[str, Any]:
    """Its settings, who is alive, who was destroyed, and every collision since the start."""
    return {
        "what": "the CARLA stand-in, not CARLA",
        "frame": world.frame,
        "elapsed_s": round(world.elapsed_s, 4),
        "episode": world.episode,
        "clients": clients,
        "settings": asdict(world.settings),
        "alive": [world.to_dict(one) | {"speed_kmh": round(one.body.speed * 3.6, 2)} for one in world.vehicles],
        "destroyed": world.gone,
        "collisions": world.collisions,
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all, so that a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(found, indent=1))
    part.replace(path)
