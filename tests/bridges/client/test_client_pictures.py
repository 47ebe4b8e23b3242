"""Tests of `Client.send_picture` against real servers."""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rtcontrol.envs.pictures import encode_png
from rtcontrol.serve.server import Server
from rtcontrol_client import Client, ClientError
from rtcontrol_client.wire.messages import Hello, Observe, Picture, Ping
from rtcontrol_client.wire.pictures import MAX_PICTURE_BYTES
from tests.bridges.client.worlds import OWN, until
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.conformance.check.stand import Stand
from tests.rtcontrol.serve.conftest import Bench, serving

FILE = jpeg()
SMALL = encode_png(np.zeros((4, 5, 3), np.uint8))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with serving(tmp_path / "out") as bench:
        yield bench


@pytest.fixture
def client(made: Bench) -> Iterator[Client]:
    with Client.connect(made.server.router.endpoints[0], **OWN, hz=20) as client:
        yield client


def newest(bench: Bench | Server) -> Any:
    return bench.sessions.threads()[0].env.pictures.newest


def test_picture_in_any_buffer_type_arrives(made: Bench, client: Client) -> None:
    assert client.send_picture(np.frombuffer(FILE, np.uint8))
    until(lambda: newest(made) is not None, "no picture came")
    assert newest(made).data == FILE and newest(made).format == "jpeg"
    until(lambda: client.statistics["pictures"] == {"sent": 1, "dropped": 0}, "it was not counted")


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [(b"GIF89a", {}, "neither JPEG nor PNG"), (FILE, {"t_ns": 1 << 62}, "future")],
)
def test_invalid_picture_raises_error_for_caller(client: Client, data: Any, options: Any, says: str) -> None:
    with pytest.raises(ClientError, match=says):
        client.send_picture(data, **options)


def test_no_picture_is_sent_without_server_that_accepts_pictures(stand: Stand) -> None:
    client = Client(stand.endpoint, OWN)
    assert client.send_picture(FILE) is False  # nobody has welcomed it
    hello = stand.expect(Hello, 20, "hello")
    assert "pictures" in hello.capabilities
    stand.welcome()
    stand.expect(Ping, 20, "ping")
    until(lambda: client.connected, "no session")
    assert client.send_picture(FILE) is False
    client.observe(text="x")
    stand.expect(Observe, 20, "observation")
    client.close()
    assert client.send_picture(FILE) is False
    assert not any(isinstance(message, Picture) for message in stand.heard) and not stand.broken
    assert client.statistics["pictures"] == {"sent": 0, "dropped": 3}


class Narrow:
    """A proxy that forwards the first connection to a port, but only 1000 bytes of each other connection."""

    def __init__(self, port: int) -> None:
        self._to, self._count = port, 0
        self._listener = sockets.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = sockets.create_connection(("127.0.0.1", self._to))
                self._count += 1
                for ends in ((near, far), (far, near)):
                    room = 1 << 62 if self._count == 1 else 1000
                    threading.Thread(target=self._pass, args=(*ends, room), daemon=True).start()

    def _pass(self, source: sockets.socket, sink: sockets.socket, room: int) -> None:
        with contextlib.suppress(OSError):
            while room and (data := source.recv(min(room, 65536))):
                room -= len(data)
                sink.sendall(data)
            if not room:
                threading.Event().wait()  # open, and silent

    def close(self) -> None:
        self._listener.close()


def test_stuck_pictures_delay_no_observation_and_use_no_memory(stand: Stand) -> None:
    # foxglove/ros-foxglove-bridge#126 and #196: behind large messages small ones waited, or the memory grew.
    proxy = Narrow(int(stand.endpoint.rpartition(":")[2]))
    with Client(proxy.endpoint, OWN) as client:
        stand.expect(Hello, 20, "hello")
        stand.welcome(capabilities=["pictures"])
        until(lambda: client.connected, "no session")
        large = enlarged(FILE, MAX_PICTURE_BYTES)
        before = psutil.Process().memory_info().rss
        for i in range(300):
            client.send_picture(large)
            client.observe(text=str(i))
            stand.expect(Observe, 20, "observation", lambda m, i=i: m.text == str(i))  # type: ignore[misc]
            time.sleep(0.01)
        assert psutil.Process().memory_info().rss - before < 60e6
        reported = client.statistics
        assert (
            reported["pictures"]["sent"] < 5 and reported["pictures"]["dropped"] > 290 and reported["superseded"] == 0
        )
        assert not any(isinstance(message, Picture) for message in stand.heard)
    proxy.close()
