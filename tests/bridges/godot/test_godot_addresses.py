"""The Godot client with a list of servers: which one it goes to next, and what it resumes there."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.wire.messages import Bye, ErrorMessage, FunctionCall, Hello
from tests.bridges.client.worlds import free_port, until
from tests.bridges.godot.engine import MISSING, REASON, Engine, Relay, Served, Start
from tests.bridges.program import starting
from tests.bridges.unity.ws_peer import TEXT, WsPeer, close, frame, ws_peer
from tests.conformance import load
from tests.conformance.check.stand import Stand

GO = FunctionCall(name="go", arguments={"direction": "up"})
WELCOME = next(v["json"] for v in load("valid") if v["name"] == "welcome, required fields only")
CALL = next(v["json"] for v in load("valid") if v["name"] == "call, required fields only")
BYE = frame(TEXT, json.dumps({"type": "bye", "session": WELCOME["session"], "reason": "stopped"}).encode())
BUSY = {"code": "busy", "message": "Full.", "retryable": True}


@pytest.fixture
def godot(tmp_path: Path) -> Iterator[Start]:
    if MISSING:
        pytest.skip(REASON)
    yield from starting(lambda url, *options: Engine(tmp_path, "driver.gd", f"--url={url}", *options))


@pytest.fixture
def two() -> Iterator[tuple[Stand, Stand, str]]:
    """Two servers of which each word is the test's, and the list of their addresses."""
    stands = Stand("tcp://127.0.0.1:*"), Stand("tcp://127.0.0.1:*")
    relays = [Relay(stand.endpoint) for stand in stands]
    yield *stands, ", ".join(relay.url for relay in relays)
    for one in (*relays, *stands):
        one.close()


@pytest.mark.slow
def test_driven_node_of_a_killed_server_goes_on_at_the_other_one(godot: Start, tmp_path: Path) -> None:
    first, second = (Served(tmp_path / name) for name in "ab")
    try:
        for served in (first, second):
            served.out.mkdir()
            served.start()
        engine = godot(f"{first.url},{second.url}")
        engine.event("acted", cause="call")
        first.kill()
        assert engine.event("lost")["why"] == f"no connection to {first.url}"
        engine.event("welcomed", resumed=False)
        engine.event("acted", cause="call")
        stats = engine.stats()
        assert stats["address"] == second.url
        assert (stats["counts"]["sessions"], stats["too_old"]) == (2, 0)
        assert engine.faults() == []
    finally:
        first.kill()
        second.kill()


def test_session_is_resumed_at_the_next_server_and_the_first_one_is_tried_after_it(
    godot: Start, two: tuple[Stand, Stand, str]
) -> None:
    # colyseus/colyseus-unity-sdk#223: the token was not sent when the client reconnected. godotengine/godot#99747: the
    # socket of a server that is gone stays open. eclipse-paho/paho.mqtt.javascript#204: the second failover tried one
    # server alone.
    first, second, url = two
    engine = godot(url)
    first.expect(Hello, 20.0, "hello")
    first.welcome(ttl_ms=60_000.0)
    first.call(first.observation(), call=GO, ttl_ms=60_000.0)
    engine.event("acted", cause="call")
    first.alive = False
    assert second.expect(Hello, 20.0, "hello at the next server").resume == first.token
    assert engine.stats()["in_force"] == "call", "what is in force runs to its own end"
    second.welcome(resumed=True, session=first.token)
    engine.event("welcomed", resumed=True)
    engine.say("next 0")
    clock = engine.event("next")["clock"]
    second.token, second.alive = first.token, False
    assert first.expect(Hello, 20.0, "hello at the first server").resume == first.token
    first.send(ErrorMessage(code="session", message="Unknown.", retryable=True))
    assert first.expect(Hello, 5.0, "hello for a new session").resume is None, "the same server is told"
    first.alive = True
    first.welcome()
    assert engine.event("acted")["cause"] == "left", "nobody would end the call of a session that is gone"
    assert len(clock) <= 1, "of another machine the clock is another one"
    assert engine.faults() == []


@pytest.mark.parametrize("fatal", [False, True])
def test_server_that_is_full_or_stops_is_left_for_the_next_one(
    godot: Start, two: tuple[Stand, Stand, str], fatal: bool
) -> None:
    first, second, url = two
    engine = godot(url, "--set=persist:false")
    hello = first.expect(Hello, 20.0, "hello")
    first.send(ErrorMessage(**BUSY, fatal=fatal, t_client_ns=hello.t_client_ns))
    second.expect(Hello, 5.0, "hello at the next server")
    second.welcome()
    second.call(second.observation(), call=GO)
    engine.event("acted", cause="call")
    second.send(Bye(session=second.token, reason="stopped"))
    assert engine.event("acted", cause="left")["call"]["name"] == "stop"
    assert first.expect(Hello, 5.0, "hello after the bye").resume is None


def test_servers_that_are_absent_or_say_nothing_keep_nobody_out(godot: Start, stand: Stand) -> None:
    # fsprojects/pulsar-client-dotnet#213: the first of a list did not answer, and the second one was never tried.
    relay = Relay(stand.endpoint)
    with sockets.create_server(("127.0.0.1", 0)) as mute:
        absent, silent = f"ws://127.0.0.1:{free_port()}/ws", f"ws://127.0.0.1:{mute.getsockname()[1]}/ws"
        engine = godot(f"{absent},{silent},{relay.url}")
        stand.expect(Hello, 30.0, "hello at the third server")
        stand.welcome()
        engine.event("welcomed")
        why = [event["why"] for event in engine.events if event["event"] == "lost"]
        assert why == [f"no connection to {absent}", f"{silent} is silent"]
    relay.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ws://127.0.0.1:9/ws,,ws://127.0.0.1:8/ws", "an empty place"),
        ("ws://127.0.0.1:9/ws,127.0.0.1:8", "127.0.0.1:8, which is no address"),
        ("ws://127.0.0.1:9/ws, ws://127.0.0.1:9/ws", "ws://127.0.0.1:9/ws twice"),
    ],
)
def test_list_that_is_none_is_told_before_anything_is_connected(godot: Start, url: str, told: str) -> None:
    engine = godot(url)
    engine.event("ready")
    assert engine.stats()["state"] == 0
    assert told in engine.errors()


def test_pauses_before_refused_hellos_are_doubled_and_begin_again_after_a_welcome(godot: Start, stand: Stand) -> None:
    relay = Relay(stand.endpoint)
    engine = godot(relay.url)
    hello = stand.expect(Hello, 20.0, "hello")
    for least_ms in (500, 1000, 2000):
        stand.send(ErrorMessage(**BUSY, t_client_ns=hello.t_client_ns))
        again = stand.expect(Hello, 20.0, "hello again")
        assert again.t_client_ns - hello.t_client_ns >= least_ms * 1e6
        hello = again
    engine.say("pauses")
    assert engine.event("pauses")["refused_ms"] == 4000
    stand.welcome()
    engine.event("welcomed")
    engine.say("pauses")
    assert engine.event("pauses")["refused_ms"] == 1000
    relay.close()


def test_two_games_pause_by_chance_and_not_alike(godot: Start) -> None:
    # phoenixframework/phoenix#4045: clients that pause alike come back all at once.
    drawn = []
    for _ in range(2):
        engine = godot("ws://127.0.0.1:9/ws")
        engine.event("lost")
        engine.say("pauses")
        drawn.append(engine.event("pauses")["ns"])
    assert all(500e6 <= ns <= 1000e6 for ns in drawn[0] + drawn[1])
    assert drawn[0] != drawn[1] and len(set(drawn[0])) > 1


def test_token_in_an_address_is_shown_nowhere(godot: Start) -> None:
    # mujx/nheko#99: a failed request was logged with its whole address, the token in it.
    address = f"ws://127.0.0.1:{free_port()}/ws"
    engine = godot(address + "?token=secret-1")
    assert engine.event("lost")["why"] == f"no connection to {address}"
    for url in (f"{address}?token=secret-1,{address}?token=secret-1", "127.0.0.1:9/ws?token=secret-1"):
        mistaken = godot(url)
        mistaken.event("ready")
        assert mistaken.stats()["state"] == 0
        assert "url has 127.0.0.1:9/ws, which" in mistaken.errors() or f"url has {address} twice" in mistaken.errors()
        assert "secret-1" not in mistaken.errors()


@pytest.mark.parametrize("code", [1001, 1012])
def test_bye_that_comes_in_one_piece_with_the_end_of_the_connection_ends_the_session(godot: Start, code: int) -> None:
    # godotengine/godot#107442: the last message before the close frame is lost.
    with ws_peer(frame(TEXT, json.dumps(WELCOME).encode()), 0.5, BYE + close(code, "stopped")) as peer:
        engine = godot(peer.url, "--set=persist:false")
        engine.event("welcomed")
        assert "stopped" in engine.event("ended")["why"]
        assert engine.faults() == []


def hellos(peer: WsPeer) -> list[dict[str, Any]]:
    return [hello for hello in map(json.loads, (one.body for one in peer.of(TEXT))) if hello["type"] == "hello"]


def test_connection_that_the_server_closed_in_order_means_safe_at_once_and_the_session_is_asked_for(
    godot: Start,
) -> None:
    # So does the server where it took a game for dead that stood still.
    changes = {"status": "fresh", "call": GO.model_dump(), "ttl_ms": 0, "tick": 0, "epoch": WELCOME["epoch"]}
    call = {**CALL, **changes, "session": WELCOME["session"]}
    parts = [frame(TEXT, json.dumps(message).encode()) for message in (WELCOME, call)]
    with ws_peer(parts[0], 0.5, parts[1], 0.5, close(1000)) as peer:
        engine = godot(peer.url, "--set=persist:false")
        engine.event("told", outcome="expired")
        assert engine.event("acted")["cause"] == "left"
        engine.event("lost")
        engine.event("welcomed")
        until(lambda: len(hellos(peer)) > 1, "no hello on the next connection")
        assert [hello.get("resume") for hello in hellos(peer)[:2]] == [None, WELCOME["session"]]
        assert engine.faults() == []
