"""The bundled driver checkpoint: small enough, and it drives as it is told."""

from __future__ import annotations

import pytest

from rtcontrol.agents.road.goals import RoadGoal
from rtcontrol.agents.road.tools import agent, observe
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.envs.road.world import Road
from rtcontrol.models.checkpoint import resolve
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.recipes.score import model_policy

UNSEEN = range(5000, 5003)
GOALS = (
    RoadGoal("speed", 60),
    RoadGoal("lane", "left"),
    RoadGoal("lane", "right"),
    RoadGoal("follow", 30),
    RoadGoal("stop"),
)


@pytest.fixture(scope="module")
def decider() -> STDecider:
    return DeciderSpec(agent.model, tuple(agent.tools.openai()), history=agent.history).build()


def test_bundled_model_is_within_its_size() -> None:
    assert (resolve("driver") / "model.safetensors").stat().st_size <= 8_000_000


def test_bundled_model_decides_in_one_pass(decider: STDecider) -> None:
    road = Road(5000)
    for _ in range(12):
        for _ in range(16):
            road.step()
        decision = decider.decide(observe(road.observe()), "drive at 50")
        assert decision.call is not None
    assert decision.forward_passes == 1


@pytest.mark.parametrize("goal", GOALS, ids=RoadGoal.text)
def test_bundled_model_does_what_it_is_told_on_seeds_it_was_not_trained_on(decider: STDecider, goal: RoadGoal) -> None:
    assert summary(evaluate(SKILL, model_policy(decider), cases(goal, UNSEEN)))["successes"] >= 2


def test_bundled_model_told_the_opposite_fails_the_judged_goal(decider: STDecider) -> None:
    told = cases(RoadGoal("turn", "left"), UNSEEN, RoadGoal("turn", "right").text())
    assert summary(evaluate(SKILL, model_policy(decider), told))["successes"] <= 1
