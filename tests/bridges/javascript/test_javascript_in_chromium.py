"""The same modules in headless Chromium, as a server gives them to a page of the user's own; and how the gateway's page
asks for a code."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import conformance
from tests.bridges.program import garbage
from tests.bridges.web_ends import Served
from tests.helpers.processes import until
from tests.rtcontrol.gateway.chromium import BINARY, Chromium

HERE = Path(__file__).resolve().parent
pytestmark = [
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="there is no Chromium to show the page"),
]
VECTORS = """<!doctype html><script type="module">
import * as client from "/client/index.js";
import { check } from "./check_vectors.mjs";
const texts = {};
for (const name of ["valid", "invalid", "ttl", "clock", "crowd", "phase"]) {
  texts[name] = await (await fetch(`${name}.json`)).text();
}
window.rtcontrol = check((name) => texts[name], client);
</script>"""
GAME = """<!doctype html><script type="module">
import { connect } from "/client/index.js";
const tools = [{ name: "steer", description: "Turn the wheel.", parameters: { type: "object",
  properties: { angle: { type: "integer", minimum: -30, maximum: 30, multipleOf: 10 } }, required: ["angle"] } }];
const told = { states: [], calls: 0, safe: 0, late: 0 };
const at = new URLSearchParams(location.search).get("at") ?? location.host;
const game = connect(`ws://${at}/ws`, { tools, instruction: "Steer.", hz: 20, ttlMs: 500,
  safeCall: { name: "steer", arguments: { angle: 0 } }, observe: () => ({ left: 40, right: 10 }),
  onCall: (call, message) => {
    told.calls += 1;
    told.late += performance.now() * 1e6 - message.t_obs_ns > 500e6;
  },
  onSafe: () => { told.safe += 1; }, onState: (state) => told.states.push(state) });
window.rtcontrol = { game, told };
</script>"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with a folder of pages."""
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in conformance.NAMES:
        shutil.copy(conformance.FOLDER / f"{name}.json", pages)
    shutil.copy(HERE / "check_vectors.mjs", pages)
    (pages / "vectors.html").write_text(VECTORS)
    (pages / "game.html").write_text(GAME)
    one = Served(tmp_path, "--static", str(pages))
    one.start()
    until(lambda: one.logs().count("listening on") == 2, "no page is served")
    yield one
    one.stop()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as browser:
        yield browser


def address(served: Served, path: str) -> str:
    return served.url.replace("ws", "http", 1).removesuffix("ws") + path


def test_the_modules_pass_the_conformance_vectors(served: Served, page: Chromium) -> None:
    page.open(address(served, "static/vectors.html"))
    page.until("rtcontrol.wrong !== undefined", 60)
    assert page.value("rtcontrol.wrong") == []
    assert page.value("rtcontrol.again.length") > 20
    assert "Uncaught" not in json.dumps(page.errors)


def test_a_page_of_ones_own_has_a_session_and_survives_its_server(served: Served, page: Chromium) -> None:
    page.open(address(served, "static/game.html"))
    page.until("rtcontrol.told.calls > 10 && rtcontrol.game.inForce().status === 'fresh'", 60)
    session = page.value("rtcontrol.game.welcome.session")
    served.signal(signal.SIGSTOP)
    page.until("rtcontrol.told.safe === 1 && rtcontrol.game.state === 'waiting'", 60)
    served.signal(signal.SIGCONT)
    calls = page.value("rtcontrol.told.calls")
    page.until(f"rtcontrol.told.calls > {calls + 5}", 60)
    assert page.value("rtcontrol.game.welcome.session") == session
    served.kill()
    page.until("rtcontrol.game.inForce().cause === 'expired'", 60)
    served.start()
    calls = page.value("rtcontrol.told.calls")
    page.until(f"rtcontrol.told.calls > {calls + 5}", 60)
    assert page.value("rtcontrol.told.late") == 0
    page.value("rtcontrol.game.close('over')")
    page.until("rtcontrol.game.state === 'closed' && rtcontrol.game.inForce().status === 'safe'")


@pytest.mark.parametrize(
    "parts",
    [[b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"], [b"\x00\xff" * 5000], [None]],
    ids=["http", "bytes", "closes"],
)
def test_a_peer_that_is_no_server_executes_nothing(served: Served, page: Chromium, parts: list[bytes | None]) -> None:
    with garbage(parts) as (peer, met):
        page.open(address(served, f"static/game.html?at={peer}"))
        until(lambda: len(met) > 2, "it does not try again")
        assert page.value("[rtcontrol.told.calls, rtcontrol.told.safe, rtcontrol.game.inForce().cause]") == [
            0,
            0,
            "no_call_yet",
        ]
        page.value("rtcontrol.game.close()")
        page.until("rtcontrol.game.state === 'closed' && rtcontrol.told.safe === 1")
        assert "Uncaught" not in json.dumps(page.errors)
