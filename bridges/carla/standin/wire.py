"""The values of the protocol: arrays by position, as CARLA 0.9.16's client packs them."""

from __future__ import annotations

import math
import struct
from dataclasses import astuple, dataclass
from typing import Any

from rtcontrol.bridges.carla.standin.geometry import Pose

VERSION = "0.9.16"
LOOPBACK = bytes([127, 0, 0, 1])
WORLD_STREAM = 1
# What a client's library reads as a packet of the world observer.
WORLD_OBSERVER = 17

HEADER = struct.Struct("<QQd6f")
EPISODE = struct.Struct("<Qdf3iI")
PLACE = "<IB3f3f3f3f3f"
OTHER_ACTOR = struct.Struct(PLACE + "54x")
VEHICLE = struct.Struct(PLACE + "3f3?ifB?IB24x")
TRAFFIC_LIGHT = struct.Struct(PLACE + "32s4fI?B")

RED, YELLOW, GREEN = 0, 1, 2
ACTIVE = 1


@dataclass(frozen=True)
class Settings:
    """A world's settings; `fixed_delta_s` None: as long a step as the wall clock's."""

    synchronous: bool = False
    no_rendering: bool = False
    fixed_delta_s: float | None = None
    substepping: bool = True
    max_substep_s: float = 0.01
    max_substeps: int = 10
    max_culling_distance: float = 0.0
    deterministic_ragdolls: bool = True
    tile_stream_distance: float = 3000.0
    actor_active_distance: float = 2000.0
    spectator_as_ego: bool = True

    @classmethod
    def read(cls, values: list[Any]) -> Settings:
        fixed = values[2]
        return cls(values[0], values[1], fixed[1] if fixed[0] else None, *values[3:])

    def write(self) -> list[Any]:
        values: list[Any] = list(astuple(self))
        values[2] = [False] if self.fixed_delta_s is None else [True, self.fixed_delta_s]
        return values


def token(stream: int, port: int) -> bytes:
    """Where a client finds a stream: TCP over IPv4."""
    return struct.pack("<IHBB16s", stream, port, 1, 1, LOOPBACK)


def yaw(heading: float) -> float:
    """Degrees of CARLA (clockwise) of a heading in radians (counter-clockwise)."""
    return math.degrees(math.remainder(-heading, 2 * math.pi))


def write_transform(pose: Pose, z: float = 0.0) -> list[list[float]]:
    return [[pose.x, -pose.y, z], [0.0, yaw(pose.heading), 0.0]]


def read_transform(values: list[list[float]]) -> Pose:
    return Pose(values[0][0], -values[0][1], -math.radians(values[1][1]))


def packet(frame: int, elapsed_s: float, episode: int, platform_s: float, delta_s: float, actors: list[bytes]) -> bytes:
    """One packet of the world observer."""
    body = HEADER.pack(WORLD_OBSERVER, frame, elapsed_s, 0, 0, 0, 0, 0, 0)
    body += EPISODE.pack(episode, platform_s, delta_s, 0, 0, 0, 0)
    body += b"".join(actors)
    return struct.pack("<I", len(body)) + body
