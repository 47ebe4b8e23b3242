"""The paddle game's physics, its judge, the scripted person and the expert."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal, PaddleKind
from rtcontrol.agents.paddle.tools import observe, read_back
from rtcontrol.envs import registry
from rtcontrol.envs.paddle.game import PaddleGame, PaddleJudge
from rtcontrol.envs.paddle.skill import expert
from rtcontrol.envs.paddle.world import BOTTOM, MAX_SPEED, TOP, PaddleWorld
from rtcontrol.models.errors import UserError

TRACE = json.loads((Path(__file__).parent / "paddle_trace.json").read_text())


def test_the_physics_repeat_the_committed_trace_to_the_last_bit() -> None:
    world = PaddleWorld(TRACE["seed"])
    for number, row in enumerate(TRACE["rows"]):
        own_v, other_v, *wanted = row
        world.set_model(own_v)
        world.set_other(other_v)
        world.step()
        found = [*world.observe().values(), world.own_score, world.other_score, world.pause]
        assert found == wanted, f"step {number}"
    assert world.own_hits >= 2 and world.other_hits >= 1 and world.own_score >= 1 and world.other_score >= 1


def test_paddles_stay_in_the_field_and_under_their_speed() -> None:
    world = PaddleWorld()
    world.set_model(1e9)
    world.set_other(-1e9)
    world.step()
    assert (world.own_y, world.other_y) == (31.0, 29.0)
    for _ in range(60):
        world.step()
    assert (world.own_y, world.other_y) == (BOTTOM, TOP)


def flown(ball_y: float, own_y: float, ball_vx: float = 45.0) -> PaddleWorld:
    world = PaddleWorld()
    world.pause = 0
    world.ball_x, world.ball_y, world.ball_vx, world.own_y = 94.9, ball_y, ball_vx, own_y
    world.step()
    return world


def test_where_the_paddle_is_hit_says_where_the_ball_goes() -> None:
    high, middle, low = (flown(30.0, own_y) for own_y in (34.5, 30.0, 25.5))
    assert high.ball_vy < -20 and middle.ball_vy == 0 and low.ball_vy > 20
    assert {world.ball_vx for world in (high, middle, low)} == {-47.5}
    assert flown(30.0, 36.1).own_hits == 0


def test_the_ball_never_grows_faster_than_its_limit() -> None:
    assert flown(30.0, 30.0, 69.0).ball_vx == -MAX_SPEED


def test_whoever_misses_gets_the_next_serve() -> None:
    world = PaddleWorld(3)
    world.own_y = TOP if world.ball_y > 30 else BOTTOM
    world.other_y = TOP
    while not world.other_score:
        world.set_model(60.0 if world.ball_y < 30 else -60.0)
        world.step()
    while not world.ball_vx:
        world.step()
    assert world.ball_vx > 0


def test_serves_follow_from_the_seed() -> None:
    def slope(seed: int) -> float:
        world = PaddleWorld(seed)
        while not world.ball_vx:
            world.step()
        return world.ball_vy

    assert slope(7) == slope(7)
    assert len({slope(seed) for seed in range(50)}) > 40
    with pytest.raises(UserError, match="seed -1"):
        PaddleWorld(-1)


def play(game: PaddleGame, seed: int, told: PaddleGoal | None) -> bool | None:
    """`told` as the expert plays it, None stands still; four physics steps a tick."""
    game.reset(seed)
    while (episode := game.outcome()) is None:
        if told is not None:
            game.move(**expert(read_back(observe(game.observe())), told).arguments)
        for _ in range(4):
            game.step()
    return episode.success


@pytest.mark.parametrize("kind", KINDS)
def test_the_expert_does_what_it_is_told_and_nothing_else_does(kind: PaddleKind) -> None:
    game = PaddleGame(PaddleGoal(kind))
    assert sum(bool(play(game, seed, PaddleGoal(kind))) for seed in range(10)) >= 8
    opposite: dict[PaddleKind, PaddleKind] = {"return": "miss", "up": "down", "top": "bottom", "mirror": "top"}
    opposite |= {told: kind for kind, told in opposite.items() if kind != "mirror"}
    assert not any(play(game, seed, PaddleGoal(opposite[kind])) for seed in range(5))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "miss"])
def test_standing_still_fails(kind: PaddleKind) -> None:
    game = PaddleGame(PaddleGoal(kind))
    assert sum(bool(play(game, seed, None)) for seed in range(10)) <= 3


def test_without_a_goal_a_game_goes_to_five_points_and_is_not_judged() -> None:
    game = PaddleGame()
    assert play(game, 1, None) is None
    episode = game.outcome()
    assert episode is not None
    assert episode.detail["end"] == "points" and max(episode.detail["score"]) == 5
    assert episode.ret < 0


def test_the_same_seed_gives_the_same_game() -> None:
    first, second = PaddleGame(PaddleGoal("return")), PaddleGame(PaddleGoal("return"))
    play(first, 4, PaddleGoal("return"))
    play(second, 4, PaddleGoal("return"))
    assert first.outcome() == second.outcome()
    assert first.observe() == second.observe()


def test_a_new_goal_restarts_the_count_and_the_same_one_does_not() -> None:
    world = PaddleWorld()
    judge = PaddleJudge(PaddleGoal("top"), world)
    for _ in range(180):
        judge.step(world)
    judge.change(PaddleGoal("top"), world)
    assert judge.seconds == 3.0
    judge.change(PaddleGoal("bottom"), world)
    assert judge.seconds == 0.0


def test_the_option_goal_outlives_the_instruction_and_must_name_one() -> None:
    game = PaddleGame("aim low")
    game.instruct("aim high")
    assert game.goal == PaddleGoal("down")
    free = PaddleGame()
    free.instruct("let me win")
    assert free.goal == PaddleGoal("miss")
    with pytest.raises(UserError, match="do what I do"):
        PaddleGame("make tea")


def test_the_registry_knows_the_game() -> None:
    env = registry.make("paddle", goal="aim high")
    env.start("lockstep", 0, 1)
    seen = env.latest()
    env.close()
    assert seen is not None
    assert tuple(seen.data) == ("ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y")
