"""The page: its protocol, physics and sessions under Node, and a match in headless Chromium."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import httpx
import pytest
from chromium import Chromium
from gateway_peer import NODE, REST, TOKEN, Page, Peer, Serve, Served, copy_page, has_websocket

from rtcontrol_client.wire import decode_json
from rtcontrol_client.wire.messages import (
    CallMessage,
    Executed,
    FunctionCall,
    Hello,
    Observe,
)
from tests import conformance

HERE = Path(__file__).parent
under_node = pytest.mark.skipif(NODE is None, reason="there is no `node` to run the page's modules")
in_chromium = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


def node(tmp_path: Path, script: str, *arguments: str) -> Any:
    """What a script of `page/` prints, as JSON; its first argument is the folder of the page's modules."""
    command = [str(NODE), str(HERE / "page" / script), str(copy_page(tmp_path)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@under_node
def test_the_pages_protocol_passes_the_conformance_vectors(tmp_path: Path) -> None:
    told = node(tmp_path, "vectors.mjs", str(conformance.FOLDER))
    assert told["wrong"] == []
    valid = {v["name"]: v for v in [*conformance.load("valid"), *conformance.load("crowd")["valid"]]}
    assert {name for name, _ in told["again"]} == set(valid)
    for name, text in told["again"]:
        assert decode_json(text) == decode_json(json.dumps(valid[name]["json"])), name
        if valid[name]["canonical"]:
            assert json.loads(text) == valid[name]["json"], name


def test_the_clients_modules_are_served_for_pages_of_ones_own(served: Served) -> None:
    answer = httpx.get(f"{served.url}client/index.js")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "no-cache"
    names = re.findall(r'from "\./(\w+\.js)"', answer.text)
    assert "client.js" in names
    assert {httpx.get(f"{served.url}client/{name}").status_code for name in names} == {200}
    assert httpx.get(f"{served.url}client/../../package.json").status_code == 404


@pytest.fixture(scope="module")
def playing(serve: Serve) -> Served:
    """A server whose paddle is played by the script."""
    return serve(sessions="expert")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as browser:
        yield browser


@pytest.mark.slow
@in_chromium
def test_a_match_is_played_and_told(playing: Served, page: Chromium, tmp_path: Path) -> None:
    page.open(playing.url)
    page.until("rtcontrol.session.state === 'live' && rtcontrol.counts.ticks > 60")
    before = page.value("[rtcontrol.world.own_y, rtcontrol.world.other_y]")
    page.until(f"rtcontrol.world.own_y !== {before[0]} && rtcontrol.world.other_y !== {before[1]}")
    page.until("rtcontrol.world.own_hits + rtcontrol.world.own_score > 0", 60)
    shown = page.value("document.getElementById('call').textContent")
    assert shown.startswith("move(velocity=")
    assert page.value("rtcontrol.chart.figures().p50") > 0
    assert page.value("document.getElementById('p50').textContent").endswith(" ms")
    page.shoot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert page.errors == []


MOVE = FunctionCall(name="move", arguments={"velocity": 2})
OBSERVE = "session.observe({x: 1})"
LAMP = FunctionCall(name="lamp", arguments={"level": 0})


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.server.shutdown()


@pytest.fixture
def session_page(tmp_path: Path, peer: Peer) -> Iterator[Page]:
    if not has_websocket():
        pytest.skip("there is no `node` with a WebSocket to run the page's")
    one = Page(tmp_path, "session.mjs", peer.url)
    yield one
    one.end()


def live(peer: Peer, session_page: Page, **changes: Any) -> str:
    assert peer.expect(Hello).resume is None
    token = peer.welcome(**changes)
    session_page.until("state", "live")
    return token


def call(token: str, tick: int, t_obs_ns: int, **changes: Any) -> CallMessage:
    told: dict[str, Any] = {
        "session": token,
        "tick": tick,
        **dict.fromkeys(("epoch", "deadline_ns", "t_server_ns"), 0),
        "t_obs_ns": t_obs_ns,
        "status": "fresh",
        "call": MOVE,
        "ttl_ms": 60_000.0,
    }
    return CallMessage(**{**told, **changes})


def moving(peer: Peer, session_page: Page, token: str, tick: int = 0, **changes: Any) -> None:
    assert session_page.do(OBSERVE) is True
    peer.send(call(token, tick, peer.expect(Observe).t_ns, **changes))
    session_page.until("act", "call", MOVE.model_dump())


def did(*calls: FunctionCall) -> list[list[Any]]:
    return [["act", "safe", one.model_dump()] for one in calls]


def test_safe_calls_are_all_executed_and_one_that_throws_until_it_no_longer_does(
    peer: Peer, session_page: Page
) -> None:
    token = live(peer, session_page)
    moving(peer, session_page, token)
    peer.expect(Executed)
    session_page.do("session.stuck.move = 3")
    peer.send(call(token, 1, 0, status="safe", call=REST, calls=[REST, LAMP]))
    told = peer.expect(Executed)
    assert (told.tick, told.outcome, told.error) == (1, "failed", "move: Error: It is stuck.")
    stuck = ["stuck", "safe", "move"]
    assert session_page.until("act", "safe", REST.model_dump()) == [stuck, *did(LAMP), stuck, stuck, *did(REST)]
    assert session_page.do("[session.inForce.kind, session.inForce.owed]") == ["safe", None]


@pytest.mark.parametrize("ttl_ms", [0.0, 400.0])
def test_safe_call_that_throws_when_the_server_is_gone_is_tried_again(
    peer: Peer, session_page: Page, ttl_ms: float
) -> None:
    token = live(peer, session_page, safe_calls=[REST, LAMP])
    session_page.do("session.stuck.lamp = 2")
    moving(peer, session_page, token, ttl_ms=ttl_ms)
    peer.server.shutdown()
    session_page.until(*did(REST)[0])
    acts = [event for event in session_page.until(*did(LAMP)[0]) if event[0] != "state"]
    assert acts == [["stuck", "safe", "lamp"]] * 2 + did(LAMP)


# The dialog for the access token.

SITE = "http://robot.test"
DEAD = "a-token-that-was-revoked-0123456789"
LIVE = "rtcontrol.session.state === 'live'"
GATE = "document.getElementById('gate').open"


@pytest.fixture
def gated(serve: Serve, tmp_path: Path) -> Iterator[Chromium]:
    served = serve(token=TOKEN, origins=frozenset({SITE}), model="noop", host="0.0.0.0")
    rule = f"--host-resolver-rules=MAP robot.test:80 127.0.0.1:{served.gateway.port}"
    with Chromium(tmp_path / "profile", rule) as browser:
        yield browser


# supabase/auth-js#302: a token stayed in the address's fragment, and in the history.
@in_chromium
def test_refused_token_of_the_address_is_removed_and_a_typed_one_connects(gated: Chromium) -> None:
    gated.open(f"{SITE}/?a=1#token={DEAD}")
    gated.until(GATE)
    assert gated.value("location.href") == f"{SITE}/?a=1"
    assert gated.value("document.activeElement.id") == "token"
    gated.write(TOKEN)
    gated.key("Enter")
    gated.until(LIVE)
    assert not gated.value(GATE)


@in_chromium
@pytest.mark.parametrize(
    ("path", "live"),
    [
        ("", LIVE),
        ("crowd", "rtcontrol.crowd.state === 'live'"),
        ("live.html", "rtcontrol.last !== undefined && rtcontrol.socket !== null"),
    ],
)
def test_token_of_the_address_opens_each_page(gated: Chromium, path: str, live: str) -> None:
    if path == "live.html":  # it shows a session, so there must be one
        gated.open(f"{SITE}/#token={TOKEN}")
        gated.until(LIVE)
    gated.open(f"{SITE}/{path}#token={TOKEN}")
    gated.until(live, 60)
    assert not gated.value(GATE)
