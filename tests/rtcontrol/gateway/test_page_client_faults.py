"""Around the pages' clients: slow refusals, handlers that throw, and what is asked of a session that ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import REST, Page, Peer, has_websocket

from rtcontrol_client.wire.crowd import CallMany, CrowdTerms, Join, MemberCall, ObserveMany
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Message,
    Observe,
    Reset,
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

    def begin(script: str = "session.mjs") -> Page:
        hello = [json.dumps({"agent": "paddle", "hz": 10})] if script == "crowd.mjs" else []
        started.append(Page(tmp_path / str(len(started)), script, peer.url, *hello))
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


def following(peer: Peer) -> Message:
    """Whatever is said next."""
    peer.line, message = peer.heard.get(timeout=10)
    return message


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_refusal_of_the_first_hello_ends_it_also_after_the_hello_was_said_again(
    peer: Peer, start: Start, script: str
) -> None:
    page = start(script)
    first = peer.expect(Hello).t_client_ns
    assert peer.expect(Hello).t_client_ns > first
    peer.send(ErrorMessage(code="model", message="No such model.", fatal=True, t_client_ns=first))
    page.until("state", "refused", *(["No such model."] if script == "crowd.mjs" else []))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_refusal_of_an_earlier_greeting_ends_nothing(peer: Peer, start: Start, script: str) -> None:
    page = start(script)
    earlier = peer.expect(Hello).t_client_ns
    peer.cut()
    peer.expect(Hello)
    peer.send(ErrorMessage(code="model", message="No such model.", fatal=True, t_client_ns=earlier))
    peer.welcome(crowd=CrowdTerms(members=64, parts=64))
    page.until("state", "live")


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


def test_handlers_of_a_crowd_that_throw_cost_neither_calls_nor_the_connection(peer: Peer, start: Start) -> None:
    page = start("crowd.mjs")
    peer.expect(Hello)
    terms = CrowdTerms(members=64, parts=64)
    token = peer.welcome(crowd=terms)
    page.until("state", "live")
    broken = "crowd.on[name] = () => { throw new Error('It is broken.'); };"
    page.do(f"(['state', 'call', 'refused', 'error'].forEach((name) => {{ {broken} }}), crowd.join('anna'), null)")
    peer.expect(Join)
    page.do("crowd.observe({anna: 'a'})")
    (seen,) = peer.expect(ObserveMany).looks
    told = {"id": "anna", "epoch": 0, "seq_obs": seen.seq, "t_obs_ns": seen.t_ns, "status": "fresh", "ttl_ms": 6e4}
    calls = [MemberCall(**told, tick=tick, call=MOVE) for tick in (0, 1)]
    peer.send(CallMany(session=token, t_server_ns=1, calls=calls))
    for _ in calls:
        page.until("act", "anna", "call", MOVE.model_dump())
    peer.cut()
    assert peer.expect(Hello).resume == token


def test_a_call_is_carried_out_before_it_is_told(peer: Peer, start: Start) -> None:
    page = start()
    peer.expect(Hello)
    token = peer.welcome()
    page.until("state", "live")
    page.do("(session.on.call = () => session.close(), null)")
    page.do(OBSERVE)
    move(peer, token)
    rest = ["act", "safe", REST.model_dump()]
    assert page.until("state", "closed") == [["act", "call", MOVE.model_dump()], rest, ["state", "closed"]]


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


def test_what_a_safe_call_that_is_tried_again_asks_for_carries_it_out_no_further(peer: Peer, start: Start) -> None:
    page = start()
    token = moving(peer, page)
    counts = "session.safe = (session.safe ?? 0) + 1; session.look(); if (session.safe < 3) throw new Error('Stuck.');"
    page.do(f"(session.on.act = () => {{ {counts} }}, null)")
    peer.send(Bye(session=token))
    peer.expect(Hello)
    page.do("(session.look(), session.look(), session.look(), null)")
    assert page.do("[session.safe, session.inForce.owed]") == [3, None]


def test_what_a_crowds_member_asks_while_the_session_ends_is_answered(peer: Peer, start: Start) -> None:
    page = start("crowd.mjs")
    peer.expect(Hello)
    peer.welcome(crowd=CrowdTerms(members=64, parts=64))
    page.until("state", "live")
    page.do("(crowd.join('anna'), crowd.join('bert'), null)")
    asks = "[crowd.observe({bert: 'b'}), crowd.instruct('stop'), crowd.leave('anna')]"
    page.do(f"(crowd.on.act = (id) => {{ if (id === 'anna') crowd.answers = {asks}; }}, null)")
    page.do("(crowd.close(), null)")
    assert page.do("[crowd.answers.slice(0, 2), [...crowd.members.keys()]]") == [[False, False], ["bert"]]


def test_a_reset_while_a_call_is_carried_out_acknowledges_no_tick_in_the_new_episode(peer: Peer, start: Start) -> None:
    page = start()
    peer.expect(Hello)
    token = peer.welcome()
    page.until("state", "live")
    page.do("(session.on.act = () => { session.reset(); }, null)")
    page.do(OBSERVE)
    move(peer, token)
    reset = following(peer)
    assert isinstance(reset, Reset) and reset.epoch == 1
    page.do(OBSERVE)
    assert isinstance(following(peer), Observe), "of the tick of the episode before nothing is said"


def test_pauses_after_refusals_are_longer_than_those_of_lost_connections_and_counted_apart(start: Start) -> None:
    page = start()

    def made(script: str) -> list[float]:
        told: list[float] = page.do(f"((p) => {{ {script} }})(new session.pauses.constructor())")
        return told

    refused = made("return Array.from({length: 5}, () => (p.refuse(0), p.next(false, 0)));")
    lost = made("p.refuse(0); return Array.from({length: 7}, () => p.next(true, 5000));")
    most = [1000, 2000, 4000, 4000, 4000, *[100, 200, 400, 800, 1600, 2000, 2000]]
    assert all(one / 2 <= ms <= one for ms, one in zip([*refused, *lost], most, strict=True))


@pytest.mark.parametrize("fatal", [False, True])
def test_a_refused_hello_is_not_said_again_at_once(peer: Peer, start: Start, fatal: bool) -> None:
    page = start()
    first = peer.expect(Hello).t_client_ns
    peer.send(ErrorMessage(code="busy", message="Full.", retryable=True, fatal=fatal, t_client_ns=first))
    page.until("state", "waiting")
    assert peer.expect(Hello).t_client_ns - first > 0.49e9
    peer.welcome()
    page.until("state", "live")
    assert page.do("session.pauses.attempts") == 0


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


def test_addresses_are_shown_without_what_is_secret(peer: Peer, start: Start) -> None:
    page = start()
    again = f"(session.close(), session.url += '?token={SECRET}', session.open(), session.address)"
    assert page.do(again) == peer.url
    for wrong in (f"http://a/?token={SECRET}", f"ws://a/ws?token={SECRET},ws://a/ws?token={SECRET}"):
        made = f"new session.constructor('{wrong}', {{}})"
        told = page.do(f"(() => {{ try {{ {made} }} catch (error) {{ return error.message }} }})()")
        assert "address" in told and SECRET not in told


# tldraw/tldraw#10116: closed with a reason that was too long, the socket stayed open.
@pytest.mark.parametrize("reason", ["'é'.repeat(5000)", "'\\u{1f916}'.repeat(1025)", "new Error('over')", "null"])
def test_whatever_the_reason_it_is_closed(peer: Peer, start: Start, reason: str) -> None:
    page = start()
    moving(peer, page)
    page.do(f"(session.close({reason}), null)")
    said = peer.expect(Bye).reason
    assert len(said) == (1024 if "repeat" in reason else len(said)) and page.do("session.state") == "closed"
