"""The page `/crowd`: its rules under Node, and the village in headless Chromium, played with the bundled model."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from chromium import Chromium
from gateway_peer import NODE, SCRIPTS, Serve, Served, copy_page

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.recipes import recipe

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
def test_words_that_the_model_never_met_are_not_acted_on(peopled: Served, page: Chromium) -> None:
    opened(page, peopled)
    tell(page, "perform somersaults beside Xanadu")
    page.until("document.getElementById('unsure').textContent.startsWith('20 do not understand')", 30)
    page.until("rtcontrol.village.villagers.every(({call}) => call.name === 'stay')")
    page.value("rtcontrol.tell('go home')")
    page.until("document.getElementById('unsure').hidden", 30)
