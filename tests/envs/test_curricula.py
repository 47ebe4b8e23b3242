"""The expert, the demonstrations to learn from, and the evaluation harness, of each skill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

from rtcontrol.agents.lander import tools as lander_tools
from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.paddle import tools as paddle_tools
from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal
from rtcontrol.agents.paddle.phrasings import WEIGHTS
from rtcontrol.agents.road import tools as road_tools
from rtcontrol.agents.road.goals import RoadGoal
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.lander import curriculum as lander
from rtcontrol.envs.lander import skill as lander_skill
from rtcontrol.envs.lander.skill import MAIN_LEVELS, SIDE_LEVELS
from rtcontrol.envs.paddle import curriculum as paddle
from rtcontrol.envs.paddle import skill as paddle_skill
from rtcontrol.envs.paddle.skill import LEVELS
from rtcontrol.envs.road import curriculum as road
from rtcontrol.envs.road import skill as road_skill
from rtcontrol.models.call import Call

ROWS: dict[str, Callable[..., Any]] = {
    "lander": lander.demonstrations,
    "paddle": paddle.demonstrations,
    "road": road.demonstrations,
}
SKILLS = {"lander": lander_skill.SKILL, "paddle": paddle_skill.SKILL, "road": road_skill.SKILL}
AGENTS = {"lander": lander_tools.agent, "paddle": paddle_tools.agent, "road": road_tools.agent}
LAND = LanderGoal("land")
of_each = pytest.mark.parametrize("name", ROWS)


@of_each
def test_rows_show_legal_calls_that_follow_from_what_the_row_shows(name: str) -> None:
    skill = SKILLS[name]
    for row in islice(ROWS[name](3, parallel=8), 4000 if name == "paddle" else 2000):
        AGENTS[name].tools.validate(row.call)
        goal = skill.recognise(row.instruction)
        assert goal is not None
        assert row.call == skill.expert(skill.read_back(row.observation), goal)


@of_each
def test_rows_that_say_it_as_people_do_ask_for_the_goal_that_the_expert_follows(name: str) -> None:
    options = {"lander": lander.LanderOptions, "paddle": paddle.PaddleOptions, "road": road.RoadOptions}[name](
        spoken=1.0
    )
    skill, rows = SKILLS[name], list(islice(ROWS[name](3, parallel=32, options=options), 1000))
    for row in rows:
        assert row.call == skill.expert(skill.read_back(row.observation), row.goal)
    told = {(row.instruction, row.goal) for row in rows}
    assert len(told) > 200
    understood = [skill.recognise(text) for text, _ in told]
    right = sum(found == goal for found, (_, goal) in zip(understood, told, strict=True))
    wrong = sum(found not in (goal, None) for found, (_, goal) in zip(understood, told, strict=True))
    assert right > 0.5 * len(told)  # a plain rule reads most; the rest is why this is learnt
    assert wrong < 0.2 * len(told)


@of_each
def test_rows_repeat_by_seed_and_differ_between_seeds(name: str) -> None:
    one, again, other = (list(islice(ROWS[name](seed, parallel=4), 300)) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("name", "call", "fields", "done", "share", "active"),
    [
        ("lander", Call("engines", {"main": 0, "side": 0}), "vy", lambda vy: vy < -0.5, 0.1, "main"),
        ("paddle", Call("move", {"velocity": -3}), "own_y", lambda y: y < 10, 0.4, "velocity"),
        ("road", Call("stop", {}), "speed_kmh", lambda kmh: kmh == 0, 0.2, "kmh"),
    ],
)
def test_the_learner_acts_and_the_expert_labels(
    name: str, call: Call, fields: str, done: Callable[[float], bool], share: float, active: str
) -> None:
    asked: set[int] = set()

    def learner(situations: Sequence[tuple[str, str]]) -> list[Call]:
        asked.add(len(situations))
        return [call] * len(situations)

    def of(**policy: Any) -> list[Any]:
        return list(islice(ROWS[name](0, parallel=16, **policy), 1600 if name == "lander" else 3200))

    def where(rows: list[Any]) -> int:
        return sum(done(SKILLS[name].read_back(row.observation)[fields]) for row in rows)

    rows = of(policy=learner)
    assert asked == {16}
    assert where(rows) > (3 * where(of()) if name == "lander" else share * len(rows))
    assert any(row.call.arguments.get(active, 0) > 0 for row in rows)


def test_the_landers_rows_are_balanced_by_goal_and_seldom_on_the_ground() -> None:
    rows = list(islice(lander.demonstrations(0), 15000))
    kinds = Counter(SKILLS["lander"].recognise(row.instruction).kind for row in rows)
    for kind, share in {"land": 0.25, "left": 0.15, "right": 0.15, "hover": 0.45}.items():
        assert kinds[kind] / len(rows) == pytest.approx(share, abs=0.05)
    assert sum(row.observation.endswith("1 1") for row in rows) / len(rows) < 0.05


def test_the_paddles_rows_cover_goals_and_levels() -> None:
    rows = list(islice(paddle.demonstrations(0), 12_000))
    kinds = Counter(SKILLS["paddle"].recognise(row.instruction).kind for row in rows)
    for kind in KINDS:
        assert abs(kinds[kind] / len(rows) - WEIGHTS[kind]) < 0.07
    levels = Counter(row.call.arguments["velocity"] for row in rows)
    assert min(levels.values()) > 0.02 * len(rows)


def test_the_roads_rows_cover_every_call() -> None:
    names = Counter(row.call.name for row in islice(road.demonstrations(0), 3000))
    assert set(names) == {tool.name for tool in AGENTS["road"].tools}
    assert min(names.values()) > 0.01 * 3000


def test_levels_are_those_of_the_tool() -> None:
    for name, levels in (("lander", {"main": MAIN_LEVELS, "side": SIDE_LEVELS}), ("paddle", {"velocity": LEVELS})):
        properties = AGENTS[name].tools.openai()[0]["function"]["parameters"]["properties"]
        assert {key: tuple(properties[key]["enum"]) for key in levels} == levels


GOALS = [LAND, LanderGoal("left"), LanderGoal("right"), LanderGoal("hover", 0.0, 0.7), LanderGoal("hover", -0.4, 0.6)]


@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("delay_steps", [0, 1])
def test_the_expert_lands_as_it_is_told(goal: LanderGoal, delay_steps: int) -> None:
    skill = SKILLS["lander"]
    episodes = evaluate(skill, skill.expert_policy, cases(goal, range(10)), delay_steps=delay_steps)
    assert sum(bool(episode.success) for episode in episodes) >= 9


@pytest.mark.parametrize("delay_steps", [0, 3])
def test_the_expert_returns_every_ball_with_a_late_call_too(delay_steps: int) -> None:
    skill, told = SKILLS["paddle"], cases(PaddleGoal("return"), range(5))
    assert summary(evaluate(skill, skill.expert_policy, told, delay_steps=delay_steps))["successes"] == 5


def test_doing_nothing_and_random_calls_fail() -> None:
    skill = SKILLS["lander"]
    for policy in (skill.no_op_policy, skill.random_policy(1)):
        assert summary(evaluate(skill, policy, cases(LAND, range(5))))["successes"] == 0


@pytest.mark.parametrize(
    ("name", "judged", "told"),
    [("lander", LanderGoal("left"), LanderGoal("right")), ("paddle", PaddleGoal("up"), PaddleGoal("down"))],
)
def test_told_one_thing_and_judged_by_its_opposite_fails(name: str, judged: Any, told: Any) -> None:
    episodes = evaluate(SKILLS[name], SKILLS[name].expert_policy, cases(judged, range(5), told.text()))
    assert not any(episode.success for episode in episodes)


@pytest.mark.parametrize(
    ("name", "goal"), [("lander", LAND), ("paddle", PaddleGoal("return")), ("road", RoadGoal("lane", "left"))]
)
def test_an_episode_does_not_depend_on_how_many_are_played_at_once(name: str, goal: Any) -> None:
    skill, told = SKILLS[name], cases(goal, range(4))
    all_at_once, in_turns = (
        evaluate(skill, skill.expert_policy, told, parallel=parallel, delay_steps=1) for parallel in (4, 2)
    )
    assert all_at_once == in_turns


def test_the_expert_refuses_an_instruction_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="make tea"):
        evaluate(SKILLS["lander"], SKILLS["lander"].expert_policy, cases(LAND, [0], "make tea"))
