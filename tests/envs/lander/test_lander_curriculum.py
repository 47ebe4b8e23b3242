"""The expert, the rollouts to learn from, and the evaluation harness."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from rtcontrol.agents.lander.goals import LanderGoal, recognise
from rtcontrol.agents.lander.tools import agent, read_back
from rtcontrol.envs.evaluate import cases, evaluate, summary, wilson
from rtcontrol.envs.lander.curriculum import demonstrations
from rtcontrol.envs.lander.expert import MAIN_LEVELS, SIDE_LEVELS, expert
from rtcontrol.envs.lander.skill import SKILL
from rtcontrol.models.call import Call

GOALS = [
    LanderGoal("land"),
    LanderGoal("left"),
    LanderGoal("right"),
    LanderGoal("hover", 0.0, 0.7),
    LanderGoal("hover", -0.4, 0.6),
]


@pytest.mark.parametrize("goal", GOALS, ids=str)
@pytest.mark.parametrize("delay_steps", [0, 1])
def test_the_expert_does_what_it_is_told(goal: LanderGoal, delay_steps: int) -> None:
    episodes = evaluate(SKILL, SKILL.expert_policy, cases(goal, range(10)), delay_steps=delay_steps)
    assert sum(bool(episode.success) for episode in episodes) >= 9


def test_doing_nothing_and_random_calls_fail() -> None:
    for policy in (SKILL.no_op_policy, SKILL.random_policy(1)):
        assert summary(evaluate(SKILL, policy, cases(LanderGoal("land"), range(5))))["successes"] == 0


def test_told_right_judged_left_fails() -> None:
    episodes = evaluate(
        SKILL, SKILL.expert_policy, cases(LanderGoal("left"), range(5), "land on the right side of the pad")
    )
    assert not any(episode.success for episode in episodes)


def test_an_episode_does_not_depend_on_how_many_fly_at_once() -> None:
    told = cases(LanderGoal("land"), range(6))
    assert evaluate(SKILL, SKILL.expert_policy, told, parallel=6) == evaluate(
        SKILL, SKILL.expert_policy, told, parallel=2
    )


def test_the_expert_refuses_an_instruction_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="make tea"):
        evaluate(SKILL, SKILL.expert_policy, cases(LanderGoal("land"), [0], "make tea"))


def test_rows_show_legal_calls_that_follow_from_what_the_row_shows() -> None:
    for row in itertools.islice(demonstrations(3, parallel=8), 2000):
        agent.tools.validate(row.call)
        goal = recognise(row.instruction)
        assert goal is not None
        assert row.call == expert(read_back(row.observation), goal)


def test_levels_are_those_of_the_tool() -> None:
    properties = agent.tools.openai()[0]["function"]["parameters"]["properties"]
    assert tuple(properties["main"]["enum"]) == MAIN_LEVELS
    assert tuple(properties["side"]["enum"]) == SIDE_LEVELS


def test_rows_repeat_by_seed_and_differ_between_seeds() -> None:
    def rows(seed: int) -> list[object]:
        return list(itertools.islice(demonstrations(seed, parallel=4), 300))

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_rows_are_balanced_by_goal_and_seldom_on_the_ground() -> None:
    rows = list(itertools.islice(demonstrations(0), 15000))
    kinds = Counter(goal.kind for row in rows if (goal := recognise(row.instruction)) is not None)
    for kind, share in {"land": 0.25, "left": 0.15, "right": 0.15, "hover": 0.45}.items():
        assert kinds[kind] / len(rows) == pytest.approx(share, abs=0.05)
    assert sum(row.observation.endswith("1 1") for row in rows) / len(rows) < 0.05


def test_the_learner_flies_and_the_expert_labels() -> None:
    asked: list[int] = []

    def learner(situations: Sequence[tuple[str, str]]) -> list[Call]:
        asked.append(len(situations))
        return [Call("engines", {"main": 0, "side": 0})] * len(situations)

    rows = list(itertools.islice(demonstrations(0, parallel=16, policy=learner), 1600))
    assert set(asked) == {16}
    assert any(row.call.arguments["main"] for row in rows)
    falling = sum(read_back(row.observation)["vy"] < -0.5 for row in rows)
    assert falling > 3 * sum(
        read_back(row.observation)["vy"] < -0.5 for row in itertools.islice(demonstrations(0, parallel=16), 1600)
    )


def test_wilson_interval() -> None:
    assert wilson(19, 20) == pytest.approx((0.764, 0.991), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(20, 20)[1] == pytest.approx(1.0)
