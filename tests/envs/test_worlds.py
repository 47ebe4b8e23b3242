"""Tests of the bundled worlds: physics, judges, experts, curricula, demonstrations and the registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal, PaddleKind
from rtcontrol.agents.paddle.tools import observe, parse_observation
from rtcontrol.agents.road.goals import KINDS as ROAD_KINDS
from rtcontrol.agents.road.goals import VALUES, RoadGoal, RoadKind
from rtcontrol.envs import registry
from rtcontrol.envs.curriculum import demonstrate
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.lander import curriculum as lander
from rtcontrol.envs.lander.world import Lander, LanderJudge, engine_action
from rtcontrol.envs.paddle import curriculum as paddle
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.paddle.skill import expert
from rtcontrol.envs.paddle.world import PaddleWorld
from rtcontrol.envs.road import curriculum as road
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.envs.road.world import STEPS_A_SECOND, Road
from rtcontrol.models.checkpoint.checkpoint import ZOO, bundled_models
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol_client.carla.intent import KMH

STEP_S = 0.02
VILLAGE = ("well", "market", "mill", "church", "oak", "pond", "home", "fox")


@given(st.integers(-120, 120), st.integers(-120, 120))
@example(50, -50)
@example(0, 0)
def test_engine_percentages_fire_from_fifty_on(main: int, side: int) -> None:
    if (main and not 50 <= main <= 100) or (side and not 50 <= abs(side) <= 100):
        with pytest.raises(ValueError, match=r"0 or 50\.\.100 %"):
            engine_action(main, side)
        return
    up, across = engine_action(main, side)
    assert up == pytest.approx(main / 50 - 1, abs=1e-5) and (up > 0) == (main > 0)
    assert across == pytest.approx(side / 100, abs=1e-5) and (abs(across) > 0.5) == (side != 0)


STILL = {"contact": False, "crashed": False, "outside": False, "asleep": False}


def judge_of(goal: LanderGoal | None) -> LanderJudge:
    judge = LanderJudge()
    judge.reset(goal)
    return judge


LAND, HIGH = LanderGoal("land"), LanderGoal("hover", 0.0, 0.7)
REST: dict[str, Any] = {"contact": True, "asleep": True}
ENDS = [
    *((LanderGoal(kind), x, 0.0, REST, True) for kind, x in (("land", 0.149), ("left", -0.05), ("right", 0.1))),  # type: ignore[arg-type]
    *((LanderGoal(kind), x, 0.0, REST, False) for kind, x in (("land", -0.151), ("right", -0.1), ("left", -0.03))),  # type: ignore[arg-type]
    (LanderGoal("left"), -0.25, 0.0, REST, False),
    (LAND, 0.0, 0.0, {"contact": True, "crashed": True}, False),
    (LAND, 0.0, 0.0, REST | {"crashed": True}, False),
    (HIGH, 1.0, 0.7, {"outside": True}, False),
    (HIGH, 0.0, 0.7, {"contact": True}, False),
    (None, 0.0, 0.0, REST, None),
]


@pytest.mark.parametrize(("goal", "x", "y", "last", "success"), ENDS)
def test_end_of_episode_is_judged_by_the_goal(goal: Any, x: float, y: float, last: Any, success: bool | None) -> None:
    judge = judge_of(goal)
    judge.step(x, y, **STILL)
    judge.step(x, y, **{**STILL, **last})
    assert judge.end is not None and judge.success is success


@pytest.mark.parametrize(
    ("world", "option", "text", "free", "hint"),
    [
        (Lander, "left", "land on the right side of the pad", "hover at 0.7", "hover at 0.7"),
        (PaddleGame, "aim low", "aim high", "let me win", "do what I do"),
    ],
)
def test_goal_option_overrides_later_instructions(world: Any, option: str, text: str, free: str, hint: str) -> None:
    fixed, open_ = world(option), world()
    before = fixed.goal
    fixed.instruct(text)
    open_.instruct(free)
    assert fixed.goal == before is not None and open_.goal is not None
    with pytest.raises(UserError, match=hint):
        world("make tea")


def hovered(y: float, settle_y: float, seconds: float = 12.0) -> LanderJudge:
    judge = judge_of(LanderGoal("hover", 0.2, 0.7))
    for step in range(round(seconds / STEP_S)):
        late = step * STEP_S >= 4.0
        judge.step(0.2, y if late else settle_y, **STILL)
    return judge


def test_hover_is_judged_from_second_four_to_twelve() -> None:
    judge = hovered(0.75, settle_y=1.4)
    assert judge.end == "time"
    assert judge.success is True
    assert judge.mean_distance == pytest.approx(0.05)
    assert hovered(0.83, settle_y=0.7).success is False
    assert hovered(0.7, settle_y=0.7, seconds=11.9).end is None


def test_hover_goal_on_the_ground_allows_take_off() -> None:
    judge = judge_of(LanderGoal("land"))
    ground = {**STILL, "contact": True}
    judge.step(0.0, 0.0, **ground)
    judge.change_goal(LanderGoal("hover", 0.0, 0.7))
    judge.step(0.0, 0.0, **ground)
    assert judge.end is None
    judge.step(0.0, 0.1, **{**ground, "contact": False})
    judge.step(0.0, 0.0, **ground)
    assert judge.end == "touchdown"


TRACE = json.loads((Path(__file__).parent / "paddle" / "paddle_trace.json").read_text())


def test_physics_repeat_the_committed_trace_exactly() -> None:
    world = PaddleWorld(TRACE["seed"])
    for number, row in enumerate(TRACE["rows"]):
        own_v, other_v, *wanted = row
        world.set_model(own_v)
        world.set_other(other_v)
        world.step()
        row_now = [*world.observe().values(), world.own_score, world.other_score, world.pause]
        assert row_now == wanted, f"step {number}"
    assert world.own_hits >= 2 and world.other_hits >= 1 and world.own_score >= 1 and world.other_score >= 1


def play(game: PaddleGame, seed: int, goal: PaddleGoal | None) -> bool | None:
    """Play a game with the expert for `goal`, or without moving if it is None; return whether it succeeded."""
    game.reset(seed)
    while (episode := game.outcome()) is None:
        if goal is not None:
            game.move(**expert(parse_observation(observe(game.observe())), goal).arguments)
        for _ in range(4):
            game.step()
    return episode.success


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_paddle_expert_reaches_its_goal(kind: PaddleKind) -> None:
    game = PaddleGame(PaddleGoal(kind))
    assert sum(bool(play(game, seed, PaddleGoal(kind))) for seed in range(10)) >= 8
    opposite: dict[PaddleKind, PaddleKind] = {"return": "miss", "up": "down", "top": "bottom", "mirror": "top"}
    opposite |= {opposite_kind: kind for kind, opposite_kind in opposite.items() if kind != "mirror"}
    assert not any(play(game, seed, PaddleGoal(opposite[kind])) for seed in range(5))
    if kind != "miss":
        assert sum(bool(play(game, seed, None)) for seed in range(10)) <= 3, "standing still"


UNSEEN = range(5000, 5004)


def empty(lane: int = 2, *, kmh: float, junction_m: float = 5_000.0) -> Road:
    """Return a road without other cars, far from a junction."""
    road = Road(0)
    road.traffic.lanes = 3
    road.car.lane, road.car.speed = lane, kmh / KMH
    road.limit = 60.0 / KMH
    road.traffic.cars = []
    road.junction.start = road.car.s + junction_m
    return road


def drive(road: Road, seconds: float) -> None:
    for _ in range(round(seconds * STEPS_A_SECOND)):
        road.step()
        road.traffic.cars = [car for car in road.traffic.cars if car.preferred_speed >= 0]


@pytest.mark.parametrize(
    ("lane", "direction", "kmh", "junction_m"),
    [(1, "left", 50, 500), (3, "right", 50, 500), (2, "left", 2, 500), (2, "left", 50, 10)],
    ids=["leftmost", "rightmost", "too slow", "junction near"],
)
def test_impossible_lane_change_is_refused(lane: int, direction: str, kmh: float, junction_m: float) -> None:
    road = empty(lane=lane, kmh=kmh, junction_m=junction_m)
    road.obey("change_lane", {"direction": direction})
    assert road.shift == 0
    assert road.counts["refused calls"] == 1


def test_emergency_brake_acts_when_set_speed_ignores_car() -> None:
    road = empty(kmh=60)
    road.traffic.place_ahead(road.car, 70.0, 20.0 / KMH)
    road.obey("set_speed", {"kmh": 60})
    drive(road, 10)
    assert road.counts["emergency brakes"] >= 1
    assert road.counts["crash"] == 0


@pytest.mark.parametrize(
    ("way", "lane", "taken", "lane_after"),
    [("left", 1, "left", 1), ("right", 3, "right", 3), ("straight", 2, "straight", 2), ("left", 3, "straight", 3)],
    ids=["left", "right", "straight", "left from the right"],
)
def test_car_leaves_junction_by_the_chosen_exit(way: str, lane: int, taken: str, lane_after: int) -> None:
    road = empty(lane=lane, kmh=20, junction_m=30)
    road.obey("set_speed", {"kmh": 20})
    road.obey("turn", {"at_next_junction": way})
    while not road.ways:
        road.step()
    assert (road.ways, road.car.lane, road.intent.turn) == ([taken], lane_after, "straight")


@pytest.mark.parametrize("kind", ROAD_KINDS)
def test_road_expert_reaches_goals_and_idling_does_not(kind: RoadKind) -> None:
    goal = RoadGoal(kind, VALUES.get(kind, (None,))[0])
    situations = cases(goal, UNSEEN)
    assert summary(evaluate(SKILL, SKILL.expert_policy, situations))["successes"] >= 2
    if kind != "stop":
        assert summary(evaluate(SKILL, lambda inputs: [SKILL.noop_call] * len(inputs), situations))["successes"] <= 1


def test_passing_a_red_light_fails_every_goal() -> None:
    sim = SKILL.make()
    sim.judge_by(RoadGoal("speed", 60))
    sim.reset(7)
    sim.bindings["set_speed"](kmh=60)
    for _ in range(120 * STEPS_A_SECOND):
        if (episode := sim.outcome()) is not None:
            break
        sim.road.traffic.cars.clear()  # type: ignore[attr-defined]
        if sim.road.light() in ("green", "yellow"):  # type: ignore[attr-defined]
            sim.road.junction.phase += 0.5  # type: ignore[attr-defined]  # make each light red
        sim.road.junction.has_light = True  # type: ignore[attr-defined]
        sim.step()
        sim.judge._run_s = 0.0  # type: ignore[attr-defined]  # never done before the light
    assert episode is not None
    assert (episode.success, episode.detail["end"]) == (False, "red light")


ROWS: dict[str, Callable[..., Any]] = {
    "lander": partial(lander.demonstrations, lander.OPTIONS),
    "paddle": partial(demonstrate, paddle.PaddleCurriculum, paddle.OPTIONS),
    "road": partial(demonstrate, road.RoadCurriculum, road.OPTIONS),
}
SKILLS = {name: world.skill() for name, world in registry.WORLDS.items()}
AGENTS = {name: world.controller() for name, world in registry.WORLDS.items()}
of_each = pytest.mark.parametrize("name", ROWS)


@of_each
def test_rows_have_legal_calls_that_follow_from_observations(name: str) -> None:
    skill = SKILLS[name]
    for row in islice(ROWS[name](3, parallel=8), 1500 if name == "paddle" else 800):
        AGENTS[name].tools.validate(row.call)
        goal = skill.recognise(row.instruction)
        assert goal is not None
        assert row.call == skill.expert(skill.parse_observation(row.observation), goal)


@of_each
def test_rows_are_equal_for_equal_seeds_only(name: str) -> None:
    first, again, other = (list(islice(ROWS[name](seed, parallel=4), 300)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("name", "goal"), [("lander", LAND), ("paddle", PaddleGoal("return")), ("road", RoadGoal("lane", "left"))]
)
def test_episode_is_independent_of_parallel_episodes(name: str, goal: Any) -> None:
    skill, situations = SKILLS[name], cases(goal, range(4))
    all_at_once, in_turns = (evaluate(skill, skill.expert_policy, situations, parallel=parallel) for parallel in (4, 2))
    assert all_at_once == in_turns


# The registry: each entry is complete and refers to its own world.


def test_agent_of_each_world_has_bundled_model() -> None:
    for world in registry.WORLDS.values():
        assert world.agent in bundled_models() and world.controller().model == world.agent


@pytest.mark.parametrize("name", registry.WORLDS)
def test_registry_entry_refers_to_its_own_world(name: str) -> None:
    world = registry.WORLDS[name]
    phrasings, skill, agent = world.phrasings(), world.skill(), world.controller()
    assert (world.name, skill.name, phrasings.agent, agent.name) == (name, name, name, world.agent)
    agent.tools.validate(skill.noop_call)
    assert skill.goals and all(skill.recognise(goal.text()) == goal for goal in skill.goals)
    shown = next(world.plan().demonstrations(0, 2))
    assert phrasings.goal_of(shown.instruction) == shown.goal


@pytest.mark.parametrize("name", ["lander", "paddle", "road"])
def test_observations_of_experts_are_familiar_to_bundled_models(name: str) -> None:
    world = registry.WORLDS[name]
    known = TrainingMetadata.load(ZOO / world.controller().model)
    steps = [*islice(world.plan().demonstrations(7, 8, policy=None, beta=0.0), 400)]
    assert known is not None and not any(known.unfamiliar(step.observation) for step in steps)
    assert known.unfamiliar(steps[0].observation + " 1") and known.unfamiliar("hello")


def test_villagers_know_the_form_of_observations() -> None:
    known = TrainingMetadata.load(ZOO / "village")
    places = ("well", "market", "mill", "church", "oak", "pond", "home", "fox")
    things = " ".join(f"{place} north far" for place in places)
    assert known is not None and known.unfamiliar(f"{things} whim east") == ()
    assert known.unfamiliar(f"{things} whim upwards") and known.unfamiliar(things)
