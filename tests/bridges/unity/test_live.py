"""The C# client against real servers (running, stopped, killed, restarted, cut off) and against peers that are not
servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridges.client.worlds import Process, free_port
from tests.bridges.program import garbage
from tests.bridges.unity.conftest import Driver, Start
from tests.conformance.check import check_any_client

TTL_MS = 500


def fly(driver: Start, endpoint: str, *more: str) -> Driver:
    return driver("run", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS), *more)


def test_client_passes_the_conformance_check(driver: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    flying = fly(driver, endpoint, "--hz", "20")
    findings = check_any_client(endpoint)
    assert [f.name for f in findings if f.status != "passed"] == [], findings
    assert flying.process.poll() is None


def test_client_runs_at_16_hz_without_executing_expired_calls(driver: Start, server: Process) -> None:
    by_name = server.endpoint.replace("127.0.0.1", "localhost")
    flying = fly(driver, by_name, "--hz", "16", "--seconds", "4")
    stats = flying.event("stats")["stats"]
    assert stats["executed"] > 20
    assert (stats["too_old"], stats["errors"], stats["failed"], stats["refused"]) == (0, 0, 0, 0)
    assert flying.event("closed")["in_force"] == "safe"
    assert stats["clock_known"] and -1 < stats["next_ms"] <= 1e3 / 16
    # The last executed call is the safe call, after the client was closed.
    assert [e["name"] for e in flying.events if e["event"] in ("call", "safe")][-1] == "stop"


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
SILENCE = "nobody answers|the peer says nothing"  # the second once the time for a handshake is over
# The peer's bytes, and a pattern of the client's error message.
GARBAGE: dict[str, tuple[list[bytes | None], str]] = {
    "silence": ([], SILENCE),
    "a web server": ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "speaks no ZeroMQ"),
    "closed at once": ([None], "closed the connection at once"),
    "a greeting of CURVE": ([GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15))], "wants CURVE keys"),
    "the wrong type": ([GREETING, READY.replace(b"\x1c", b"\x19").replace(b"\x06ROUTER", b"\x03PUB")], "PUB socket"),
    "a frame of 2^60 bytes": ([GREETING, READY, b"\x02\x10" + bytes(7) + b"x" * 100], "a frame of 1152921504606846976"),
    "pings": ([GREETING, READY, b"\x04\x0f\x04PING\x00\x64contextx" * 20_000], "says nothing"),
}


@pytest.fixture(scope="module")
def met_garbage(exe: Path) -> Iterator[dict[str, tuple[Driver, list[int]]]]:
    """Run a client against each kind of peer, all at the same time."""
    with ExitStack() as stack:
        flying: dict[str, tuple[Driver, list[int]]] = {}
        for kind, (parts, reported) in GARBAGE.items():
            address, met = stack.enter_context(garbage(parts))
            ends = ("--seconds", "1") if reported == SILENCE else ("--until", reported)
            one = Driver(exe, "run", "--endpoint", f"tcp://{address}", "--ttl-ms", str(TTL_MS), *ends)
            stack.callback(one.end)
            flying[kind] = one, met
        yield flying


@pytest.mark.parametrize("kind", GARBAGE)
def test_client_survives_peer_that_is_not_a_server(met_garbage: dict[str, tuple[Driver, list[int]]], kind: str) -> None:
    flying, met = met_garbage[kind]
    stats = flying.event("stats")["stats"]
    assert flying.process.wait(20) == 0
    assert met and re.search(GARBAGE[kind][1], stats["trouble"])
    assert (stats["executed"], stats["sessions"], stats["ended"]) == (0, 0, None)
    assert stats["memory_kb"] < 20_000
