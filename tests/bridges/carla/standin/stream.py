"""The stream of world states: a packet to each subscriber at once, then one a step."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from tests.bridges.carla.standin.wire import WORLD_STREAM

# A client that does not read loses packets above this rather than filling the server's memory.
MOST_WAITING_BYTES = 4 * 1024 * 1024


class Subscriber(asyncio.Protocol):
    """One client's connection: it names the stream in four bytes and then only listens."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self in self.stream.subscribers:
            return
        self.asked += data
        if len(self.asked) < 4:
            return
        if struct.unpack("<I", self.asked[:4])[0] != WORLD_STREAM:
            self.transport.close()
            return
        self.stream.subscribers.add(self)
        if not self.stream.paused and not self.stream.reticent:
            self.send(self.stream.current())

    def connection_lost(self, error: Exception | None) -> None:
        self.stream.subscribers.discard(self)

    def send(self, data: bytes) -> None:
        if self.transport.get_write_buffer_size() < MOST_WAITING_BYTES:
            self.transport.write(data)


class Stream:
    """All subscribers; `current` makes the packet a new one is greeted with."""

    def __init__(self, current: Callable[[], bytes]) -> None:
        self.current = current
        self.subscribers: set[Subscriber] = set()
        self.paused = self.reticent = False

    def send(self, data: bytes) -> None:
        if self.paused:
            return
        for subscriber in self.subscribers:
            subscriber.send(data)
