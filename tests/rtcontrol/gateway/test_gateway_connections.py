"""More connections than there are places, none of which asks for anything: a new one is let in at once."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from gateway_served import Serve, Served
from websockets.sync.client import connect

HOST = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    f"GET /ws {HOST}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SAID = {
    "nothing": "",
    "a request, answered": f"GET /health {HOST}\r\n",
    "half a head": f"GET /health {HOST}"[:-3],
    "a head without its body": f"POST /v1/function_call {HOST}Content-Length: 99\r\n\r\n",
    "requests whose answers are not read": f"GET /app.js {HOST}\r\n" * 40,
    "a WebSocket on which nothing is said": UPGRADE,
}


@pytest.fixture(scope="module")
def noop(serve: Serve) -> Served:
    return serve(model="noop")


@contextlib.contextmanager
def held(served: Served, said: str, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        lines = []
        for _ in range(count):
            lines.append(stack.enter_context(socket.create_connection(("127.0.0.1", served.gateway.port), 10)))
            with contextlib.suppress(ConnectionError):
                lines[-1].sendall(said.encode())
        yield lines


@pytest.mark.parametrize("said", SAID)
def test_400_connections_keep_nobody_out(noop: Served, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with held(noop, SAID[said], 400):
        began = time.monotonic()
        assert httpx.get(noop.url + "health", timeout=5).status_code == 200
        with connect(noop.ws, compression=None, open_timeout=5) as line:
            line.send("{}")
            assert "error" in str(line.recv(timeout=5))
        # It took up to 20 s.
        assert time.monotonic() - began < 3
    assert "Traceback" not in caplog.text and not [r for r in caplog.records if r.exc_info]


def test_the_one_that_was_idle_for_longest_goes_first_and_one_in_use_never(noop: Served) -> None:
    with connect(noop.ws, compression=None) as spoken, held(noop, SAID["a request, answered"], 100) as first:
        spoken.send("{}")
        spoken.recv(timeout=5)
        for line in first:
            assert line.recv(65536).startswith(b"HTTP/1.1 200")
        first[0].sendall(SAID["a request, answered"].encode())  # so it is not idle for longest any more
        assert first[0].recv(65536).startswith(b"HTTP/1.1 200")
        with held(noop, "", 60):
            httpx.get(noop.url + "health")
            assert first[1].recv(1) == b""
            with pytest.raises(TimeoutError):
                first[0].settimeout(0.2)
                first[0].recv(1)
            spoken.ping().wait(5)
