"""The C# client against real servers: at work, stopped, killed, restarted, cut off, and against what is no server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rtcontrol_client.wire.messages import Hello
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.program import garbage
from tests.bridges.unity.mono import Driver, Start
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand

TTL_MS = 500


def fly(driver: Start, endpoint: str, *more: str) -> Driver:
    return driver("run", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS), *more)


def test_conforms_as_the_checker_of_clients_sees_it(driver: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    flying = fly(driver, endpoint, "--hz", "20")
    findings = check_any_client(endpoint)
    assert [f.name for f in findings if f.status != "passed"] == [], findings
    assert flying.process.poll() is None


def test_flies_at_16_hz_and_never_executes_what_is_too_old(driver: Start, server: Process) -> None:
    by_name = server.endpoint.replace("127.0.0.1", "localhost")
    flying = fly(driver, by_name, "--hz", "16", "--seconds", "4")
    stats = flying.event("stats")["stats"]
    closed = flying.event("closed")
    print(f"at 16 Hz: {stats}; dispose {closed['dispose_ms']:.1f} ms")
    assert stats["executed"] > 20
    assert (stats["too_old"], stats["errors"], stats["failed"], stats["refused"]) == (0, 0, 0, 0)
    assert closed["in_force"] == "safe"
    assert stats["clock_known"]
    # The real server tells when it ticks.
    assert -1 < stats["next_ms"] <= 1e3 / 16
    # The last act is safe, carried out after the client was closed.
    assert [e["name"] for e in flying.events if e["event"] in ("call", "safe")][-1] == "stop"


def test_lockstep_gets_one_call_for_each_observation(driver: Start, server: Process) -> None:
    told = driver("lockstep", "--endpoint", server.endpoint, "--times", "300").answer()
    print(f"lockstep: {told['round_trip_ms']}")
    assert told["counts"] == 300
    assert told["answered"] > 250


def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(driver: Start, own_server: Process) -> None:
    flying = fly(driver, own_server.endpoint)
    flying.event("call")
    flying.say("instruct Go home.")
    flying.say("stuck 3")
    own_server.kill()
    flying.event("lost")
    safe = flying.event("safe")
    # Its first tries failed.
    assert [e["attempt"] for e in flying.events if e["event"] == "stuck"] == [1, 2, 3]
    calls = [e for e in flying.events if e["event"] == "call"]
    assert safe["cause"] == "expired"
    assert safe["name"] == "stop"
    print(f"safe {safe['at_ms'] - calls[-1]['at_ms'] + calls[-1]['age_ms']:.0f} ms after the last call's observation")
    began = time.monotonic()
    own_server.start()
    up = time.monotonic()
    flying.event("connected")
    flying.event("call")
    print(f"back {time.monotonic() - up:.2f} s after the server listened, {up - began:.1f} s of start")
    stats = flying.stats()
    assert (stats["sessions"], stats["instruction"], stats["ended"]) == (2, "Go home.", None)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
FRAME = b"\x00\x05hello"
SILENCE = "nobody answers|the peer says nothing"  # the second once the time for a handshake is over
# What it sends, and what the client then tells a person, as a pattern.
GARBAGE: dict[str, tuple[list[bytes | None], str]] = {
    "silence": ([], SILENCE),
    "a web server": ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "speaks no ZeroMQ"),
    "closed at once": ([None], "closed the connection at once"),
    "random bytes": ([bytes(range(1, 256)) * 40], "speaks no ZeroMQ"),
    "a greeting of CURVE": ([GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15))], "wants CURVE keys"),
    "half a greeting": ([GREETING[:30]], SILENCE),
    "noise for ready": ([GREETING, b"\xff" * 1000], "no ZMTP frames"),
    "ready that ends in the middle": ([GREETING, READY[:-6] + b"\x00" * 6], "is a"),
    "the wrong type": ([GREETING, READY.replace(b"\x1c", b"\x19").replace(b"\x06ROUTER", b"\x03PUB")], "PUB socket"),
    "a frame of 2^60 bytes": ([GREETING, READY, b"\x02\x10" + bytes(7) + b"x" * 100], "a frame of 1152921504606846976"),
    "a message without end": ([GREETING, READY, b"\x01\x05hello" * 200_000], "says nothing"),
    "a message of 40 parts": ([GREETING, READY, b"\x01\x05hello" * 39 + FRAME], "says nothing"),
    "messages that are none": ([GREETING, READY, FRAME * 5000], "says nothing"),
    "commands that are none": ([GREETING, READY, b"\x04\x05\xffaaaa" * 5000, b"\x04\x00" * 10], "says nothing"),
    "pings": ([GREETING, READY, b"\x04\x0f\x04PING\x00\x64contextx" * 20_000], "says nothing"),
}


@pytest.fixture(scope="module")
def met_garbage(exe: Path) -> Iterator[dict[str, tuple[Driver, list[int]]]]:
    """A client for each kind, all at the same time."""
    with ExitStack() as stack:
        flying: dict[str, tuple[Driver, list[int]]] = {}
        for kind, (parts, told) in GARBAGE.items():
            address, met = stack.enter_context(garbage(parts))
            ends = ("--seconds", "1") if told == SILENCE else ("--until", told)
            one = Driver(exe, "run", "--endpoint", f"tcp://{address}", "--ttl-ms", str(TTL_MS), *ends)
            stack.callback(one.end)
            flying[kind] = one, met
        yield flying


@pytest.mark.parametrize("kind", GARBAGE)
def test_peer_that_is_no_server_is_survived(met_garbage: dict[str, tuple[Driver, list[int]]], kind: str) -> None:
    flying, met = met_garbage[kind]
    stats = flying.event("stats")["stats"]
    closed = flying.event("closed")
    print(f"{kind}: {stats['trouble']}; {len(met)} connections; {stats['memory_kb']} kB", end="; ")
    print(f"dispose {closed['dispose_ms']:.1f} ms")
    assert flying.process.wait(20) == 0
    assert met and re.search(GARBAGE[kind][1], stats["trouble"])
    assert (stats["executed"], stats["sessions"], stats["ended"]) == (0, 0, None)
    assert stats["memory_kb"] < 20_000


def test_flood_of_the_server_is_survived(driver: Start, stand: Stand) -> None:
    flying = fly(driver, stand.endpoint)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    observed = stand.observation()
    stand.call(observed)
    flying.event("call")
    tick, end_s = 10, time.monotonic() + 2
    while time.monotonic() < end_s:
        tick += 1
        stand.call(observed, status="held", tick=tick, cause="decide")
    assert flying.event("safe")["cause"] == "expired"
    assert flying.stats()["too_old"] == 0
