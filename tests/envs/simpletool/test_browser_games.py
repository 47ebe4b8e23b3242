"""SimpleTool's browser games: what is drawn, and the rules that play them. That the text is the pages' own, and that
the rules win there, is asked of the pages in tests/rtcontrol/gateway/test_simpletool_games.py."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Tools, remote_tool
from rtcontrol.envs.simpletool import GAMES, arena, flappy, pong

FRAMES, PIPE, BIRD_X = 3, 60, 80  # frames between two requests; a pipe's width, the bird's place


@given(name=st.sampled_from(sorted(GAMES)), seed=st.integers(0, 1 << 32))
def test_a_games_rule_makes_legal_calls_wherever_the_state_is_drawn(name: str, seed: int) -> None:
    game = GAMES[name]
    asked = game.draw(random.Random(seed))
    Tools([remote_tool(tool["function"]) for tool in game.tools]).validate(game.rule(asked.observation))
    assert len(asked.history) <= 6


@pytest.mark.parametrize(("name", "least"), [("pong", 0.15), ("flappy", 0.2), ("arena", 0.05)])
def test_every_call_of_a_game_is_shown_often_enough_to_be_learnt(name: str, least: float) -> None:
    game, rng = GAMES[name], random.Random(0)
    calls = Counter(repr(game.rule(game.draw(rng).observation)) for _ in range(4_000))
    values = [v for t in game.tools for p in t["function"]["parameters"]["properties"].values() for v in p["enum"]]
    assert len(calls) == len(values) and min(calls.values()) > least * 4_000 / len(values)


def test_the_paddle_follows_a_ball_that_comes_and_goes_home_when_it_leaves() -> None:
    def moved(ball: float, paddle: float, towards: bool) -> object:
        return pong.rule(pong.page_request(ball, paddle, towards, True, ()).observation).arguments["direction"]

    assert [moved(ball, 200, True) for ball in (100, 195, 300)] == ["up", "stay", "down"]
    assert [moved(300, paddle, False) for paddle in (100, 195, 300)] == ["down", "stay", "up"]


def test_a_ship_shoots_in_line_and_leaves_the_line_while_its_gun_cools() -> None:
    def done(y: float, cooling: int) -> tuple[str, object]:
        call = arena.rule(arena.page_request(700, y, (300, 420), cooling, ()).observation)
        return call.name, call.arguments["direction"]

    assert [done(425, 0), done(460, 0), done(425, 30)] == [("fire", "left"), ("move", "up"), ("move", "up")]


def test_the_birds_rule_reads_the_state_and_not_the_pages_hint() -> None:
    high = flappy.page_request(100, 1.0, 200, 300, 150)
    assert "FLAP" in high.instruction  # which would lead it away from the gap
    assert flappy.rule(high.observation).arguments["action"] == "wait"


@pytest.mark.parametrize(("level", "speed", "least"), [("easy", 2.5, 19), ("normal", 3.0, 10)])
def test_the_birds_rule_passes_ten_pipes(level: str, speed: float, least: int) -> None:
    gap = flappy.GAPS[level]
    assert sum(_flight(random.Random(seed), gap, speed) >= 10 for seed in range(20)) >= least


def _flight(rng: random.Random, gap: int, speed: float) -> int:
    """How many pipes of the page's course the rule passes, of ten."""
    y, vy, frame, passed = flappy.HEIGHT / 2, 0.0, 0, 0
    pipes: list[list[float]] = []
    while passed < 10:
        if not pipes or pipes[-1][0] < flappy.WIDTH - 100:
            pipes.append([flappy.WIDTH + 50, 80 + rng.random() * (flappy.HEIGHT - gap - 160)])
        frame += 1
        if frame % FRAMES == 0:
            x, top = next(pipe for pipe in pipes if pipe[0] + PIPE > BIRD_X)
            seen = flappy.page_request(y, vy, x - BIRD_X, top, gap)
            vy = flappy.FLAP if flappy.rule(seen.observation).arguments["action"] == "flap" else vy
        vy += flappy.GRAVITY
        y += vy
        for pipe in pipes:
            ahead = pipe[0] + PIPE >= BIRD_X
            pipe[0] -= speed
            passed += ahead and pipe[0] + PIPE < BIRD_X
            beside = abs(pipe[0] + PIPE / 2 - BIRD_X) < PIPE / 2 + flappy.BIRD
            if beside and not pipe[1] + flappy.BIRD <= y <= pipe[1] + gap - flappy.BIRD:
                return passed
        if not flappy.BIRD <= y <= flappy.HEIGHT - flappy.BIRD:
            return passed
        pipes = [pipe for pipe in pipes if pipe[0] > -PIPE]
    return passed
