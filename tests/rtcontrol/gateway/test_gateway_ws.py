"""Protocol 1.0 over /ws, with an ordinary client and with broken ones."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import pytest
from gateway_peer import Serve, Served
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from rtcontrol.gateway import websocket
from rtcontrol_client.wire import LIMITS, decode_json, encode_json
from rtcontrol_client.wire.messages import (
    CallMessage,
    Hello,
    Message,
    Observe,
    Ping,
    Pong,
    Program,
    Welcome,
)

M = TypeVar("M", bound=Message)
STATE = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"


class Line:
    """A client that reads and writes protocol messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seq = 0

    def send(self, message: Message) -> None:
        self.socket.send(encode_json(message))

    def hello(self, **options: Any) -> Welcome:
        first = {"agent": "lander", "hz": 50.0, **options}
        self.send(Hello(protocol=[1, 1], client=Program(name="test"), t_client_ns=time.monotonic_ns(), **first))
        self.welcome = self.until(Welcome)
        return self.welcome

    def observe(self) -> None:
        self.seq += 1
        token, epoch = self.welcome.session, self.welcome.epoch
        self.send(Observe(session=token, seq=self.seq, epoch=epoch, t_ns=time.monotonic_ns(), text=STATE))

    def until(self, kind: type[M], timeout_s: float = 20.0) -> M:
        give_up = time.monotonic() + timeout_s
        while not isinstance(message := decode_json(self.socket.recv(timeout=give_up - time.monotonic())), kind):
            pass
        return message

    def call(self) -> CallMessage:
        """Return the call for an observation."""
        self.observe()
        return self.until(CallMessage)


@contextmanager
def line(served: Served, **options: Any) -> Iterator[Line]:
    # A queue that nobody reads any more hears of no end.
    with connect(served.ws, compression=None, close_timeout=0.2, **options) as socket:
        yield Line(socket)


def raw_socket(served: Served) -> socket.socket:
    """Return the socket of an open WebSocket, which no client reads."""
    bare = socket.create_connection(("127.0.0.1", served.gateway.port), timeout=20)
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    bare.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{served.gateway.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += bare.recv(1)
    assert b" 101 " in answer
    return bare


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """Return a client's frame that is masked with zeros."""
    first = bytes([(0x80 if fin else 0) | opcode])
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack("!H", size)
    return first + length + b"\0\0\0\0" + payload


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "malformed"),
        ('{"type": "observe", "session": "' + "s" * 32 + '", "seq": 1, "epoch": 0, "t_ns": 1, "text": "x"}', "state"),
        (b"\x81\xa4type\xa4ping", "malformed"),
    ],
)
def test_malformed_message_is_refused_and_connection_stays(served: Served, text: str | bytes, code: str) -> None:
    with line(served) as client:
        client.socket.send(text)
        error = json.loads(client.socket.recv(timeout=10))
        assert error["type"] == "error" and error["code"] == code
        client.send(Ping(id=1, t_ns=1))
        assert client.until(Pong)


def test_closed_connection_gets_queued_messages(served: Served) -> None:
    with line(served) as client:
        client.hello()
        for connection in list(served.sessions.core.peers):
            connection.send(Pong(id=7, t_ping_ns=0, t_received_ns=0, t_sent_ns=0))
            connection.close()
        assert client.until(Pong).id == 7
        with pytest.raises(ConnectionClosed) as caught:
            client.until(Pong)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000


def test_a_message_above_the_limit_ends_the_connection(served: Served) -> None:
    with line(served) as client, pytest.raises(ConnectionClosed) as caught:
        client.socket.send('{"type": "ping", "x": "' + "x" * LIMITS.max_message_bytes)
        while True:
            client.socket.recv(timeout=10)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009


def test_slow_reader_is_cut_off_alone(served: Served) -> None:
    with line(served) as honest, raw_socket(served) as slow:
        honest.hello(hz=50.0)
        # It asks and asks, and reads no answer.
        ask = encode_json(Ping(id=1, t_ns=1)).encode()
        slow.settimeout(0.05)
        cut = False
        give_up = time.monotonic() + 20
        while not cut:
            assert time.monotonic() < give_up, "still connected after 20 s without reading"
            try:
                slow.sendall(frame(1, ask) * 200)
            except TimeoutError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                cut = True
            honest.call()


def test_websockets_leave_room_for_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_CONNECTIONS", 2)
    few = serve(model="noop")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connect(few.ws, compression=None)) for _ in range(3)]
        with pytest.raises(ConnectionClosed, match="too many connections"):
            lines[2].recv(timeout=8)
        assert httpx.get(few.url + "health", timeout=8).status_code == 200
