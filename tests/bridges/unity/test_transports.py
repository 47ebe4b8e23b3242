"""The two transports: bytes through both ways, keys over libzmq."""

from __future__ import annotations

import ctypes.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rtcontrol.serve import zmq_auth
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.unity.conftest import DLLMAP
from tests.bridges.unity.mono import Driver, Start

needs_libzmq = pytest.mark.skipif(
    ctypes.util.find_library("zmq") is None, reason="libzmq missing: apt-get install libzmq5"
)


@pytest.fixture
def echo() -> Iterator[str]:
    """A ROUTER that sends back whatever comes, and pings all the while."""
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 20)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if socket.poll(50):
                socket.send_multipart(socket.recv_multipart())
        socket.close(linger=0)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{port}"
    ended.set()
    thread.join()


@pytest.mark.parametrize("size", [0, 200, 255, 256, 100_000, 1_000_000])
def test_messages_of_any_size_come_back_as_they_were(driver: Start, echo: str, size: int) -> None:
    times = 500 if size < 1000 else 5_000_000 // size
    one = driver("echo", "--endpoint", echo, "--bytes", str(size), "--times", str(times))
    print(f"{size} bytes: {one.answer()['round_trip_ms']}")
    assert one.process.wait(10) == 0


@needs_libzmq
def test_libzmq_transport_flies_resumes_and_closes(driver: Start, own_server: Process) -> None:
    flying = driver("run", "--endpoint", own_server.endpoint, "--libzmq", "1")
    flying.event("call")
    own_server.kill()
    flying.event("safe", cause="expired")
    own_server.start()
    flying.event("connected")
    flying.event("call")
    stats = flying.stats()
    closed = flying.close()
    print(f"dispose {closed['dispose_ms']:.1f} ms")
    assert (stats["too_old"], stats["sessions"], closed["in_force"]) == (0, 2, "safe")
    assert flying.process.wait(10) == 0


@needs_libzmq
def test_server_with_keys_takes_listed_clients_and_no_others(driver: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for name in (zmq_auth.SERVER, "arm", "stranger"):
        zmq_auth.create(keys, name)
    (keys / "stranger.key").unlink()
    server = Process(tmp_path, free_port(), "--keys", str(keys))
    server.start()
    try:
        driver("run", "--endpoint", server.endpoint, "--keys", str(keys / "arm.key_secret")).event("call")
        stranger = driver(
            "run", "--endpoint", server.endpoint, "--keys", str(keys / "stranger.key_secret"), "--seconds", "3"
        )
        plain = driver("run", "--endpoint", server.endpoint, "--seconds", "3")
        stats = stranger.event("stats")["stats"]
        assert (stats["sessions"], "does not accept this key" in stats["trouble"]) == (0, True)
        assert "wants a key" in plain.event("stats")["stats"]["trouble"]
    finally:
        server.stop()


def test_key_file_that_is_none_or_cannot_be_read_is_named(driver: Start, tmp_path: Path) -> None:
    empty = tmp_path / "empty.key_secret"
    empty.write_text("")
    for path, told in (
        (empty, "no public-key in"),
        (tmp_path / "none.key_secret", "cannot be read"),
        (tmp_path, "cannot be read"),
    ):
        said = driver("run", "--endpoint", "tcp://127.0.0.1:5555", "--keys", str(path)).failure()
        assert f"WireException: keys: {path} {told}" in said or f"WireException: keys: {told} {path}" in said, said


def test_missing_libzmq_is_told_with_what_to_do(exe: Path, tmp_path: Path) -> None:
    alone = tmp_path / "driver.exe"
    shutil.copy(exe, alone)
    alone.with_suffix(".exe.config").write_text(DLLMAP.replace("libzmq.so.5", "libzmq-that-is-not-there.so"))
    said = Driver(alone, "run", "--endpoint", "tcp://127.0.0.1:5555", "--libzmq", "1").failure()
    assert "WireException: keys: libzmq cannot be loaded" in said
    assert "Assets/Plugins" in said


@needs_libzmq
def test_nobody_there_is_told_over_libzmq_too(driver: Start) -> None:
    one = driver("run", "--endpoint", f"tcp://127.0.0.1:{free_port()}", "--libzmq", "1", "--seconds", "1")
    assert "nobody answers" in one.event("stats")["stats"]["trouble"]
