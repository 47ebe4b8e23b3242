"""`Client.send_picture`, against real servers."""

from __future__ import annotations

import array
import contextlib
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rtcontrol.envs.pictures import png
from rtcontrol.serve.server import Server
from rtcontrol_client import Client, ClientError
from rtcontrol_client.wire.messages import Hello, Observe, Picture, Ping
from rtcontrol_client.wire.pictures import MAX_PICTURE_BYTES
from tests.bridges.client.worlds import OWN, Proxy, until
from tests.bridges.wire.test_picture_files import enlarged, jpeg
from tests.conformance.check.stand import Stand
from tests.rtcontrol.serve.conftest import Bench, serving

FILE = jpeg()
SMALL = png(np.zeros((4, 5, 3), np.uint8))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with serving(tmp_path / "out") as bench:
        yield bench


@pytest.fixture
def client(made: Bench) -> Iterator[Client]:
    with Client.connect(made.server.endpoints[0], **OWN, hz=20) as client:
        yield client


def newest(bench: Bench | Server) -> Any:
    return bench.admission.all()[0].env.pictures.newest


@pytest.mark.parametrize("data", [FILE, bytearray(FILE), memoryview(FILE), array.array("B", FILE)])
def test_a_picture_arrives_whatever_holds_its_bytes(made: Bench, client: Client, data: Any) -> None:
    assert client.send_picture(data)
    until(lambda: newest(made) is not None, "no picture came")
    assert newest(made).data == FILE and newest(made).format == "jpeg"
    until(lambda: client.statistics["pictures"] == {"sent": 1, "dropped": 0, "refused": 0}, "it was not counted")


def test_an_array_of_numpy_is_taken_and_its_instant_is_the_callers(made: Bench, client: Client) -> None:
    client.observe(text="x")
    until(lambda: client.statistics["fresh"] > 0, "no call")
    taken_ns = time.monotonic_ns() - 5_000_000_000
    assert client.send_picture(np.frombuffer(SMALL, np.uint8), t_ns=taken_ns)
    until(lambda: newest(made) is not None, "no picture came")
    assert newest(made).format == "png" and newest(made).t_ns <= taken_ns + 1_000_000_000


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (b"GIF89a", {}, "neither JPEG nor PNG"),
        (FILE[:-30], {}, "cut off"),
        (b"\xff\xd8", {}, "neither JPEG nor PNG"),
        (enlarged(FILE, MAX_PICTURE_BYTES + 1), {}, "at most"),
        ("a path", {}, "shows no bytes"),
        (FILE, {"t_ns": 1 << 62}, "future"),
        (FILE, {"t_ns": "now"}, "t_ns"),
    ],
)
def test_what_is_no_picture_is_told_to_the_caller(client: Client, data: Any, options: Any, says: str) -> None:
    with pytest.raises(ClientError, match=says):
        client.send_picture(data, **options)


def test_the_newest_of_many_is_sent_and_the_others_are_counted(made: Bench, client: Client) -> None:
    files = [png(np.full((4, 5, 3), shade, np.uint8)) for shade in range(200)]
    assert all(client.send_picture(file) for file in files)
    until(lambda: (seen := newest(made)) is not None and seen.data == files[-1], "the newest one did not come")
    counts = lambda: client.statistics["pictures"]  # noqa: E731
    until(lambda: counts()["sent"] + counts()["dropped"] == 200, "not all were counted")
    assert counts()["dropped"] > 100 and counts()["refused"] == 0


def test_nothing_is_sent_to_a_server_that_takes_no_pictures_nor_without_one() -> None:
    stand = Stand("tcp://127.0.0.1:*")
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
    assert client.statistics["pictures"] == {"sent": 0, "dropped": 3, "refused": 0}
    stand.close()


class Narrow(Proxy):
    """Passes the first connection on; of each other one the handshake, and then nothing."""

    def _pass(self, source: sockets.socket, sink: sockets.socket) -> None:
        if source in self._open[:2]:
            super()._pass(source, sink)
            return
        with contextlib.suppress(OSError):
            passed = 0
            while passed < 1000 and (data := source.recv(1000 - passed)):
                passed += len(data)
                sink.sendall(data)


def test_pictures_that_get_stuck_delay_no_observation_and_take_no_memory() -> None:
    # foxglove/ros-foxglove-bridge#126 and #196: behind large messages small ones waited, or the memory grew.
    stand = Stand("tcp://127.0.0.1:*")
    proxy = Narrow(int(stand.endpoint.rpartition(":")[2]))
    with Client(proxy.endpoint, OWN) as client:
        stand.expect(Hello, 20, "hello")
        stand.welcome(capabilities=["pictures"])
        until(lambda: client.connected, "no session")
        large = enlarged(FILE, MAX_PICTURE_BYTES)
        before = psutil.Process().memory_info().rss
        for i in range(300):
            assert client.send_picture(large)
            client.observe(text=str(i))
            stand.expect(Observe, 20, "observation", lambda m, i=i: m.text == str(i))  # type: ignore[misc]
            time.sleep(0.01)
        assert psutil.Process().memory_info().rss - before < 60e6
        told = client.statistics
        assert told["pictures"]["sent"] < 5 and told["pictures"]["dropped"] > 290 and told["superseded"] == 0
        assert not any(isinstance(message, Picture) for message in stand.heard)
    proxy.close()
    stand.close()


def test_it_goes_on_after_its_connections_were_cut(made: Bench) -> None:
    proxy = Proxy(int(made.server.endpoints[0].rpartition(":")[2]))
    with Client.connect(proxy.endpoint, **OWN, hz=20) as client:
        for file in (FILE, SMALL):
            until(lambda: client.send_picture(file), "not in session", every=0.1)  # noqa: B023
            until(lambda: (seen := newest(made)) is not None and seen.data == file, "no picture", every=0.1)  # noqa: B023
            proxy.cut()
            until(lambda: client.statistics["resumed"] > 0, "not resumed")
    proxy.close()
