"""SimpleTool's browser games, played in headless Chromium through a gateway: unmodified files, at the rate at which the
games themselves ask. `RTCONTROL_SIMPLETOOL_GAMES` names the folder `demos/` of github.com/HaxxorCialtion/SimpleTool."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chromium
from chromium import Chromium

from rtcontrol.envs.simpletool import GAMES
from rtcontrol.hosts.deciders import ExpertSource
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, Host
from rtcontrol.models.call import Call
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.helpers.processes import until

FOLDER = os.environ.get("RTCONTROL_SIMPLETOOL_GAMES", "")
MISSING = (
    "there is no Chromium to show the games"
    if chromium.BINARY is None
    else f"RTCONTROL_SIMPLETOOL_GAMES ({FOLDER or 'not set'}) names no folder with {GAMES['pong'].page}"
    if not FOLDER or not (Path(FOLDER) / GAMES["pong"].page).is_file()
    else None
)
# Frames a second, counted beside the game; the score of pong and flappy is what the page shows.
COUNT = "(() => { window.frames_ = 0; const t = () => { frames_++; requestAnimationFrame(t); }; t(); })()"
# A person of the arena, as keys held: walks at random, and shoots along the row or column of the nearest ship.
PERSON = """(() => { let until = 0; setInterval(() => { if (!game?.running) return;
  const p = game.player, now = performance.now(), keys = game.keys;
  if (now > until) { until = now + 300 + 500 * Math.random(); for (const k of 'wasd') keys[k] = Math.random() < 0.35; }
  const far = a => Math.hypot(a.x - p.x, a.y - p.y);
  const near = game.ais.filter(a => a.alive).sort((a, b) => far(a) - far(b))[0];
  for (const k of 'ijkl') keys[k] = false;
  if (near) { const dx = near.x - p.x, dy = near.y - p.y;
    if (Math.abs(dy) < Math.abs(dx)) keys[dx < 0 ? 'j' : 'l'] = Math.abs(dy) < 30;
    else keys[dy < 0 ? 'i' : 'k'] = Math.abs(dx) < 30; }
}, 50); })()"""


# How a page is brought into a state `s`, and asks about it once.
SETUP = {
    "pong": "running = true",
    "flappy": "game.client = new FCClient('http://localhost')",
    "arena": "game = new Game(1, 'default')",
}
PUT = {
    "pong": "ball.y = s[0]; aiPaddle.y = s[1]; ball.vx = s[2] ? -5 : 5; ball.vy = s[3] ? 3 : -3; history = s[4];"
    " aiPending = false; await callAI();",
    "flappy": "game.bird.y = s[0]; game.bird.vy = s[1]; game.gapSize = s[4];"
    " game.pipes = [{x: s[2] + game.bird.x, gapY: s[3], passed: false}]; await game.aiDecision();",
    "arena": "const ai = game.ais[0]; Object.assign(ai, {x: s[0], y: s[1], cd: s[3], history: s[4], pending: false});"
    " [game.player.x, game.player.y] = s[2]; await game.aiThink(ai);",
}


class TeacherPool(InProcessPool):
    """Whatever is asked for, the rule of the game with these tools decides."""

    def open(self, session: str, source: DeciderSource) -> Host:
        tools: Any = source.tools  # type: ignore[attr-defined]
        return super().open(session, ExpertSource(_teacher(tools)))


def _teacher(tools: Any) -> Callable[[DecisionRequest], Call]:
    asked = [s.canonical_json() for s in tool_schemas(list(tools))]
    game = next(g for g in GAMES.values() if [s.canonical_json() for s in tool_schemas(list(g.tools))] == asked)
    return lambda request: game.rule(request.observation)


def show(page: Chromium, url: str, name: str) -> None:
    """Open a game that asks the gateway at `url` (which serves the games as its static folder)."""
    page.open(f"{url}static/{GAMES[name].page}", 1280, 900)
    ready = "document.readyState === 'complete' && typeof $ === 'function'"
    until(lambda: page.value(ready), f"{name} did not come", 30, 0.1)
    field = {"arena": "fc-url"}.get(name, "server-url")
    page.value(f"{{const f = $('{field}'); f.value = {url!r}; f.dispatchEvent(new Event('input'));}}")
    page.value(COUNT)


def pong(page: Chromium, to: int = 5, seconds: float = 240.0, picture: Path | None = None) -> dict[str, Any]:
    """A match against a paddle that stands still, until either has `to` points."""
    page.value("frames_ = 0; $('start-btn').click()")
    began = time.monotonic()
    until(lambda: page.value(f"Math.max(aiScore, humanScore) >= {to}"), "nobody won", seconds, 0.1)
    told = page.value("({ai: aiScore, human: humanScore, requests: apiCalls, ms: totalLatency / apiCalls})")
    told |= _rates(page, began)
    if picture is not None:
        page.shoot(picture)
    page.value("$('start-btn').click()")
    return dict(told)


def flappy(
    page: Chromium, level: str = "normal", to: int = 10, seconds: float = 240.0, picture: Path | None = None
) -> dict[str, Any]:
    """One flight, until the bird falls or has passed `to` pipes."""
    page.value(f"$('difficulty').value = {level!r}; frames_ = 0; game.start()")
    began = time.monotonic()
    until(lambda: page.value("game.running"), "it did not begin", 20, 0.02)
    over = f"!game.running || game.score >= {to}"
    until(lambda: page.value(over), "the flight did not end", seconds, 0.1)
    told = page.value(
        "({pipes: game.score, requests: game.latencies.length,"
        " ms: game.latencies.reduce((a, b) => a + b, 0) / game.latencies.length})"
    )
    told |= _rates(page, began)
    if picture is not None:
        page.shoot(picture)
    page.value("game.stop()")
    return dict(told)


def arena(page: Chromium, person: bool = False, seconds: float = 240.0, picture: Path | None = None) -> dict[str, Any]:
    """One round of two ships against a player who stands still, or a scripted `person`."""
    page.value("frames_ = 0; $('start-btn').click()")
    began = time.monotonic()
    until(lambda: page.value("game !== null && game.running"), "it did not begin", 20, 0.02)
    if person:
        page.value(PERSON)
    if picture is not None:
        until(lambda: page.value("!game.running || game.player.hp <= 3"), "no round", seconds, 0.1)
        page.shoot(picture)
    until(lambda: page.value("!game.running"), "the round did not end", seconds, 0.1)
    told = page.value(
        "({winner: $('winner').textContent, player: game.player.hp, ships: game.ais.map(a => a.hp),"
        " requests: game.stats.decisions,"
        " ms: game.stats.latencies.reduce((a, b) => a + b, 0) / game.stats.latencies.length})"
    )
    return dict(told) | _rates(page, began)


def _rates(page: Chromium, began: float) -> dict[str, float]:
    spent = time.monotonic() - began
    return {"seconds": round(spent, 1), "frames_per_s": round(page.value("frames_") / spent, 1)}


def sent(page: Chromium, name: str, states: Sequence[Any]) -> list[dict[str, Any]]:
    """What the open page of a game sends in these states (as the `state` of its module draws them), as its own code
    makes it; nobody is asked."""
    page.value(SETUP[name])
    page.value(
        "window.sent_ = []; window.fetch = async (u, o) => { sent_.push(JSON.parse(o.body)); throw Error('kept'); }"
    )
    page.value(f"(async () => {{ for (const s of {json.dumps(states)}) {{ {PUT[name]} }} }})()")
    return list(page.value("sent_"))
