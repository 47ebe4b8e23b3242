"""The live view of a run and of a server's sessions, with commands of people; its modules and its dialog."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from chromium import Chromium, in_chromium
from gateway_peer import TOKEN, Flying, Serve, Served
from starlette.applications import Starlette
from test_gateway_ws import Line, line
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rtcontrol.gateway import view as views
from rtcontrol_client.wire.messages import Bye, Executed
from tests.helpers.processes import until


def look(page: ClientConnection, *wanted: Any, picture: bool = False, seconds: float = 20.0) -> dict[str, Any]:
    """Return the next snapshot that satisfies all of `wanted`, with `picture` only after a picture."""
    end = time.monotonic() + seconds
    pictured = not picture
    while time.monotonic() < end:
        data = page.recv(timeout=seconds)
        if isinstance(data, bytes):
            assert data.startswith(b"\x89PNG")
            pictured = True
        elif (result := json.loads(data)).get("number") is not None and pictured and all(w(result) for w in wanted):
            return result
    raise AssertionError("it was not to be seen")


def view(url: str, **options: Any) -> Any:
    return connect(url.replace("http", "ws", 1) + "view/ws", compression=None, **options)


def test_run_is_watched_and_controlled_from_page(flying: Flying) -> None:
    with view(flying.url) as page:
        result = look(page, lambda t: t["phase"] == "running" and t["ticks"], picture=True)
        assert result["env"] == "lander" and result["state"] == "running" and result["deadline_ms"] == 62.5
        assert {"kind", "k"} <= set(result["ticks"][-1]) and result["counts"]["ticks"] > 0
        assert result["call"].startswith("engines(")
        numbers = [t["k"] for _ in range(4) for t in look(page)["ticks"]]
        assert numbers == sorted(set(numbers)), "each tick once"
        page.send('{"say": "pause"}')
        paused = look(page, lambda t: t["state"] == "paused" and t["ticks"] and t["ticks"][-1].get("why") == "paused")
        assert paused["safe_calls"] == ["engines(main=0, side=0)"]
        page.send('{"instruct": "hover at 0.7"}')
        page.send('{"say": "resume"}')
        look(page, lambda t: t["state"] == "running" and t["instruction"] == "hover at 0.7")
        page.send(json.dumps({"instruct": "a" * 70_000}))
        until(lambda: "70000 bytes, but at most 65536" in str(page.recv(timeout=20)))
        look(page, lambda t: t["instruction"] == "hover at 0.7" and t["phase"] == "running")
        for wrong in ("[]", "no", '{"say": "hurry"}', '{"say": "confirm", "k": "x"}'):
            page.send(wrong)
        until(lambda: "Invalid message" in str(page.recv(timeout=20)))
        look(page, lambda t: t["state"] == "running")


def test_page_process_ignores_signals_and_other_origins(flying: Flying) -> None:
    children = psutil.Process(flying.popen.pid).children()
    (pages,) = [c for c in children if "rtcontrol.gateway.view" in " ".join(c.cmdline())]
    assert os.getsid(pages.pid) != os.getsid(flying.popen.pid)
    pages.send_signal(signal.SIGINT)
    assert pages.nice() > psutil.Process(flying.popen.pid).nice()
    assert httpx.get(flying.url).status_code == 200 and "live.js" in httpx.get(flying.url).text
    for origin in ("http://evil.example", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus):
            view(flying.url, origin=origin)
    with pytest.raises(InvalidStatus):
        view(flying.url, additional_headers={"X-Forwarded-For": "10.0.0.7"})
    assert httpx.get(flying.url, headers={"host": "evil.example"}).status_code == 421


@in_chromium
def test_page_shows_the_world_and_pauses(flying: Flying, tmp_path: Path) -> None:
    with Chromium(tmp_path) as page:
        page.open(flying.url)
        page.until("rtcontrol.pictures > 1 && rtcontrol.last.phase === 'running'")
        page.key("p")
        page.until("rtcontrol.last.state === 'paused'")
        page.until("document.querySelector('[data-say=pause]').disabled")
        assert "engines(main=0, side=0)" in page.value("document.getElementById('call').textContent")
        page.key("r")
        page.until("rtcontrol.last.state === 'running'")
        page.open(flying.url, 390, 844)
        page.until("rtcontrol.last?.ticks !== undefined")
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []


def test_stuck_viewer_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SEND_TIMEOUT_S", 0.05)
    coming, over = [{"type": "websocket.connect"}], asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            await asyncio.Event().wait()

    async def receive() -> Any:
        if coming:
            return coming.pop(0)
        await over.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    app = Starlette(routes=views.view_routes(lambda name: views.PageState(), list))
    scope = {"type": "websocket", "path": "/view/ws", "headers": [], "query_string": b"", "subprotocols": []}
    asyncio.run(asyncio.wait_for(app(scope | {"extensions": {"rtcontrol.abort": over.set}}, receive, send), 20))


def test_silent_viewers_never_keep_operators_out() -> None:
    class Viewer:
        closed = 0

        async def close(self, code: int, reason: str) -> None:
            self.closed = code

    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def fill() -> None:
        slots, operator = views.ViewerSlots(), Viewer()
        slots.add(operator)
        slots.mark_active(operator)
        silent = [Viewer() for _ in range(3 * views.MAX_VIEWERS)]
        for viewer in silent:
            slots.add(viewer)
            await settle()
            assert viewer.closed == operator.closed == 0
        assert [bool(viewer.closed) for viewer in silent] == [True] * 32 + [False] * 16, "the longest silent go first"
        for viewer in (speaking := silent[-16:]):
            slots.mark_active(viewer)
            await settle()
        slots.mark_active(silent[0])  # it has lost its place
        await settle()
        assert [operator.closed, *(viewer.closed for viewer in speaking)] == [1013, *[0] * 16]

    asyncio.run(fill())


def test_state_with_nan_is_json_for_browsers() -> None:
    state = {"hz": float("nan"), "ticks": [{"latency_ms": float("-inf")}], "text": "NaN Infinity", "k": object}
    assert json.loads(views.as_json(state), parse_constant=lambda name: pytest.fail(name)) == {
        "hz": None, "ticks": [{"latency_ms": None}], "text": "NaN Infinity", "k": "<class 'object'>",
    }  # fmt: skip


SHOWN = "document.getElementById('{}').textContent"
# What a broken server, or a client with odd names, may send to the page.
NONSENSE = (
    "no JSON",
    "null",
    "[]",
    '"text"',
    '{"counts": {}, "ticks": null}',
    '{"counts": {"misses": 1}, "ticks": [null], "latency_ms": {}}',
    '{"counts": {}, "ticks": [], "latency_ms": {"p50": "fast"}, "model": 7, "causes": 5}',
    '{"answer": {"a": [1]}}',
)
ODD: dict[str, Any] = {
    "counts": {"misses": 1, "skipped_releases": 0, "releases": 9},
    "ticks": [{"k": 1, "latency_ms": "late", "decide_ms": 1e300, "kind": "<b>"}] * 2000,
    "latency_ms": {"p50": None, "p99": "x", "max": 1e300},
    "env": "<img src=x onerror=alert(1)>",
    "text": "wall " * 100_000,
    "call": "drive(\u202e30)",
    "causes": {"__proto__": 3, "<script>": 1},
    "subcauses": {"<script>.<i>": 2},
    "log": ["\u0007<b>bold</b>"],
    "instruction": "\u202ego",
    "confidence": 1e308,
    "hz": -1,
    "state": "running",
    "asking": None,
    "deadline_ms": None,
}


@in_chromium
def test_page_without_session_says_how_to_start_and_survives_nonsense(serve: Serve, tmp_path: Path) -> None:
    with Chromium(tmp_path) as page:
        page.open(f"{serve().url}live.html")
        page.until(f"{SHOWN.format('title')} === 'No session to show yet'")
        assert "connect a client or robot" in page.value(SHOWN.format("lead"))
        for text in NONSENSE:
            page.value(f"rtcontrol.socket.onmessage({{data: {json.dumps(text)}}})")
            assert text.startswith('{"answer"') or "cannot be shown" in page.value(SHOWN.format("answer"))
        page.value(f"rtcontrol.socket.onmessage({{data: JSON.stringify({json.dumps(ODD)})}})")
        assert page.value(SHOWN.format("title")) == ODD["env"] and page.value("document.images.length") == 0
        assert page.value(SHOWN.format("call")) == "drive(\ufffd30)"
        assert page.value(SHOWN.format("text") + ".length") < 5000
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        page.value("new Promise((done) => setTimeout(done, 300))")  # until the chart is painted
        assert page.errors == []


@in_chromium
def test_text_box_selects_its_text_after_enter(flying: Flying, tmp_path: Path) -> None:
    with Chromium(tmp_path) as page:
        page.open(flying.url)
        page.until("rtcontrol.last?.phase === 'running'")
        page.key("/")
        page.write("hover at 0.8")
        page.key("Enter")
        box = "document.getElementById('instruction')"
        page.until(f"{box}.selectionStart === 0 && {box}.selectionEnd === 12")


@pytest.fixture
def session(served: Served) -> Iterator[tuple[str, Line]]:
    with line(served, max_queue=None) as client:
        client.hello()
        client.call()
        newest = httpx.get(served.url + "view/sessions").json()[-1]
        yield newest["id"], client


def test_server_session_is_shown_paused_and_stopped(served: Served, session: tuple[str, Line]) -> None:
    name, client = session
    url = served.ws.removesuffix("ws") + f"view/ws?session={name}"
    with connect(url, compression=None) as page:
        result = look(page, lambda t: t["counts"]["ticks"] > 0)
        assert result["agent"] == "lander" and result["hz"] == 50.0
        page.send('{"say": "pause"}')
        look(page, lambda t: t["state"] == "paused")
        until(lambda: client.call().status == "safe")
        page.send('{"say": "stop"}')
        with pytest.raises(ConnectionClosed):
            look(page, lambda t: False)
    assert name not in [s["id"] for s in httpx.get(served.url + "view/sessions").json()]


def values(text: str, name: str) -> dict[str, float]:
    matches = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.M)
    return {labels: float(value) for labels, value in matches}


def test_expired_calls_lower_no_counter(serve: Serve) -> None:
    separate = serve("random")
    with line(separate) as client:
        client.hello(capabilities=["executed"])
        calls = [call for call in (client.call() for _ in range(20)) if call.status == "fresh" and call.call][:5]
        assert calls
        session = separate.sessions.threads()[0]
        account = session.loop.account
        # What was observed is stale from now on, and no more ticks are on time.
        until(lambda: account.misses_by_cause["stale_observation"] > 1)
        assert values(separate.get("metrics"), "rtcontrol_on_time_total")[""] == account.on_time
        for call in calls:
            token, now = client.welcome.session, time.monotonic_ns()
            result = {"session": token, "tick": call.tick, "epoch": call.epoch, "outcome": "expired", "t_ns": now}
            client.send(Executed(**result))
        most = account.on_time
        until(lambda: sum(account.breakdowns["acknowledged"].values()) >= len(calls))
        assert values(separate.get("metrics"), "rtcontrol_on_time_total")[""] >= most > account.on_time
    assert account.misses_by_cause["execute"] == len(calls)


def test_counts_of_ended_sessions_stay(serve: Serve) -> None:
    separate = serve()
    sessions = []
    for leaves in (False, True):
        with line(separate) as client:
            client.hello()
            for _ in range(4):
                client.call()
            sessions.append(session := separate.sessions.threads()[-1])
            if leaves:
                client.send(Bye(session=client.welcome.session))
        until(lambda session=session: session.session.life.state in ("parked", "over"))
        text = separate.get("metrics")
        ticks = sum(s.loop.account.ticks for s in sessions)
        assert values(text, "rtcontrol_ticks_total")[""] == separate.sessions.stats.current().counts["ticks"] == ticks
        # Those with a latency are in its histogram, cumulative, in seconds.
        buckets = [v for k, v in values(text, "rtcontrol_latency_seconds_bucket").items()]
        assert buckets == sorted(buckets) and buckets[-1] == values(text, "rtcontrol_latency_seconds_count")[""] > 0
        assert 0 < values(text, "rtcontrol_latency_seconds_sum")[""] < 60
    assert separate.sessions.threads() == sessions[:1] and min(s.loop.account.ticks for s in sessions) >= 4


def test_client_modules_are_served(served: Served) -> None:
    answer = httpx.get(f"{served.url}client/index.js")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "no-cache"
    names = re.findall(r'from "\./(\w+\.js)"', answer.text)
    assert "client.js" in names
    assert {httpx.get(f"{served.url}client/{name}").status_code for name in names} == {200}
    assert httpx.get(f"{served.url}client/../../package.json").status_code == 404


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
def test_refused_token_is_removed_and_typed_one_connects(gated: Chromium) -> None:
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
