"""The page's client of a crowd, under Node: against a server that a test plays, and against a real one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_peer import Page, Peer, Serve, has_websocket

from rtcontrol_client.wire.crowd import CallMany, CrowdTerms, Join, MemberCall, ObserveMany
from rtcontrol_client.wire.messages import FunctionCall, Hello

STAY = {"name": "move", "arguments": {"velocity": 0}}
MOVE = FunctionCall(name="move", arguments={"velocity": 2})
TERMS = CrowdTerms(members=64, parts=64)
FALLING = "x 0 y 60 vx 0 vy -3 angle 0 spin 0 legs 0 0"
Start = Callable[..., Page]


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.server.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    if not has_websocket():
        pytest.skip("there is no `node` with a WebSocket to run the page's")
    started: list[Page] = []

    def begin(url: str, **hello: Any) -> Page:
        folder = tmp_path / str(len(started))
        started.append(Page(folder, "crowd.mjs", url, json.dumps({"agent": "paddle", "hz": 10, **hello})))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def welcomed(peer: Peer, page: Page, *members: str, **changes: Any) -> str:
    hello = peer.expect(Hello)
    assert hello.crowd is not None and hello.resume is None
    token = peer.welcome(crowd=TERMS, **changes)
    page.until("state", "live")
    for name in members:
        page.do(f"crowd.join('{name}', {{safe_calls: [{json.dumps(STAY)}]}})")
        assert [one.id for one in peer.expect(Join).members] == [name]
    return token


def say(peer: Peer, token: str, *calls: dict[str, Any]) -> None:
    told = {"epoch": 0, "status": "fresh", "call": MOVE, "ttl_ms": 60_000.0}
    made = [MemberCall(**{**told, **call}) for call in calls]
    peer.send(CallMany(session=token, t_server_ns=1, calls=made))


def look(page: Page, peer: Peer, **texts: str) -> dict[str, dict[str, Any]]:
    """What members see; gives what their calls are to name, by member."""
    assert page.do(f"crowd.observe({json.dumps(texts)})") is True
    return {one.id: {"id": one.id, "seq_obs": one.seq, "t_obs_ns": one.t_ns} for one in peer.expect(ObserveMany).looks}


def test_a_clock_that_is_set_neither_ends_a_call_nor_makes_an_old_one_young(peer: Peer, start: Start) -> None:
    page = start(peer.url)
    token = welcomed(peer, page, "anna")
    page.do("(globalThis.Date = class extends Date { static now() { return 0; } }, null)")
    seen = look(page, peer, anna="a")["anna"]
    say(peer, token, {"tick": 0, **seen})
    page.until("act", "anna", "call", MOVE.model_dump())
    page.do("(globalThis.Date.now = () => 9e15, crowd.look(), null)")
    assert page.do("crowd.call('anna').status") == "fresh"
    # A look of another time: its call would live for longer than what it answers allows.
    say(peer, token, {"tick": 1, **seen, "t_obs_ns": seen["t_obs_ns"] + 1_000})
    say(peer, token, {"tick": 2, **seen, "status": "held", "call": None, "cause": "decide"})
    page.until("call", "anna", "held", "decide")
    assert page.do("crowd.count.ignored") == 1


def test_a_call_that_throws_is_followed_by_safe_which_is_tried_until_it_no_longer_does(
    peer: Peer, start: Start
) -> None:
    page = start(peer.url)
    token = welcomed(peer, page, "anna", "bert")
    page.do("(crowd.stuck = {anna: 3}, null)")
    seen = look(page, peer, anna="a", bert="b")
    say(peer, token, {"tick": 0, **seen["anna"]}, {"tick": 1, "epoch": 1, **seen["bert"]})
    page.until("act", "bert", "call", MOVE.model_dump())  # what happens to one is its own
    page.until("act", "anna", "safe", STAY)


# can1357/oh-my-pi#4248, websockets/ws#1620: sent to a socket that is open and slow, messages gather without bound.
def test_on_a_line_that_is_full_only_the_newest_look_of_each_waits(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        page = start(f"ws://127.0.0.1:{deaf.getsockname()[1]}/ws")
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
    page = start(served.ws, agent="lander", hz=20)
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
