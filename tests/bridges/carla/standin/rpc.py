"""msgpack-rpc as CARLA's client speaks it: requests in, answers out, in their order."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgpack

REQUEST, RESPONSE = 0, 1


class Refused(Exception):
    """What a method answers instead of a value; the client raises RuntimeError with this text."""


class Table:
    """The methods by name; each returns what is put on the wire as the result."""

    def __init__(self) -> None:
        self.methods: dict[str, Callable[..., Any]] = {}

    def value(self, name: str, method: Callable[..., Any]) -> None:
        """A method with a result, which is answered wrapped, or with an error when it raises Refused."""
        self.methods[name] = lambda *arguments: outcome(method, arguments)

    def void(self, name: str, method: Callable[..., Any]) -> None:
        def called(*arguments: Any) -> Any:
            answer = outcome(method, arguments)
            return answer if answer[0][0] == 0 else [[False]]

        self.methods[name] = called

    def bare(self, name: str, method: Callable[..., Any]) -> None:
        """A method whose result is not wrapped."""
        self.methods[name] = method


def outcome(method: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    try:
        return [[1, method(*arguments)]]
    except Refused as refused:
        return [[0, [str(refused)]]]


class Calls(asyncio.Protocol):
    """One client's connection. While `paused`, requests are kept unanswered."""

    def __init__(self, table: Table, connections: set[Calls]) -> None:
        self.table = table
        self.connections = connections
        self.paused = False
        # A map's or a file's name is text, and so is all else but tokens, which come as binary.
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
        """Answers every request that has come in whole."""
        try:
            for kind, number, name, parameters in self.unpacker:
                if kind == REQUEST:
                    self.transport.write(msgpack.packb(self.answer(number, name, parameters)))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            print(f"closed a connection that sent no calls: {error}", file=sys.stderr, flush=True)
            self.transport.close()

    def answer(self, number: int, name: str, parameters: list[Any]) -> list[Any]:
        method = self.table.methods.get(name)
        if method is None:
            return [RESPONSE, number, f"the CARLA stand-in, which is not CARLA, has no method {name!r}", None]
        try:
            # The first parameter is the call's metadata: whether the client waits. Where not, an answer does no harm.
            return [RESPONSE, number, None, method(*parameters[1:])]
        except (TypeError, ValueError, LookupError) as error:
            print(f"{name}{tuple(parameters[1:])}: {error!r}", file=sys.stderr, flush=True)
            return [RESPONSE, number, f"the CARLA stand-in could not read the arguments of {name}", None]
