"""The C# client with a list of servers: which one it goes to next, and what it resumes there."""

from __future__ import annotations

import signal
import socket as sockets
from collections.abc import Iterator

import pytest

from rtcontrol_client.wire.messages import Bye, ErrorMessage, Hello
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.unity.mono import Driver, Start
from tests.conformance.check.stand import Stand

BUSY = {"code": "busy", "message": "Full.", "retryable": True}

TTL_MS = 500


@pytest.fixture
def two() -> Iterator[tuple[Stand, Stand, str]]:
    """Two servers of which each word is the test's, and the list of their endpoints."""
    stands = Stand("tcp://127.0.0.1:*"), Stand("tcp://127.0.0.1:*")
    yield *stands, ", ".join(stand.endpoint for stand in stands)
    for one in stands:
        one.close()


def fly(driver: Start, endpoint: str, *more: str) -> Driver:
    return driver("run", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS), *more)


def test_client_of_a_killed_server_goes_on_at_the_other_one_and_back_where_that_one_hangs(
    driver: Start, own_server: Process, server: Process
) -> None:
    # eclipse-paho/paho.mqtt.javascript#204: the second failover tried the first server no more.
    flying = fly(driver, f"{own_server.endpoint},{server.endpoint}")
    flying.event("call")
    assert flying.stats()["address"] == own_server.endpoint
    own_server.kill()
    flying.event("lost")
    flying.event("connected")
    flying.event("call")
    stats = flying.stats()
    assert (stats["address"], stats["sessions"], stats["too_old"]) == (server.endpoint, 2, 0)
    own_server.start()
    server.signal(signal.SIGSTOP)
    try:
        assert flying.event("safe")["cause"] == "expired"
        flying.event("connected")
        flying.event("call")
        stats = flying.stats()
        assert (stats["address"], stats["ended"], stats["too_old"]) == (own_server.endpoint, None, 0)
    finally:
        server.signal(signal.SIGCONT)


def test_session_is_resumed_at_the_next_server_and_begun_anew_where_it_is_unknown(
    driver: Start, two: tuple[Stand, Stand, str]
) -> None:
    # colyseus/colyseus-unity-sdk#223, #166: the token was not sent when the client reconnected; its session was over.
    first, second, endpoints = two
    flying = driver("run", "--endpoint", endpoints, "--ttl-ms", "60000")
    first.expect(Hello, 20.0, "hello")
    first.welcome(ttl_ms=60_000.0)
    first.call(first.observation(), ttl_ms=60_000.0)
    flying.event("call")
    first.alive = False
    assert second.expect(Hello, 20.0, "hello at the next server").resume == first.token
    stats = flying.stats()
    assert stats["in_force"] == "call", "what is in force runs to its own end"
    second.welcome(resumed=True, session=first.token)
    flying.event("connected")
    assert flying.stats()["resumed"] == 1
    second.token, second.alive = first.token, False
    hello = first.expect(Hello, 20.0, "hello at the first server")
    assert not flying.stats()["clock_known"], "of another machine the clock is another one"
    first.send(ErrorMessage(code="session", message="Unknown.", retryable=True, t_client_ns=hello.t_client_ns))
    assert first.expect(Hello, 5.0, "hello for a new session").resume is None, "the same server is told"
    first.alive = True
    first.welcome()
    assert flying.event("safe")["cause"] == "new_session", "nobody would end the call of a session that is gone"


@pytest.mark.parametrize("fatal", [False, True])
def test_server_that_is_full_or_stops_is_left_for_the_next_one(
    driver: Start, two: tuple[Stand, Stand, str], fatal: bool
) -> None:
    first, second, endpoints = two
    flying = fly(driver, endpoints)
    hello = first.expect(Hello, 20.0, "hello")
    first.send(ErrorMessage(**BUSY, fatal=fatal, t_client_ns=hello.t_client_ns))
    second.expect(Hello, 5.0, "hello at the next server")
    second.welcome()
    second.call(second.observation())
    flying.event("call")
    second.send(Bye(session=second.token, reason="stopped"))
    assert flying.event("safe")["cause"] == "session_ended"
    assert first.expect(Hello, 5.0, "hello after the bye").resume is None
    assert flying.stats()["ended"] is None, "the bye of a server that stops ends no client that has another one"


def test_servers_that_are_absent_or_say_nothing_keep_nobody_out(driver: Start, stand: Stand) -> None:
    # fsprojects/pulsar-client-dotnet#213: the first of a list did not answer, and the second one was never tried.
    with sockets.create_server(("127.0.0.1", 0)) as mute:
        absent, silent = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        flying = fly(driver, f"{absent},{silent},{stand.endpoint}")
        stand.expect(Hello, 30.0, "hello at the third server")
        stand.welcome()
        flying.event("connected")
        assert flying.stats()["address"] == stand.endpoint


@pytest.mark.parametrize(
    ("endpoints", "told"),
    [
        ("tcp://127.0.0.1:9,", "an empty place"),
        ("tcp://127.0.0.1:9,127.0.0.1:8", "give one such as tcp://127.0.0.1:5555"),
        ("tcp://127.0.0.1:9, tcp://127.0.0.1:9", "tcp://127.0.0.1:9 comes twice"),
    ],
)
def test_list_that_is_none_is_told_to_the_caller(driver: Start, endpoints: str, told: str) -> None:
    assert told in driver("run", "--endpoint", endpoints).failure()
