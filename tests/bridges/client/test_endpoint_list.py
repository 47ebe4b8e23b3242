"""A client with a list of servers: which one it goes to when one dies, hangs, stops or is full, and what is in force
meanwhile."""

from __future__ import annotations

import signal
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client import Client, ClientError, Crowd
from rtcontrol_client.client.connection import S, ServerConnection
from rtcontrol_client.wire import Code, decode_msgpack
from rtcontrol_client.wire.endpoint import EndpointError, endpoints_of
from rtcontrol_client.wire.messages import ErrorMessage, Hello, Observe, Picture
from tests.bridges.client.worlds import OWN, STRAIGHT, Joining, Process, free_port, until, until_fresh_at
from tests.conformance.check.stand import Stand
from tests.helpers.processes import python

MS = 1_000_000
WRONG = [
    ("tcp://127.0.0.1:5555,", "empty place"),
    ("tcp://127.0.0.1:5555,,tcp://127.0.0.1:5556", "empty place"),
    ("tcp://127.0.0.1:5555,127.0.0.1:5556", "127.0.0.1:5556 is no endpoint.*Did you mean tcp://127.0.0.1:5556"),
    ("tcp://127.0.0.1:5555, tcp://127.0.0.1:5555", "comes twice"),
    ("tcp://127.0.0.1:5555,tcp://127.0.0.1", "names no port"),
    ("tcp://127.0.0.1:5555,tcp://127.0.0.1:*", "names no port"),
    ("tcp://127.0.0.1:5555,http://127.0.0.1:8080", "http://127.0.0.1:8080 names no path"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Process]]:
    first, second = (Process(tmp_path_factory.mktemp(n), free_port(), "--max-sessions", "1") for n in "ab")
    yield first, second
    first.stop()
    second.stop()


@pytest.fixture
def two(pair: tuple[Process, Process]) -> tuple[Process, Process]:
    """Two servers that know nothing of each other; both run when a test begins."""
    for server in pair:
        if server.process is None or server.process.poll() is not None:
            server.start()
    return pair


@pytest.fixture
def stands() -> Iterator[tuple[Stand, Stand]]:
    both = Stand("tcp://127.0.0.1:*"), Stand("tcp://127.0.0.1:*")
    yield both
    for one in both:
        one.close()


def listed(*servers: Process | Stand) -> str:
    return ",".join(server.endpoint for server in servers)


def test_client_of_a_killed_server_goes_on_at_the_other_one_and_back_when_that_one_is_killed(
    two: tuple[Process, Process],
) -> None:
    # eclipse/paho.mqtt.javascript#204, eclipse/paho.mqtt.c#989: the second failover tried the first server no more.
    first, second = two
    with Client.connect(listed(first, second), **OWN, hz=20, ttl_ms=400) as client:
        until_fresh_at(client, first.endpoint)
        first.kill()
        until_fresh_at(client, second.endpoint)
        first.start()
        second.kill()
        until_fresh_at(client, first.endpoint)
        assert client.error is None
        assert client.statistics["sessions"] == 3, "they share no sessions: each time it begins a new one"


def test_call_in_force_ends_by_its_time_to_live_while_a_server_hangs_and_the_next_one_decides(
    two: tuple[Process, Process],
) -> None:
    first, second = two
    with Client.connect(listed(first, second), **OWN, hz=20, ttl_ms=400) as client:
        until_fresh_at(client, first.endpoint)
        first.signal(signal.SIGSTOP)
        until(lambda: client.call().status == "safe", "a call outlives its ttl")
        assert client.call().arguments == STRAIGHT["arguments"]
        until_fresh_at(client, second.endpoint)
        first.signal(signal.SIGCONT)


def test_client_of_a_server_that_is_stopped_or_full_is_let_in_by_the_other_one(two: tuple[Process, Process]) -> None:
    first, second = two
    with Client.connect(first.endpoint, **OWN) as other, Client.connect(listed(first, second), **OWN) as client:
        until_fresh_at(client, second.endpoint)
        assert "busy" in str(client.statistics["last_error"])
        other.close()
        assert second.end() == 128 + signal.SIGTERM
        until_fresh_at(client, first.endpoint)
        assert client.error is None, "the bye of a server that stops ends no client that has another one"


def test_crowd_of_a_killed_server_joins_the_other_one(two: tuple[Process, Process]) -> None:
    first, second = two
    options: dict[str, Any] = {"agent": "lander", "hz": 20}
    with Crowd.connect(listed(first, second), **options) as crowd:
        crowd.join("anna", ttl_ms=400)
        seen = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"

        def fresh() -> bool:
            crowd.observe({"anna": seen})
            crowd.wait(0.05)
            return crowd.call("anna").status == "fresh"

        until(fresh, "no fresh call")
        first.kill()
        until(lambda: crowd.call("anna").status == "safe", "a call outlives its ttl")
        until(fresh, "no fresh call at the other server")
        assert crowd.address == second.endpoint


def test_first_server_that_is_not_there_or_takes_connections_and_says_nothing_keeps_nobody_out() -> None:
    # fsprojects/pulsar-client-dotnet#213: the first of a list did not answer, and the second one was never tried.
    with sockets.create_server(("127.0.0.1", 0)) as mute:
        there = Stand("tcp://127.0.0.1:*")
        absent, silent = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        try:
            there.endpoint = f"{absent},{silent},{there.endpoint}"
            joining = Joining(there)
            there.expect(Hello, 30, "hello at the third server")
            there.welcome()
            joining.thread.join(30)
            assert joining.client is not None
            joining.client.close()
        finally:
            there.close()


def test_session_is_resumed_at_the_next_server_and_begun_anew_where_it_is_unknown(stands: tuple[Stand, Stand]) -> None:
    first, second = stands
    options: dict[str, Any] = {**OWN, "ttl_ms": 60_000.0}
    with Client(listed(first, second), options) as client:
        first.expect(Hello, 10, "hello")
        first.welcome(ttl_ms=60_000.0)
        until(lambda: client.connected)
        client.observe(text="left 40")
        first.call(first.expect(Observe, 10, "observation"), ttl_ms=60_000.0)
        until(lambda: client.call().status == "fresh")
        until(lambda: "offset_ms" in client.statistics["clock"] or not first.pump(0.05), "clocks are not compared")
        token = first.token
        first.close()
        hello = second.expect(Hello, 10, "hello at the next server")
        assert hello.resume == token
        assert client.call().status == "fresh", "what is in force runs to its own end"
        second.send(
            ErrorMessage(
                code=Code.SESSION,
                message="No such session.",
                retryable=True,
                field="resume",
                t_client_ns=hello.t_client_ns,
            )
        )
        anew = second.expect(Hello, 10, "hello for a new session")
        assert anew.resume is None
        assert client.statistics["clock"] == {}, "of another machine the clock is another one"
        second.welcome()
        until(lambda: client.connected)
        assert client.call().status == "safe", "nobody would end the call of a session that is gone"


def test_pictures_follow_the_session_to_the_next_server(tmp_path: Path) -> None:
    first = Stand("tcp://127.0.0.1:*")
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "seen.jpg")
    seen = (tmp_path / "seen.jpg").read_bytes()
    try:
        with Client(f"{first.endpoint},tcp://127.0.0.1:{port}", dict(OWN)) as client:
            first.expect(Hello, 10, "hello")
            first.welcome(capabilities=["pictures"])
            until(lambda: client.connected)
            assert client.send_picture(seen)
            until(lambda: client.statistics["pictures"]["sent"] == 1)
            first.close()
            end_s, pictured = time.monotonic() + 30, False
            second = first
            while not pictured and time.monotonic() < end_s:
                client.send_picture(seen)
                if not router.poll(100):
                    continue
                peer, *parts = router.recv_multipart()
                message = decode_msgpack(parts)
                if isinstance(message, Hello):
                    second.peer, second.hello, second._socket = peer, message, router
                    second.welcome(resumed=True, capabilities=["pictures"], heartbeat_ms=60_000.0)
                pictured = isinstance(message, Picture)
            assert pictured, "the picture did not reach the next server"
    finally:
        router.close(0)


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_wrong_list_is_refused_with_words(wrong: str, says: str) -> None:
    with pytest.raises(ClientError, match=says):
        Client.connect(wrong, **OWN)


def test_listening_client_takes_no_list() -> None:
    with pytest.raises(ClientError, match="has one address"):
        Client.listen("tcp://127.0.0.1:7001,tcp://127.0.0.1:7002", **OWN)


@pytest.mark.parametrize("name", ["ros2", "carla"])
def test_bridge_refuses_a_wrong_list_before_anything_is_started(name: str, tmp_path: Path) -> None:
    given = ["--config", str(tmp_path / "robot.yaml")] if name == "ros2" else []
    if given:
        made = python("-m", "rtcontrol_client.ros2", "--example")
        (tmp_path / "robot.yaml").write_text(made.stdout)
    ended = python("-m", f"rtcontrol_client.{name}", *given, "--connect", "tcp://127.0.0.1:5555,tcp://127.0.0.1:*")
    assert ended.returncode == 2
    assert "names no port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_path_of_one_socket_may_have_commas() -> None:
    assert endpoints_of("ipc:///tmp/a,b") == ("ipc:///tmp/a,b",)


ENDPOINTS = st.builds(lambda host, port: f"tcp://10.0.0.{host}:{port}", st.integers(1, 9), st.integers(1, 65_535))


@given(st.lists(ENDPOINTS, min_size=1, max_size=5))
def test_list_is_taken_in_its_order_or_its_double_is_named(endpoints: list[str]) -> None:
    if len(set(endpoints)) == len(endpoints):
        assert endpoints_of(" , ".join(endpoints)) == tuple(endpoints)
    else:
        with pytest.raises(EndpointError, match="comes twice"):
            endpoints_of(",".join(endpoints))


@given(refusals=st.integers(1, 12), addresses=st.integers(1, 5))
@settings(deadline=None)
def test_one_server_that_is_full_is_asked_again_and_of_several_the_next_one_is(refusals: int, addresses: int) -> None:
    connection, now_ns = ServerConnection((0.1, 2.0), 0, listens=False), 0
    connection.addresses = addresses
    for _ in range(refusals):
        connection.connected(now_ns)
        assert connection.greets(now_ns)
        connection.refused(now_ns)
        leaves = connection.dead(now_ns) is not None
        assert leaves == (addresses > 1)
        if leaves:
            connection.lost(now_ns, "full")
            assert not connection.opens(now_ns), "all that are full are asked in turns, not at once"
            now_ns += 2 * S + 1
            assert connection.opens(now_ns)
        else:
            assert not connection.greets(now_ns)
            now_ns += 4 * S
            assert connection.greets(now_ns)
