"""The paddle's demonstrations, and the harness on the paddle."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal, recognise
from rtcontrol.agents.paddle.phrasings import WEIGHTS
from rtcontrol.agents.paddle.tools import agent, read_back
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.paddle.curriculum import demonstrations
from rtcontrol.envs.paddle.expert import expert
from rtcontrol.envs.paddle.skill import SKILL
from rtcontrol.models.call import Call


def test_rows_show_legal_calls_that_follow_from_what_the_row_shows() -> None:
    for row in itertools.islice(demonstrations(3, parallel=8), 4000):
        agent.tools.validate(row.call)
        goal = recognise(row.instruction)
        assert goal is not None
        assert row.call == expert(read_back(row.observation), goal)


def test_rows_repeat_by_seed_and_differ_between_seeds() -> None:
    def rows(seed: int) -> list[object]:
        return list(itertools.islice(demonstrations(seed, parallel=4), 300))

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_rows_cover_goals_and_levels() -> None:
    rows = list(itertools.islice(demonstrations(0), 12_000))
    kinds = Counter(goal.kind for row in rows if (goal := recognise(row.instruction)) is not None)
    for kind in KINDS:
        assert abs(kinds[kind] / len(rows) - WEIGHTS[kind]) < 0.07
    levels = Counter(row.call.arguments["velocity"] for row in rows)
    assert min(levels.values()) > 0.02 * len(rows)


def test_the_learner_plays_and_the_expert_labels() -> None:
    def learner(situations: Sequence[tuple[str, str]]) -> list[Call]:
        return [Call("move", {"velocity": -3})] * len(situations)

    rows = list(itertools.islice(demonstrations(0, parallel=16, policy=learner), 3200))
    heights = [read_back(row.observation)["own_y"] for row in rows]
    assert sum(height < 10 for height in heights) > 0.4 * len(heights)
    assert any(row.call.arguments["velocity"] > 0 for row in rows)


def test_the_harness_plays_the_paddle_with_a_late_call_too() -> None:
    for delay_steps in (0, 3):
        told = cases(PaddleGoal("return"), range(5))
        played = evaluate(SKILL, SKILL.expert_policy, told, delay_steps=delay_steps)
        assert summary(played)["successes"] == 5
        assert played == evaluate(SKILL, SKILL.expert_policy, told, parallel=2, delay_steps=delay_steps)
    opposite = cases(PaddleGoal("up"), range(5), PaddleGoal("down").text())
    assert summary(evaluate(SKILL, SKILL.expert_policy, opposite))["successes"] == 0
