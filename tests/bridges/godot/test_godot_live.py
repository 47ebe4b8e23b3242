"""The shipped Godot project in a real engine (headless), against real servers: at work, killed, restarted, stopped,
and against what is no server. Run with `-m slow`."""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from rtcontrol.bridges.wire.messages import Executed, FunctionCall, Hello
from tests.bridges.client.worlds import free_port, until
from tests.bridges.godot.engine import MISSING, REASON, Engine, Served, Start, quantiles
from tests.bridges.godot.relay import Relay
from tests.bridges.strangers import garbage
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand

pytestmark = pytest.mark.slow


def show(title: str, stats: dict[str, Any]) -> None:
    print(f"\n{title}: {stats['counts']}, executed too old: {stats['too_old']}, parcels {stats['parcels']}")
    print(f"  ms p50 / p99 / max: to the call's arrival {quantiles(stats['latency_ms'])}, to its execution ", end="")
    print(f"{quantiles(stats['age_ms'])}; {stats['frames']} frames, {stats['memory_kb']:.0f} kB")


def fly(godot: Start, served: Served, seconds: float, *options: str) -> dict[str, Any]:
    engine = godot(served.url, *options)
    engine.event("acted", cause="call")
    time.sleep(seconds)
    stats = engine.stats()
    engine.say("quit")
    assert engine.process.wait(20) == 0
    assert engine.faults() == []
    return stats


def test_conforms_as_the_checker_of_clients_sees_it(godot: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    relay = Relay(endpoint)
    try:
        engine = godot(relay.url)
        findings = check_any_client(endpoint)
        assert [f.name for f in findings if f.status != "passed"] == [], findings
        assert relay.refused == []
        assert engine.process.poll() is None and engine.faults() == []
    finally:
        relay.close()


def test_flies_a_minute_at_16_hz_and_never_executes_what_is_too_old(godot: Start, served: Served) -> None:
    for options in ((), ("--set=observe_hz:0.0",)):
        stats = fly(godot, served, 60, *options)
        show(f"a minute at 16 Hz {options}", stats)
        counts = stats["counts"]
        assert counts["executed"] > 500
        assert (stats["too_old"], counts["errors"], counts["refused"], counts["sessions"]) == (0, 0, 0, 1)


def test_scene_that_ends_says_bye_and_is_safe(godot: Start, served: Served) -> None:
    engine = godot(served.url)
    engine.event("acted", cause="call")
    before = served.logs().count("bye")
    engine.say("leave")
    safe = engine.event("acted", cause="left")
    assert safe["call"]["name"] == "stop"
    until(lambda: served.logs().count("bye") > before, "the server heard no bye")
    assert engine.faults() == []


@pytest.fixture
def welcomed(godot: Start, stand: Stand) -> Iterator[tuple[Engine, Stand]]:
    """An engine in session with a server whose calls are the test's."""
    relay = Relay(stand.endpoint)
    engine = godot(relay.url)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    yield engine, stand
    relay.close()


def test_character_is_steered_to_its_parcels_by_a_rule(welcomed: tuple[Engine, Stand]) -> None:
    engine, stand = welcomed
    end_s = time.monotonic() + 60
    places: set[str] = set()
    while engine.stats()["parcels"] < 2:
        assert time.monotonic() < end_s, "it fetched nothing"
        for _ in range(16):
            seen = stand.observation()
            _, side, across, up_or_down, along = str(seen.text).split()
            direction = side if float(across) > float(along) else up_or_down
            stand.call(seen, call=FunctionCall(name="go", arguments={"direction": direction, "speed": 4}))
            places.add(str(seen.text))
    assert len(places) > 20
    assert engine.stats()["counts"]["refused"] == 0


def test_calls_outside_the_tools_are_refused_and_it_stops(welcomed: tuple[Engine, Stand]) -> None:
    engine, stand = welcomed
    for name, arguments in (
        ("fly", {}),
        ("go", {}),
        ("go", {"direction": "north"}),
        ("go", {"direction": 1}),
        ("go", {"direction": "left", "speed": 5}),
        ("go", {"direction": "left", "speed": 1.5}),
        ("go", {"direction": "left", "speed": "2"}),
    ):
        good = FunctionCall(name="go", arguments={"direction": "up"})
        tick = stand.call(stand.observation(), call=good).tick
        stand.expect(Executed, 3.0, "executed", lambda m, tick=tick: m.tick == tick and m.outcome == "executed")
        tick = stand.call(stand.observation(), call=FunctionCall(name=name, arguments=arguments)).tick
        stand.expect(Executed, 3.0, "refused", lambda m, tick=tick: m.tick == tick and m.outcome == "refused")
        assert engine.event("acted", cause="refused")["call"] == {"name": "stop", "arguments": {}}
    assert engine.faults() == []


def test_instruction_and_reset_reach_the_server(godot: Start, served: Served) -> None:
    engine = godot(served.url)
    engine.event("acted", cause="call")
    engine.say("instruct Go home. 左へ 🚀")
    engine.event("instructed", text="Go home. 左へ 🚀")
    engine.say("reset")
    engine.event("acted", cause="call")
    stats = engine.stats()
    assert (stats["epoch"], stats["counts"]["errors"]) == (1, 0)


def test_refusal_for_good_ends_the_attempt_in_words(godot: Start, served: Served) -> None:
    engine = godot(served.url, '--set=settings:{"model": "no such model"}')
    why = engine.event("ended")["why"]
    assert "model" in why
    assert engine.stats()["in_force"] == "safe"


def test_access_token_opens_a_server_that_wants_one(godot: Start, tmp_path: Path) -> None:
    addresses = [a.address for many in psutil.net_if_addrs().values() for a in many if a.family == sockets.AF_INET]
    outer = next((a for a in addresses if not a.startswith("127.")), None)
    if outer is None:
        pytest.skip("this machine has no address beyond loopback")
    token = "k3" * 16
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    served = Served(tmp_path, "--token-file", str(tmp_path / "token"), host=outer)
    served.start()
    try:
        stranger, guest = godot(served.url), godot(served.url, f'--set=token:"{token}"')
        guest.event("acted", cause="call")
        stranger.event("lost")
        assert stranger.stats()["counts"]["sessions"] == 0
    finally:
        served.stop()


# What it answers to the WebSocket's handshake, and goes on with; None: it closes.
GARBAGE: dict[str, list[bytes | None]] = {
    "silence": [],
    "a web server that has no such page": [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"],
    "closed at once": [None],
    "random bytes": [bytes(range(1, 256)) * 40],
    "an answer without end": [b"HTTP/1.1 101 Switching Protocols\r\n", b"X-A: " + b"x" * 1_000_000],
}


@pytest.fixture(scope="module")
def met_garbage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Engine, list[int]]]]:
    """An engine for each kind, all at the same time."""
    if MISSING:
        pytest.skip(REASON)
    with ExitStack() as stack:
        flying: dict[str, tuple[Engine, list[int]]] = {}
        for kind, parts in GARBAGE.items():
            address, met = stack.enter_context(garbage(parts))
            engine = Engine(tmp_path_factory.mktemp("godot"), "driver.gd", f"--url=ws://{address}/ws")
            stack.callback(engine.end)
            flying[kind] = engine, met
        yield flying


@pytest.mark.parametrize("kind", GARBAGE)
def test_peer_that_is_no_server_is_survived(met_garbage: dict[str, tuple[Engine, list[int]]], kind: str) -> None:
    engine, met = met_garbage[kind]
    engine.event("lost")
    until(lambda: len(met) > 1, "it did not try again")
    stats = engine.stats()
    engine.say("quit")
    assert engine.process.wait(20) == 0
    assert stats["counts"]["sessions"] == stats["counts"]["executed"] == 0
    assert engine.faults() == []


def test_without_a_server_the_game_plays_on(godot: Start) -> None:
    engine = godot(f"ws://127.0.0.1:{free_port()}/ws")
    for _ in range(3):
        engine.event("lost")
    stats = engine.stats()
    assert stats["frames"] > 10 and stats["in_force"] == "none"
    assert engine.faults() == []
