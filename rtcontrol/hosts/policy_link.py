"""The connection to an openpi policy server: a WebSocket with one question at a time, whose messages contain arrays.

A message does not contain the number of the question that it answers. So after a late or unexpected message the client
closes the connection, and opens another. After each answer the client sends a ping, and waits for the pong before the
next question: a second answer of the server would arrive before the pong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rtcontrol.hosts.protocol import DecisionLost
from rtcontrol.models.loop_thread import LoopThread

OPEN_S = 10.0  # timeout of the handshake and the server's first message
RETRY_S = 0.1  # time between a failed attempt to connect and the next attempt
LONGEST_TEXT = 300  # messages show at most this number of characters of a server's text
MOST_BYTES = 1 << 24  # maximum bytes of a message; enough for three pictures of 1280 x 720 pixels
MOST_ITEMS = 1 << 12  # maximum number of keys and values in a message; longer data must be an array
LONGEST_DTYPE = 32  # maximum number of characters in the name of a dtype
KINDS = "biufSU"  # allowed kinds of dtypes: numbers, booleans and texts, but no Python objects
ARRAY, NUMBER = b"__ndarray__", b"__npgeneric__"


# -- messages: msgpack with maps that encode NumPy arrays and numbers, as in openpi-client -----------------------------


class MalformedMessage(ValueError):
    """The error that bytes are not a valid message of a policy server, or that a value cannot be packed."""


def pack_message(value: Any) -> bytes:
    """Pack a value with arrays. Raises MalformedMessage for objects, complex numbers, and numbers over 64 bits."""
    try:
        packed: bytes = msgpack.packb(value, default=_encode_array)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedMessage(f"it cannot be packed ({error})") from None
    return packed


def unpack_message(data: bytes) -> Any:
    """Unpack an untrusted message. Arrays in the result are read-only. Raises MalformedMessage."""
    try:
        if _count_items(data) > MOST_ITEMS:
            raise ValueError(f"it has more than {MOST_ITEMS} items; send numbers as arrays")
        return msgpack.unpackb(data, object_hook=_decode_map, max_ext_len=0)
    except Exception as error:  # msgpack raises various types, also TypeError for keys that are not hashable
        raise MalformedMessage(f"it cannot be read ({type(error).__name__}: {str(error)[:80]})") from None


def _count_items(data: bytes) -> int:
    """Count the items of a message without unpacking them, up to MOST_ITEMS + 1.

    Unpacking millions of items would hold the interpreter's lock for seconds."""
    reader = msgpack.Unpacker()
    reader.feed(data)
    left = items = 1
    while left and items <= MOST_ITEMS:
        head, more = data[reader.tell()], 0
        if 0x80 <= head <= 0x8F or head in (0xDE, 0xDF):
            more = 2 * reader.read_map_header()
        elif 0x90 <= head <= 0x9F or head in (0xDC, 0xDD):
            more = reader.read_array_header()
        else:
            reader.skip()
        left, items = left - 1 + more, items + more
    return items


def _encode_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"a {type(value).__name__}")
    if value.dtype.kind not in KINDS:
        raise TypeError(f"an array of {value.dtype}")
    if isinstance(value, np.ndarray):
        return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {NUMBER: True, b"data": value.item(), b"dtype": value.dtype.str}


def _decode_map(fields: dict[Any, Any]) -> Any:
    """Return the array or number that the map `fields` encodes, or the map itself if it is an ordinary map."""
    if ARRAY not in fields and NUMBER not in fields:
        return fields
    dtype, data = np.dtype(str(fields[b"dtype"])[:LONGEST_DTYPE]), fields[b"data"]
    if dtype.kind not in (KINDS if ARRAY in fields else "biuf"):
        raise TypeError(f"an array of {dtype}")
    if NUMBER in fields:
        return dtype.type(data)
    array: np.ndarray[Any, Any] = np.ndarray(tuple(fields[b"shape"]), dtype, data)
    if array.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes of an array of shape {array.shape} and dtype {dtype.str}")
    return array


# -- the connection ----------------------------------------------------------------------------------------------------


class _ConnectWithoutRedirects(connect):
    """A WebSocket connection that does not follow redirects, which could send the key to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_socket(url: str, headers: Mapping[str, str]) -> ClientConnection:
    """Return a new connection to a policy server, without redirects, compression or automatic pings."""
    return await _ConnectWithoutRedirects(
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


async def has_message(connection: ClientConnection) -> bool:
    """Return whether a message has arrived. Raises ConnectionClosed."""
    await asyncio.sleep(0)  # let the reader task handle data that came with the last message
    try:
        async with asyncio.timeout(0):
            await connection.recv()
    except TimeoutError:
        return False
    return True


class Conversation:
    """A client that sends questions to a policy server over one connection. `connect` opens a new connection."""

    def __init__(self, url: str, connect: Callable[[], Awaitable[ClientConnection]]) -> None:
        self._url, self._connect = url, connect
        self._connection: ClientConnection | None = None
        self._attempt: asyncio.Task[None] | None = None  # last attempt to open a connection
        self._pong: Awaitable[float] | None = None  # the pong for the ping after the last answer
        self._retry_s = 0.0
        self._lock = asyncio.Lock()

    async def ask(self, packed: bytes, limit_s: float) -> bytes:
        """Send a packed question, and return the answer. Raises DecisionLost, for example after `limit_s` seconds.
        Closes the connection if there is no valid answer, or if the question is cancelled."""
        try:
            async with asyncio.timeout(limit_s), self._lock:
                message = await self._answer(packed)
        except TimeoutError:
            raise DecisionLost("timeout", "no answer came in time") from None
        except ConnectionClosed as closed:
            raise DecisionLost("connection", f"the connection to the policy server ended: {closed}") from None
        if isinstance(message, str):
            raise DecisionLost("server_error", f"the policy server failed: {last_line(message)}")
        return message

    async def _answer(self, packed: bytes) -> bytes | str:
        good = False
        try:
            connection = await self._ready_connection()
            await connection.send(packed)
            message = await connection.recv()
            with contextlib.suppress(ConnectionClosed):  # if the connection is closed, the next question opens another
                if await has_message(connection):  # a second message: either could be the answer
                    raise DecisionLost("malformed", "the policy server sent two answers")
                self._pong = await connection.ping()
            good = isinstance(message, bytes)
            return message
        finally:
            if not good:
                self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, and start to open a new connection for the next question."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = self._pong = None
            self._start_connecting()

    async def end(self) -> None:
        """Close the connection, and cancel a running attempt to connect."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        if self._connection is not None:
            self._connection.transport.abort()

    async def _ready_connection(self) -> ClientConnection:
        """Return an open connection that has no unread answers. Raises DecisionLost."""
        while True:
            if (connection := self._connection) is None:
                attempt = self._attempt
                if attempt is None or (attempt.done() and asyncio.get_running_loop().time() >= self._retry_s):
                    attempt = self._start_connecting()
                await asyncio.shield(attempt)
                continue
            with contextlib.suppress(ConnectionClosed):
                if self._pong is not None:
                    await self._pong
                if not await has_message(connection):
                    return connection
            self.disconnect()

    def _start_connecting(self) -> asyncio.Task[None]:
        self._attempt = attempt = asyncio.get_running_loop().create_task(self._open_connection())
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())  # prevent a warning by asyncio
        return attempt

    async def _open_connection(self) -> None:
        """Open a connection to the policy server. Raises DecisionLost, also for questions before the next attempt."""
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(OPEN_S):
                connection = await self._connect()
                first = await connection.recv()
            if isinstance(first, str):
                raise DecisionLost("server_error", f"the policy server failed: {last_line(first)}")
            if not isinstance(unpack_message(first), dict):
                raise MalformedMessage("it is not a map")
            self._connection = connection
            return
        except DecisionLost as error:
            lost = error
        except MalformedMessage as error:
            lost = DecisionLost("malformed", f"the first message of {self._url} is not from a policy server: {error}")
        except TimeoutError:
            lost = DecisionLost("timeout", f"{self._url} accepted no connection within {OPEN_S:g} s")
        except InvalidStatus as refused:
            status = refused.response.status_code
            hint = "; set the key for this server in RTCONTROL_POLICY_KEY" if status in (401, 403) else ""
            lost = DecisionLost("http", f"{self._url} answered HTTP {status}{hint}")
        except Exception as error:
            why = " ".join(str(error).split())[:LONGEST_TEXT]
            lost = DecisionLost("connection", f"{self._url} cannot be reached ({type(error).__name__}: {why})")
        if connection is not None:
            connection.transport.abort()
        self._retry_s = asyncio.get_running_loop().time() + RETRY_S
        raise lost


class PolicyLink:
    """A Conversation with a policy server on a background thread. Any thread may call the methods."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._conversation = Conversation(url, partial(open_socket, url, headers))
        self._thread = LoopThread("policy link")

    def ask(self, packed: bytes, limit_s: float) -> Future[bytes]:
        """Send a packed question, and return a future of the answer, which may raise DecisionLost. Cancelling the
        future closes the connection. Raises DecisionLost after `close`."""
        answer = self._thread.start_work(self._conversation.ask, packed, limit_s)
        if answer is None:
            raise DecisionLost("connection", "the link was closed")
        return answer

    def disconnect(self) -> None:
        """Close the connection after an invalid answer."""
        self._thread.schedule_call(self._conversation.disconnect)

    def close(self) -> None:
        """Close the connection, and cancel pending questions."""
        self._thread.end_loop(self._conversation.end)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def last_line(text: str) -> str:
    """Return the last line of a text (for example of a traceback), shortened to LONGEST_TEXT characters."""
    return (text.strip().splitlines() or ["no reason reported"])[-1].strip()[:LONGEST_TEXT]
