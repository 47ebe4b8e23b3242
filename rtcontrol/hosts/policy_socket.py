"""A WebSocket as policy servers have it: no redirect, no compression, no ping of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rtcontrol.hosts.array_message import MOST_BYTES


class _Straight(connect):
    """A redirect is an answer like any other status: the key goes where its owner sent it, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_socket(url: str, headers: Mapping[str, str]) -> ClientConnection:
    """Return a new connection. Raises OSError, and what websockets raises for an answer that is none."""
    return await _Straight(
        url,
        compression=None,
        max_size=MOST_BYTES,
        additional_headers=dict(headers),
        open_timeout=None,
        ping_interval=None,
        close_timeout=0.0,
        proxy=None,
        max_queue=2,
    )


async def send(connection: ClientConnection, packed: bytes) -> None:
    """Send a message; where the connection has ended its reader reports it."""
    with contextlib.suppress(ConnectionClosed):
        await connection.send(packed)


async def has_more(connection: ClientConnection) -> bool:
    """Return whether another message is there."""
    await asyncio.sleep(0)  # what came right behind the last one is with its reader
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except TimeoutError:
        return False
    except ConnectionClosed:
        return False  # the next look reports it
    return True
