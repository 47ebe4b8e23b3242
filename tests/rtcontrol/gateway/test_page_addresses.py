"""The page's clients with a list of servers: which one they go to next, and what they resume there."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import Page, Peer, has_websocket
from gateway_served import Serve

from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, FunctionCall, Hello, Observe
from tests.helpers.processes import free_port, until

Start = Callable[..., Page]
MOVE = FunctionCall(name="move", arguments={"velocity": 2})
OBSERVE = "session.observe({text: 'here'})"


@pytest.fixture
def two() -> Iterator[tuple[Peer, Peer]]:
    peers = Peer(), Peer()
    yield peers
    for one in peers:
        one.server.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    if not has_websocket():
        pytest.skip("there is no `node` with a WebSocket to run the page's")
    started: list[Page] = []

    def begin(*urls: str, script: str = "session.mjs", hello: dict[str, Any] | None = None) -> Page:
        told = [json.dumps(hello)] if hello else []
        started.append(Page(tmp_path / str(len(started)), script, ",".join(urls), *told))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def test_page_whose_server_is_gone_goes_on_at_the_other_one_and_so_does_a_crowd(serve: Serve, start: Start) -> None:
    first, second = serve(sessions="random"), serve(sessions="random")
    page = start(first.ws, second.ws)
    crowd = start(first.ws, second.ws, script="crowd.mjs", hello={"agent": "lander", "hz": 20})
    crowd.do("(crowd.join('anna'), null)")
    falling = {"anna": "x 0 y 60 vx 0 vy -3 angle 0 spin 0 legs 0 0"}

    def decided(server: Any) -> bool:
        crowd.do(f"crowd.observe({json.dumps(falling)})")
        at = (page.do("[session.state, session.address]"), crowd.do("[crowd.state, crowd.address]"))
        return at == (["live", server.ws],) * 2 and crowd.do("crowd.call('anna').status") == "fresh"

    until(lambda: decided(first), "nobody is decided for")
    first.gateway.close()
    first.admission.close()
    until(lambda: decided(second), "nobody is decided for at the other server")


def test_session_is_resumed_at_the_next_server_and_the_first_one_is_tried_after_it(
    two: tuple[Peer, Peer], start: Start
) -> None:
    # colyseus/colyseus-unity-sdk#223: the token was not sent when the client reconnected.
    # eclipse-paho/paho.mqtt.javascript#204: the second failover tried one server alone.
    first, second = two
    page = start(first.url, second.url)
    first.expect(Hello)
    token = first.welcome()
    page.until("state", "live")
    page.do(OBSERVE)
    seen = first.expect(Observe)
    told = {"session": token, "tick": 1, "epoch": 0, "seq_obs": seen.seq, "t_obs_ns": seen.t_ns, "status": "fresh"}
    first.send(CallMessage(**told, call=MOVE, ttl_ms=60_000.0, deadline_ns=1, t_server_ns=1))
    page.until("act", "call", MOVE.model_dump())
    first.cut()
    assert second.expect(Hello).resume == token
    assert page.do("session.inForce.kind") == "call", "what is in force runs to its own end"
    assert page.do("session.clock.at(Number(process.hrtime.bigint()))") is None
    second.welcome(resume=token)
    page.until("state", "live")
    second.cut()
    assert first.expect(Hello).resume == token
    first.send(ErrorMessage(code="session", message="Unknown.", retryable=True))
    assert first.expect(Hello).resume is None, "the same server is told"
    first.welcome()
    page.until("act", "safe", {"name": "move", "arguments": {"velocity": 0}})


@pytest.mark.parametrize("fatal", [False, True])
def test_server_that_is_full_or_stops_is_left_for_the_next_one(
    two: tuple[Peer, Peer], start: Start, fatal: bool
) -> None:
    first, second = two
    page = start(first.url, second.url)
    first.expect(Hello)
    first.send(ErrorMessage(code="busy", message="Full.", retryable=True, fatal=fatal))
    second.expect(Hello)
    token = second.welcome()
    page.until("state", "live")
    second.send(Bye(session=token, reason="stopped"))
    assert first.expect(Hello).resume is None


def test_servers_that_are_absent_or_say_nothing_keep_nobody_out(two: tuple[Peer, Peer], start: Start) -> None:
    # fsprojects/pulsar-client-dotnet#213: the first of a list did not answer, and the second one was never tried.
    there, _ = two
    with sockets.create_server(("127.0.0.1", 0)) as mute:
        silent = f"ws://127.0.0.1:{mute.getsockname()[1]}/ws"
        page = start(f"ws://127.0.0.1:{free_port()}/ws", silent, there.url)
        there.expect(Hello)
        there.welcome()
        page.until("state", "live")
        assert page.do("session.address") == there.url


def test_list_that_is_none_is_refused_with_words(two: tuple[Peer, Peer], start: Start) -> None:
    page = start(two[0].url)
    for wrong, told in (
        ("ws://a/ws,", "An empty place"),
        ("ws://a/ws,b:1", "b:1 is no address"),
        ("ws://a/ws, ws://a/ws", "twice"),
    ):
        made = f"new session.constructor('{wrong}', {{}})"
        assert told in page.do(f"(() => {{ try {{ {made} }} catch (error) {{ return error.message }} }})()")
