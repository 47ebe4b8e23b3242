"""The page: its protocol and physics under Node, and a match in headless Chromium."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from chromium import Chromium
from gateway_served import TOKEN, Serve, Served

from rtcontrol.bridges.wire import decode_json
from rtcontrol.envs.paddle.world import PaddleWorld
from rtcontrol.gateway.app import PAGE
from tests import conformance

NODE = shutil.which("node")
HERE = Path(__file__).parent
under_node = pytest.mark.skipif(NODE is None, reason="there is no `node` to run the page's modules")
in_chromium = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


def node(tmp_path: Path, script: str, *arguments: str) -> Any:
    """What a script of `page/` prints, as JSON; its first argument is the folder of the page's modules."""
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "page" / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), str(HERE / "page" / script), str(tmp_path / "page"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@under_node
def test_the_pages_protocol_passes_the_conformance_vectors(tmp_path: Path) -> None:
    told = node(tmp_path, "vectors.mjs", str(conformance.FOLDER))
    assert told["wrong"] == []
    valid = {v["name"]: v for v in conformance.load("valid")}
    assert {name for name, _ in told["again"]} == set(valid)
    for name, text in told["again"]:
        assert decode_json(text) == decode_json(json.dumps(valid[name]["json"])), name
        if valid[name]["canonical"]:
            assert json.loads(text) == valid[name]["json"], name


@under_node
def test_the_pages_physics_are_those_of_the_environment_to_the_last_bit(tmp_path: Path) -> None:
    games = []
    for seed in (0, 1, 7, 123_456, 2**31 + 5):
        world, chance, steps = PaddleWorld(seed), random.Random(seed), []
        for i in range(3000):
            # Mostly after the ball, so that there are rallies; sometimes anywhere, and too fast.
            own = _push(chance, world.ball_y - world.own_y) if i % 9 == 0 else None
            other = _push(chance, world.ball_y - world.other_y) if i % 7 == 0 else None
            if own is not None:
                world.set_model(own)
            if other is not None:
                world.set_other(other)
            world.step()
            counts = [world.own_score, world.other_score, world.own_hits, world.other_hits]
            steps.append([own, other, *world.observe().values(), *counts])
        assert all(counts), "a game without a point or a hit shows nothing"
        games.append({"seed": seed, "steps": steps})
    (tmp_path / "games.json").write_text(json.dumps(games))
    assert node(tmp_path, "physics.mjs", str(tmp_path / "games.json")) == {"steps": 15_000, "wrong": []}


def _push(chance: random.Random, off: float) -> float:
    return 8 * off if chance.random() < 0.7 else chance.uniform(-80, 80)


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


@pytest.mark.slow
@in_chromium
def test_an_instruction_takes_effect_from_the_keyboard_alone(playing: Served, page: Chromium) -> None:
    page.open(playing.url)
    page.until("rtcontrol.session.state === 'live'")
    page.key("/")
    assert page.value("document.activeElement.id") == "instruction"
    page.value("document.getElementById('instruction').select()")
    page.write("stay at the top")
    page.key("Enter")
    page.until("document.getElementById('force').textContent.includes('stay at the top')")
    page.until("rtcontrol.world.own_y < 8")
    page.key("Escape")
    assert page.value("document.activeElement.id") == "court"
    page.key("ArrowDown", down_s=1.5)
    assert page.value("rtcontrol.pilot.manual && rtcontrol.world.other_y > 50")
    page.key("w", down_s=1.5)
    assert page.value("rtcontrol.world.other_y") < 10
    page.key(" ")
    still = page.value("[rtcontrol.world.ball_x, rtcontrol.world.pause]")
    time.sleep(0.3)
    assert page.value("[rtcontrol.world.ball_x, rtcontrol.world.pause]") == still
    assert page.value("rtcontrol.session.state") == "live"


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1600])
def test_nothing_is_wider_than_the_screen(playing: Served, page: Chromium, width: int) -> None:
    page.open(playing.url, width, 800)
    page.until("rtcontrol.counts.ticks > 5")
    assert page.value("document.documentElement.scrollWidth") <= width
    box = page.value("(({left, right}) => [left, right])(document.getElementById('court').getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= width
    page.point((box[0] + box[1]) / 2, page.value("document.getElementById('court').getBoundingClientRect().top") + 5)
    page.until("rtcontrol.world.other_y < 6")


@pytest.mark.slow
@in_chromium
def test_a_server_that_is_gone_leaves_the_paddle_at_rest_and_is_found_again(serve: Serve, page: Chromium) -> None:
    first = serve(sessions="expert")
    port = first.gateway.port
    page.open(first.url)
    page.until("rtcontrol.counts.ticks > 5")
    first.gateway.close()
    first.admission.close()
    page.until("rtcontrol.session.state !== 'live'")
    page.until("rtcontrol.session.inForce.kind === 'safe' && rtcontrol.world.own_v === 0")
    ticks = page.value("rtcontrol.counts.ticks")
    serve(sessions="expert", port=port)
    page.until(f"rtcontrol.session.state === 'live' && rtcontrol.counts.ticks > {ticks + 5}", 30)


@pytest.mark.slow
@in_chromium
def test_beyond_loopback_the_page_asks_for_the_token(serve: Serve, tmp_path: Path) -> None:
    site = "http://robot.test"
    guarded = serve(sessions="expert", token=TOKEN, origins=frozenset({site}))
    port = guarded.gateway.port
    with Chromium(tmp_path / "profile", f"--host-resolver-rules=MAP robot.test:80 127.0.0.1:{port}") as page:
        page.open(f"{site}/")
        page.until("document.getElementById('gate').open")
        page.write(TOKEN)
        page.key("Enter")
        page.until("rtcontrol.session.state === 'live' && rtcontrol.counts.ticks > 5")


GAME = """<!doctype html><script>
const TOOLS = [{type: "function", function: {name: "turn", description: "Turn.", parameters: {type: "object",
  properties: {direction: {type: "string", enum: ["straight", "left", "right"]}}, required: ["direction"]}}}];
window.rtcontrol = {directions: [], ms: [], health: null};
const url = location.origin;
async function decide() {
  const began = performance.now();
  const answer = await fetch(`${url}/v1/function_call`, {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({messages: [{role: "user", content: "Wall ahead! Turn LEFT."}], tools: TOOLS,
      environment: ["pos=1,2"]})});
  const told = await answer.json();
  rtcontrol.ms.push(performance.now() - began);
  rtcontrol.directions.push(told.args?.direction || told.heads?.arg1);
  setTimeout(decide, 50);
}
fetch(`${url}/health`).then(r => r.json()).then(d => { rtcontrol.health = d; for (let i = 0; i < 4; i++) decide(); });
</script>"""


@pytest.mark.slow
@in_chromium
def test_a_game_made_for_simpletools_server_runs_from_the_static_folder(
    serve: Serve, page: Chromium, tmp_path: Path
) -> None:
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "game.html").write_text(GAME)
    own = serve(static=tmp_path / "games")
    page.open(f"{own.url}static/game.html")
    page.until("rtcontrol.directions.length > 40")
    assert page.value("rtcontrol.health.loaded") is True
    assert set(page.value("rtcontrol.directions")) <= {"straight", "left", "right"}
