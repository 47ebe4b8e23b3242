"""SimpleTool's own browser games, unmodified, in headless Chromium: what they ask, and that their rules and the bundled
model win them."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import simpletool_player as player
from chromium import Chromium
from gateway_served import Serve

from rtcontrol.envs.simpletool import GAMES
from rtcontrol.models.schema.tool_schema import tool_schemas

pytestmark = [pytest.mark.slow, pytest.mark.skipif(player.MISSING is not None, reason=str(player.MISSING))]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def teachers(serve: Serve) -> str:
    """The address of a gateway whose decisions are the rules'."""
    return serve(pool=player.TeacherPool(), model="random", static=Path(player.FOLDER)).url


@pytest.fixture(scope="module", params=["the rule", "the model"])
def decided(request: pytest.FixtureRequest, serve: Serve, teachers: str) -> str:
    """The rules' gateway, and one that finds the bundled model by the pages' tools."""
    return teachers if request.param == "the rule" else serve(model=None, static=Path(player.FOLDER)).url


@pytest.mark.parametrize("name", sorted(GAMES))
def test_a_pages_requests_are_those_that_are_drawn(name: str, teachers: str, browser: Chromium) -> None:
    module: Any = importlib.import_module(f"rtcontrol.envs.simpletool.{name}")
    rng = random.Random(7)
    states = [module.state(rng) for _ in range(200)]
    player.show(browser, teachers, name)
    sent = player.sent(browser, name, states)
    drawn = [module.asked(*state) for state in states]
    assert [s["messages"] for s in sent] == [[{"role": "user", "content": d.instruction}] for d in drawn]
    assert [s["environment"] for s in sent] == [list(d.environment) for d in drawn]
    assert [s.get("history", []) for s in sent] == [list(d.history) for d in drawn]
    own = [s.canonical_json() for s in tool_schemas(list(GAMES[name].tools))]
    assert {json.dumps([t.canonical_json() for t in tool_schemas(s["tools"])]) for s in sent} == {json.dumps(own)}


def test_a_still_paddle_is_beaten_to_five(decided: str, browser: Chromium) -> None:
    player.show(browser, decided, "pong")
    result = player.pong(browser)
    assert result["ai"] == 5 > result["human"], result


def test_ten_pipes_are_passed(decided: str, browser: Chromium) -> None:
    """In one of six flights at the page's normal level: more do, of many (the model's card)."""
    flights: list[dict[str, Any]] = []
    while len(flights) < 6 and not any(f["pipes"] >= 10 for f in flights):
        player.show(browser, decided, "flappy")
        flights.append(player.flappy(browser))
    assert any(f["pipes"] >= 10 for f in flights), flights


def test_an_arena_round_is_won(decided: str, browser: Chromium) -> None:
    player.show(browser, decided, "arena")
    result = player.arena(browser)
    assert result["winner"] == "AI WINS", result


def test_the_rule_wins_against_a_person_who_walks_and_shoots(teachers: str, browser: Chromium) -> None:
    """One of four rounds: the script shoots well, and wins some."""
    rounds: list[dict[str, Any]] = []
    while len(rounds) < 4 and not any(r["winner"] == "AI WINS" for r in rounds):
        player.show(browser, teachers, "arena")
        rounds.append(player.arena(browser, person=True))
    assert any(r["winner"] == "AI WINS" for r in rounds), rounds
