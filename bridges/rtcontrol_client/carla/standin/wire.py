"""The protocol between CARLA's client and server: RPC in MessagePack, and a stream of packed binary states."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import msgpack

VERSION = "0.9.16"
LOOPBACK = bytes([127, 0, 0, 1])
WORLD_STREAM = 1
# The stream type of packets with the state of the whole world.
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
    """The settings of a world. If `fixed_delta_s` is None, steps follow the wall clock."""

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


class Pose(NamedTuple):
    """A position and a direction, in OpenDRIVE's axes."""

    x: float
    y: float
    heading: float


def token(stream: int, port: int) -> bytes:
    """Return the token with which a client connects to a stream: its number and its address (TCP over IPv4)."""
    return struct.pack("<IHBB16s", stream, port, 1, 1, LOOPBACK)


def yaw(heading: float) -> float:
    """Convert a heading in radians (counter-clockwise) to CARLA's yaw in degrees (clockwise)."""
    return math.degrees(math.remainder(-heading, 2 * math.pi))


def write_transform(pose: Pose, z: float = 0.0) -> list[list[float]]:
    return [[pose.x, -pose.y, z], [0.0, yaw(pose.heading), 0.0]]


def read_transform(values: list[list[float]]) -> Pose:
    return Pose(values[0][0], -values[0][1], -math.radians(values[1][1]))


def packet(frame: int, elapsed_s: float, episode: int, platform_s: float, delta_s: float, actors: list[bytes]) -> bytes:
    """Build a packet of the world observer's stream."""
    body = HEADER.pack(WORLD_OBSERVER, frame, elapsed_s, 0, 0, 0, 0, 0, 0)
    body += EPISODE.pack(episode, platform_s, delta_s, 0, 0, 0, 0)
    body += b"".join(actors)
    return struct.pack("<I", len(body)) + body


# A client has two connections: msgpack-rpc, whose requests are answered in order, and the stream of world states, on
# which the server sends the current packet at the start and then a packet per step.


REQUEST, RESPONSE = 0, 1


class RequestRefused(Exception):
    """Raised by an RPC method that refuses a request; CARLA's client then raises RuntimeError with this text."""


# By name: an RPC method that returns its result in the form of the protocol.
MethodTable = dict[str, Callable[..., Any]]


def wrap_method(method: Callable[..., Any], void: bool = False) -> Callable[..., Any]:
    """Wrap a method to return its result or its refusal in the form of the protocol."""

    def called(*arguments: Any) -> list[Any]:
        try:
            result = method(*arguments)
        except RequestRefused as refused:
            return [[0, [str(refused)]]]
        return [[False]] if void else [[1, result]]

    return called


class RpcConnection(asyncio.Protocol):
    """A client's RPC connection. While `paused` is True, requests are not answered."""

    def __init__(self, table: MethodTable, connections: set[RpcConnection], paused: bool) -> None:
        self.table, self.connections, self.paused = table, connections, paused
        # Strings are decoded as text, even tokens, which are binary.
        self.unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.unpacker.feed(data)
        if not self.paused:
            self.serve()

    def serve(self) -> None:
        """Answer every complete request."""
        try:
            for kind, number, name, parameters in self.unpacker:
                if kind == REQUEST:
                    self.transport.write(msgpack.packb(self.answer(number, name, parameters)))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            print(f"closed a connection that sent an invalid RPC message: {error}", file=sys.stderr, flush=True)
            self.transport.close()

    def answer(self, number: int, name: str, parameters: list[Any]) -> list[Any]:
        method = self.table.get(name)
        if method is None:
            return [RESPONSE, number, f"the CARLA stand-in, which is not CARLA, has no method {name!r}", None]
        try:
            # Skip the first parameter, which says whether the client waits for the answer.
            return [RESPONSE, number, None, method(*parameters[1:])]
        except (TypeError, ValueError, LookupError) as error:
            print(f"{name}{tuple(parameters[1:])}: {error!r}", file=sys.stderr, flush=True)
            return [RESPONSE, number, f"the CARLA stand-in could not read the arguments of {name}", None]


class StreamConnection(asyncio.Protocol):
    """A client's stream connection. The client sends the stream's number in four bytes, and then only receives."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self in self.stream.subscribers:
            return
        self.request += data
        if len(self.request) < 4:
            return
        if struct.unpack("<I", self.request[:4])[0] != WORLD_STREAM:
            self.transport.close()
            return
        self.stream.subscribers.add(self)
        if not self.stream.paused:
            self.transport.write(self.stream.current())

    def connection_lost(self, error: Exception | None) -> None:
        self.stream.subscribers.discard(self)


class Stream:
    """A stream with its subscribers; `current` returns the first packet for a new subscriber."""

    def __init__(self, current: Callable[[], bytes]) -> None:
        self.current = current
        self.subscribers: set[StreamConnection] = set()
        self.paused = False

    def send(self, data: bytes) -> None:
        if self.paused:
            return
        for subscriber in self.subscribers:
            subscriber.transport.write(data)
