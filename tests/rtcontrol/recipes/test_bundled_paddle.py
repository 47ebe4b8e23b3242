"""The bundled paddle checkpoint: small enough, and it does what it is told."""

from __future__ import annotations

import pytest
from safetensors import safe_open

from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal, PaddleKind
from rtcontrol.agents.paddle.tools import agent, observe
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.paddle.skill import SKILL
from rtcontrol.models.checkpoint import resolve
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.recipes.score import model_policy

UNSEEN = range(5000, 5004)


@pytest.fixture(scope="module")
def decider() -> STDecider:
    return DeciderSpec(agent.model, tuple(agent.tools.openai()), history=agent.history).build()


def test_bundled_model_is_within_its_size() -> None:
    path = resolve("paddle") / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        parameters = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118  (not a dict)
    assert parameters <= 3_000_000
    assert path.stat().st_size <= 12_000_000


def test_bundled_model_decides_in_one_pass_over_few_tokens(decider: STDecider) -> None:
    for height in (10.0, 20.0, 30.0):
        state = {"ball_x": 60.0, "ball_y": height, "ball_vx": 50.0, "ball_vy": 9.0, "own_y": 30.0, "other_y": 30.0}
        decision = decider.decide(observe(state), "return every ball")
    assert (decision.forward_passes, decision.tokens) <= (1, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_bundled_model_does_what_it_is_told_on_seeds_it_was_not_trained_on(
    decider: STDecider, kind: PaddleKind
) -> None:
    played = summary(evaluate(SKILL, model_policy(decider), cases(PaddleGoal(kind), UNSEEN)))
    # The model card says so too: to miss is what it learnt least.
    assert played["successes"] >= (1 if kind == "miss" else 3), played


@pytest.mark.parametrize(("kind", "told"), [("return", "let me win"), ("up", "aim low"), ("top", "stay at the bottom")])
def test_bundled_model_told_the_opposite_fails_the_judged_goal(decider: STDecider, kind: PaddleKind, told: str) -> None:
    played = cases(PaddleGoal(kind), UNSEEN, told)
    assert summary(evaluate(SKILL, model_policy(decider), played))["successes"] <= 1
