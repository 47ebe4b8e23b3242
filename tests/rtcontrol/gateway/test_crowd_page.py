"""The page `/crowd`: its rules under Node, and the village in headless Chromium, played with the bundled model."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import httpx
import pytest
from chromium import Chromium
from gateway_peer import NODE, SCRIPTS, copy_page
from gateway_served import TOKEN, Serve, Served

from rtcontrol.gateway import Gateway, GatewayOptions
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.serve.session_manager import SessionManager
from tests.models.recipes.scripts import recipe
from tests.rtcontrol.serve.conftest import serving

village = recipe("village")

under_node = pytest.mark.skipif(NODE is None, reason="there is no `node` to run the page's modules")
pytestmark = pytest.mark.serial
in_chromium = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


@pytest.fixture(scope="module")
def village_page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's own modules say."""
    folder = tmp_path_factory.mktemp("village")
    copy_page(folder)
    command = [str(NODE), str(SCRIPTS / "village.mjs"), str(folder / "page")]
    done = subprocess.run(command, input=json.dumps(WHO), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


WHO: dict[str, tuple[int, str]] = {
    "everyone, gather at the well": (50, "gather at the well"),
    "Everyone in red, gather at the well!": (10, "gather at the well"),
    "go to the well": (50, "go to the well"),
    "stay at the well": (50, "stay at the well"),
    "those in blue and green: go home": (20, "go home"),
    "reds, run home": (10, "run home"),
    "The yellow ones wander about.": (10, "wander about"),
    "villager 7: flee the fox": (1, "flee the fox"),
    "villagers 7, 8 and 12 go home": (3, "go home"),
    "Ada and Ben, don’t move": (2, "don't move"),
    "everyone except the reds, stop": (40, "stop"),
    "everyone but Ada and Ben, stop": (48, "stop"),
    "all in purple stop": (10, "stop"),
}


@under_node
@pytest.mark.parametrize("sentence", WHO)
def test_who_is_meant_is_found_by_rules(village_page: dict[str, Any], sentence: str) -> None:
    assert village_page["meant"][sentence] == list(WHO[sentence])


@under_node
def test_who_is_meant_by_nobody_and_what_is_not_said_are_told(village_page: dict[str, Any]) -> None:
    assert "Nobody is meant by “villager 99”" in village_page["errors"][0]
    assert "10 are meant by “everyone in red”: say what they are to do" in village_page["errors"][1]
    assert village_page["errors"][2] == "Say who is to do what."


@under_node
def test_those_near_a_place_are_those_who_stand_there(village_page: dict[str, Any]) -> None:
    assert 0 < village_page["near"] < 50


@under_node
def test_the_page_offers_the_tools_that_the_bundled_model_learnt(village_page: dict[str, Any]) -> None:
    learnt = TrainingMetadata.of(ZOO / "village")
    assert learnt is not None and learnt.knows(tool_schemas(village_page["tools"]))
    assert village_page["tools"] == village.tools


@under_node
def test_what_villagers_see_is_worded_as_it_was_taught(village_page: dict[str, Any]) -> None:
    for text in village_page["looks"]:
        for saying in ("go to the well", "flee the fox", "wander", "run home"):
            assert village.teacher(saying, text)
    words = {word for text in village_page["looks"] for word in text.split()}
    rng = random.Random(0)
    assert words <= {word for _ in range(500) for word in village.situations(rng)[1].split()}


@under_node
def test_whoever_does_what_is_right_gets_there(village_page: dict[str, Any], tmp_path: Path) -> None:
    # By the teacher's calls, four times a second: what the model is measured against.
    command = [str(NODE), str(SCRIPTS / "village_walk.mjs"), str(tmp_path / "page")]
    copy_page(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as walk:
        assert walk.stdin is not None and walk.stdout is not None
        for _ in range(4 * 25):
            looks = json.loads(walk.stdout.readline())["looks"]
            calls = [village.teacher("gather at the well", text) for text in looks]
            walk.stdin.write(json.dumps([{"name": one} if isinstance(one, str) else one for one in calls]) + "\n")
            walk.stdin.flush()
        there = json.loads(walk.stdout.readline())["well"]
        walk.kill()
    assert there >= 48


def test_the_page_is_served_under_the_policy_of_the_others(serve: Serve) -> None:
    served = serve()
    answer = httpx.get(f"{served.url}crowd")
    assert answer.status_code == 200 and "<script type" in answer.text and "<script>" not in answer.text
    assert answer.headers["content-security-policy"] == httpx.get(served.url).headers["content-security-policy"]


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def peopled(serve: Serve) -> Served:
    """A server that decides by the bundled model."""
    return serve(sessions=None)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as browser:
        yield browser


def opened(page: Chromium, served: Served, width: int = 1280, villagers: int = 20) -> None:
    """Fewer villagers where it does not matter: the tests share the machine."""
    page.open(f"{served.url}crowd#seed=7&villagers={villagers}", width, 860)
    page.until("rtcontrol.crowd.state === 'live' && rtcontrol.crowd.count.fresh > 40", 120)


def tell(page: Chromium, sentence: str) -> None:
    page.key("/")
    page.write(sentence)
    page.key("Enter")


def click(page: Chromium, x: float, y: float) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


AT_WELL = (
    "rtcontrol.village.villagers.filter((one) => one.colour === 'red' && rtcontrol.village.isAt(one, 'well')).length"
)


# All do what they were told last: to stand.
STILL = (
    "[...rtcontrol.shown].every(([{vx, vy}, {calls, heardAt}]) =>"
    " Math.hypot(vx, vy) < 0.05 && calls[0]?.at > heardAt + 1500)"
)
# Who has nobody near.
APART = (
    "rtcontrol.village.villagers.filter((one) => rtcontrol.village.villagers.every((other) =>"
    " other === one || Math.hypot(other.x - one.x, other.y - one.y) > 3)"
    " && rtcontrol.view.pointOf(one)[1] < innerHeight - 5)"
)


@pytest.mark.slow
@in_chromium
def test_those_in_red_are_told_in_words_and_go_there_and_a_click_shows_the_calls(
    peopled: Served, page: Chromium, tmp_path: Path
) -> None:
    opened(page, peopled)
    assert page.value("document.getElementById('model-name').textContent") == "village, 4 Hz each"
    tell(page, "everyone in red, gather at the well")
    page.until("document.getElementById('force').textContent.includes('4 are told')")
    page.until(f"{AT_WELL} === 4", 120)
    goals = "Object.fromEntries([...rtcontrol.shown].map(([one, {goal}]) => [one.colour, goal]))"
    assert page.value(f"[{goals}.red, {goals}.blue]") == ["gather at the well", "wander about"]
    page.value("rtcontrol.tell('stop')")  # who stands still can be clicked
    page.until(STILL, 60)
    click(page, *page.value(f"rtcontrol.view.pointOf({APART}[0])"))
    page.until("rtcontrol.panel.chosen !== null")
    page.until("document.querySelectorAll('#calls tr').length > 2")
    assert page.value("document.getElementById('one-call').textContent") == "stay()"
    page.until("[...document.querySelectorAll('#calls tr')].some(({textContent}) => textContent.endsWith(' ms'))")
    assert "well" in page.value("document.getElementById('one-look').textContent")
    page.until("document.getElementById('p99').textContent.endsWith(' ms')")
    page.until("Number(document.getElementById('frames').textContent) > 0")
    page.shoot(tmp_path / "village.png")
    assert (tmp_path / "village.png").stat().st_size > 30_000
    assert page.errors == []


@pytest.mark.slow
@in_chromium
def test_it_is_played_from_the_keyboard_alone_and_everything_has_a_name(peopled: Served, page: Chromium) -> None:
    opened(page, peopled)
    page.value("document.getElementById('village').focus()")
    page.key("ArrowDown")
    assert page.value("rtcontrol.panel.chosen.number") == 1
    page.key("ArrowUp")
    assert page.value("document.getElementById('who').value") == "villager-20"
    page.key("Escape")
    assert page.value("rtcontrol.panel.chosen") is None
    tell(page, "villager 7, stop")
    page.until("rtcontrol.shown.get(rtcontrol.village.villagers[6]).goal === 'stop'")
    page.key("Escape")
    assert page.value("document.activeElement.id") == "village"
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "image", "img")
    shown = [node for node in tree if node.get("role", {}).get("value") in roles and not node["ignored"]]
    assert len(shown) > 9
    assert [node for node in shown if not node.get("name", {}).get("value")] == []


@pytest.mark.slow
@in_chromium
def test_who_is_told_to_sleep_leaves_the_crowd_and_comes_back_with_the_next_word(
    peopled: Served, page: Chromium
) -> None:
    opened(page, peopled)
    tell(page, "those in blue, go to sleep")
    page.until("rtcontrol.crowd.members.size === 16")
    page.value("rtcontrol.tell('those in blue, go to the mill')")
    page.until("rtcontrol.crowd.members.size === 20")
    blue = "rtcontrol.village.villagers.filter(({colour}) => colour === 'blue')"
    page.until(f"{blue}.every(({{id}}) => rtcontrol.crowd.call(id).status === 'fresh')", 30)


@pytest.mark.slow
@in_chromium
def test_words_that_the_model_never_met_are_not_acted_on(peopled: Served, page: Chromium) -> None:
    opened(page, peopled)
    tell(page, "perform somersaults beside Xanadu")
    page.until("document.getElementById('unsure').textContent.startsWith('20 do not understand')", 30)
    page.until("rtcontrol.village.villagers.every(({call}) => call.name === 'stay')")
    page.value("rtcontrol.tell('go home')")
    page.until("document.getElementById('unsure').hidden", 30)


@pytest.mark.slow
@in_chromium
def test_a_decoder_that_is_killed_is_seen_as_misses_and_they_go_on_when_it_is_back(
    tmp_path: Path, page: Chromium
) -> None:
    gateways: list[Gateway] = []

    def http(admission: SessionManager, pool: DecoderPool) -> Gateway:
        gateways.append(Gateway(admission, pool, GatewayOptions(port=0)))
        return gateways[0]

    with serving(tmp_path / "out", http=http, host="ray", model=None) as made:
        page.open(f"{gateways[0].url}crowd#seed=7&villagers=10", 1280, 860)
        page.until("rtcontrol.crowd.state === 'live' && rtcontrol.crowd.count.fresh > 30", 120)
        os.kill(made.server._pool._models._answer["pid"], signal.SIGKILL)  # type: ignore[attr-defined]
        ringed = "rtcontrol.village.villagers.filter((one) => rtcontrol.shown.get(one).missedAt > 0).length"
        page.until(f"{ringed} === 10 && rtcontrol.counts.causes.get('host') >= 10", 60)
        page.until(
            "[...document.querySelectorAll('#causes li')].some(({textContent}) => textContent.startsWith('host'))"
        )
        fresh = page.value("rtcontrol.crowd.count.fresh")
        page.until(f"rtcontrol.crowd.count.fresh > {fresh + 50}", 120)
    assert page.errors == []


@pytest.mark.slow
@in_chromium
def test_a_server_that_is_gone_leaves_them_standing_and_they_come_back(serve: Serve, page: Chromium) -> None:
    first = serve(sessions=None)
    port = first.gateway.port
    opened(page, first)
    first.gateway.close()
    first.admission.close()
    page.until("rtcontrol.crowd.state !== 'live'")
    page.until("rtcontrol.village.villagers.every(({id}) => rtcontrol.crowd.call(id).status === 'safe')")
    page.until("rtcontrol.village.villagers.every(({vx, vy}) => Math.hypot(vx, vy) < 0.3)")
    fresh = page.value("rtcontrol.crowd.count.fresh")
    serve(sessions=None, port=port)
    page.until(f"rtcontrol.crowd.state === 'live' && rtcontrol.crowd.count.fresh > {fresh + 20}", 60)


# openfrontio/OpenFrontIO#4010, nmnsnv/maplestory-wasm#70: what a tab was away for is caught up with in one frame.
@pytest.mark.slow
@in_chromium
def test_a_tab_that_was_away_does_not_catch_up_nor_flood_the_server(peopled: Served, page: Chromium) -> None:
    opened(page, peopled)
    before = page.value("[rtcontrol.village.time, rtcontrol.crowd.count.observed]")
    page.value("const end = performance.now() + 4000; while (performance.now() < end);")
    after = page.value(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done([rtcontrol.village.time, rtcontrol.crowd.count.observed]))))"
    )
    assert after[0] - before[0] < 3  # of the four seconds
    assert after[1] - before[1] < 20 * 60
    page.until("rtcontrol.crowd.state === 'live'")
    page.value(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert page.value("rtcontrol.crowd.state") == "closed"
    fresh = page.value("rtcontrol.crowd.count.fresh")
    page.value(
        "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.until(f"rtcontrol.crowd.state === 'live' && rtcontrol.crowd.count.fresh > {fresh + 20}", 60)


# CreateJS/EaselJS#966, openlayers/openlayers#1520: on dense screens a click hits what is elsewhere.
@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("density", [1, 2.5])
def test_a_click_hits_whom_it_points_at_on_every_screen(peopled: Served, page: Chromium, density: float) -> None:
    opened(page, peopled)
    page.call("Emulation.setDeviceMetricsOverride", width=1000, height=700, deviceScaleFactor=density, mobile=False)
    page.until(f"rtcontrol.view.canvas.width === Math.round(rtcontrol.view.canvas.clientWidth * {density})")
    page.value("rtcontrol.tell('stop')")
    page.until(STILL, 60)
    corners = page.value(f"{APART}.map((one) => [one.number, ...rtcontrol.view.pointOf(one)])")
    for number, *_ in (min(corners, key=lambda c: c[1] + c[2]), max(corners, key=lambda c: c[1] + c[2])):
        click(page, *page.value(f"rtcontrol.view.pointOf(rtcontrol.village.villagers[{number} - 1])"))
        page.until(f"rtcontrol.panel.chosen?.number === {number}")


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1600])
def test_nothing_is_wider_than_the_screen(peopled: Served, page: Chromium, width: int) -> None:
    opened(page, peopled, width)
    page.value("rtcontrol.panel.choose(rtcontrol.village.villagers[3])")
    page.until("document.querySelectorAll('#calls tr').length > 2")
    assert page.value("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@in_chromium
def test_beyond_loopback_the_page_asks_for_the_token(serve: Serve, tmp_path: Path) -> None:
    site = "http://village.test"
    guarded = serve(sessions=None, token=TOKEN, origins=frozenset({site}))
    rule = f"--host-resolver-rules=MAP village.test:80 127.0.0.1:{guarded.gateway.port}"
    with Chromium(tmp_path / "profile", rule) as page:
        page.open(f"{site}/crowd")
        page.until("document.getElementById('gate').open")
        page.write(TOKEN)
        page.key("Enter")
        page.until("rtcontrol.crowd.state === 'live' && rtcontrol.crowd.count.fresh > 5", 60)
