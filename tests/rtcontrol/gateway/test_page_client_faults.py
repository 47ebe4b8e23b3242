"""The pages' clients under Node: slow refusals, handlers that throw, sessions that end, crowds on a full line."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import REST, Page, Peer, Serve, has_websocket

from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Observe,
)

MOVE = FunctionCall(name="move", arguments={"velocity": 2})
OBSERVE = "session.observe({x: 1})"
SECRET = "a-secret-0123456789"
SCRIPTS = ("session.mjs", "crowd.mjs")
Start = Callable[..., Page]


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.server.shutdown()


@pytest.fixture
def start(tmp_path: Path, peer: Peer) -> Iterator[Start]:
    if not has_websocket():
        pytest.skip("there is no `node` with a WebSocket to run the page's")
    started: list[Page] = []

    def begin(script: str = "session.mjs", *urls: str, **hello: Any) -> Page:
        told = [json.dumps(hello or {"agent": "paddle", "hz": 10})] if script == "crowd.mjs" else []
        started.append(Page(tmp_path / str(len(started)), script, ",".join(urls) or peer.url, *told))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def moving(peer: Peer, page: Page, **changes: Any) -> str:
    """A live session, and a call in force."""
    peer.expect(Hello)
    token = peer.welcome(release_ns=time.monotonic_ns())
    page.until("state", "live")
    page.do(OBSERVE)
    move(peer, token, **changes)
    page.until("act", "call", MOVE.model_dump())
    return token


def move(peer: Peer, token: str, tick: int = 0, **changes: Any) -> None:
    """The answer to the observation that comes next."""
    told: dict[str, Any] = {"session": token, "tick": tick, "epoch": 0, "status": "fresh", "call": MOVE, "ttl_ms": 6e4}
    peer.send(CallMessage(**{**told, "t_obs_ns": peer.expect(Observe).t_ns, **changes}, deadline_ns=0, t_server_ns=0))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_refusal_of_the_first_hello_ends_it_also_after_the_hello_was_said_again(
    peer: Peer, start: Start, script: str
) -> None:
    page = start(script)
    first = peer.expect(Hello).t_client_ns
    assert peer.expect(Hello).t_client_ns > first
    peer.send(ErrorMessage(code="model", message="No such model.", fatal=True, t_client_ns=first))
    page.until("state", "refused", *(["No such model."] if script == "crowd.mjs" else []))


# websockets/ws#1207: one error thrown by whoever listens, and no further message was taken.
def test_handlers_that_throw_cost_neither_calls_nor_the_connection(peer: Peer, start: Start) -> None:
    page = start()
    peer.expect(Hello)
    token = peer.welcome()
    page.until("state", "live")
    names = ["state", "welcome", "call", "instruct", "error"]
    broken = "() => { session.thrown = (session.thrown ?? 0) + 1; throw new Error('It is broken.'); }"
    page.do(f"({json.dumps(names)}.forEach((name) => {{ session.on[name] = {broken}; }}), null)")
    peer.send(ErrorMessage(code="unsure", message="What?"))
    peer.send(Instruct(session=token, instruction="aim high"))
    page.do(OBSERVE)
    move(peer, token)
    page.until("act", "call", MOVE.model_dump())
    assert peer.expect(Executed).outcome == "executed"
    page.do("session.instruct('aim low')")
    peer.expect(Instruct)
    peer.cut()
    assert peer.expect(Hello).resume == token
    peer.welcome(resume=token)
    assert peer.expect(Instruct).instruction == "aim low", (
        "it is said again, though nobody could be told of the welcome"
    )
    assert page.do("session.thrown") == 3 + len(["waiting", "connecting", "opening", "live", "welcome"])


ENDS: dict[str, Callable[[Peer, Page, str], Any]] = {
    "closed": lambda peer, page, token: page.do("(session.close(), null)"),
    "bye": lambda peer, page, token: peer.send(Bye(session=token)),
    "lost": lambda peer, page, token: peer.cut(),
    "stopped": lambda peer, page, token: peer.send(ErrorMessage(code="state", message="Stopped.", fatal=True)),
    "full": lambda peer, page, token: peer.send(
        ErrorMessage(code="busy", message="It stops.", fatal=True, retryable=True)
    ),
}
ASKING = """(heard => session.on.act = (call, kind) => {
    heard(call, kind);
    if (kind !== 'safe') return;
    session.safe = (session.safe ?? 0) + 1;
    session.answers = [session.observe({x: 1}), session.instruct('stop'), session.nextLookNs(), session.hasRoom];
    session.answers.push(session.nextObservationNs(1));
})(session.on.act), null"""


# socketio/socket.io-client#658: what a handler says while the connection ends was thrown at it.
@pytest.mark.parametrize("end", ENDS)
def test_what_is_asked_while_the_session_ends_is_answered_and_the_safe_call_carried_out_once(
    peer: Peer, start: Start, end: str
) -> None:
    page = start()
    token = moving(peer, page, ttl_ms=0.0)
    page.do(ASKING.replace("\n", " "))
    ENDS[end](peer, page, token)
    if end != "closed":
        page.until("act", "safe", REST.model_dump())
    page.do("(session.look(), session.look(), null)")
    assert page.do("[session.safe, session.inForce.owed]") == [1, None]
    assert page.do("session.answers") == [False, False, None, False, None]


THROWS = "function Socket(url, protocols) { throw new Error(`'${protocols[1]}' of ${url} is invalid.`); }"


# Hy4ri/hermes-mobile#255, duplicati/duplicati#5550: tokens of addresses stood in logs and crash reports.
@pytest.mark.parametrize("token", [f"{SECRET} with spaces", "short", 17, SECRET])
def test_no_token_is_told_where_a_connection_cannot_be_made(start: Start, token: str | int) -> None:
    page = start()
    options = f"{{token: {json.dumps(token)}, WebSocketClass: {THROWS}}}"
    on = "{state: (...event) => told.push(event)}"
    made = f"new session.constructor('ws://a:1/ws?token={SECRET}-too', {{agent: 'paddle'}}, {on}, {options})"
    told = json.dumps(page.do(f"(() => {{ const told = []; {made}.open(); return told; }})()"))
    assert '"refused", "ws://a:1/ws cannot be opened' in told
    assert SECRET not in told and str(token) not in told
    assert ("the access token" in told) is (token != SECRET)


# -- crowds ------------------------------------------------------------------------------------------------------------


FALLING = "x 0 y 60 vx 0 vy -3 angle 0 spin 0 legs 0 0"


# can1357/oh-my-pi#4248, websockets/ws#1620: sent to a socket that is open and slow, messages gather without bound.
def test_on_a_line_that_is_full_only_the_newest_look_of_each_waits(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        page = start("crowd.mjs", f"ws://127.0.0.1:{deaf.getsockname()[1]}/ws")
        line, _ = deaf.accept()
        with line:
            page.do("(crowd.join('anna'), crowd.join('bert'), null)")
            full = "(crowd.state = 'live', crowd.welcome = {session: 'x'.repeat(16)}, crowd.sent = [], crowd.socket = "
            full += "{readyState: 1, bufferedAmount: 1e6, send: (text) => crowd.sent.push(text), close() {}}, null)"
            page.do(full)
            for i in range(1_000):
                assert page.do(f"crowd.observe({{anna: 'look {i}', bert: 'look {i}'}})") is False
            assert page.do("[crowd.sent.length, crowd.looks.size, crowd.count.superseded]") == [0, 2, 1_998]
            page.do("(crowd.socket.bufferedAmount = 0, crowd.look(), null)")
            (sent,) = page.do("crowd.sent")
            assert [one["text"] for one in json.loads(sent)["looks"]] == ["look 999", "look 999"]


def test_a_real_server_decides_for_each_of_them(serve: Serve, start: Start) -> None:
    served = serve(sessions="random")
    page = start("crowd.mjs", served.ws, agent="lander", hz=20)
    page.until("state", "live")
    page.do("(crowd.join('anna'), crowd.join('bert', {priority: 9}), crowd.join('cora', {hz: 1e4}), null)")
    page.until("refused", "cora", "invalid")
    end = time.monotonic() + 20
    while page.do("crowd.call('anna').status + crowd.call('bert').status") != "freshfresh" and time.monotonic() < end:
        page.do(f"crowd.observe({{anna: '{FALLING}', bert: '{FALLING}'}})")
    assert page.do("[crowd.call('anna').calls[0].name, crowd.call('bert').calls[0].name]") == ["engines", "engines"]
    page.do("crowd.leave('bert')")
    assert page.do("[...crowd.members.keys()]") == ["anna", "cora"]
    assert page.do("crowd.refusals.map(({field}) => field)") == ["hz"]
