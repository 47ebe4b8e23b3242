"""The bundled checkpoint: small enough, and it flies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.lander.tools import agent
from rtcontrol.bench import decide
from rtcontrol.bench.situations import observations, schemas
from rtcontrol.cli.app import main
from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.lander.skill import SKILL
from rtcontrol.models.checkpoint import resolve
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.recipes.score import model_policy

UNSEEN = range(5000, 5005)


@pytest.fixture(scope="module")
def decider() -> STDecider:
    return DeciderSpec(agent.model, tuple(agent.tools.openai()), history=agent.history).build()


def test_bundled_model_is_within_its_size() -> None:
    path = resolve("lander") / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        parameters = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118  (not a dict)
    assert parameters <= 15_000_000
    assert sum(p.stat().st_size for p in path.parent.iterdir()) <= 32 * 2**20


def test_bundled_model_decides_in_one_pass_over_few_tokens(decider: STDecider) -> None:
    seen = observations(3)
    for text in seen:
        decision = decider.decide(text, "hover at 0.7")
    assert (decision.forward_passes, decision.tokens) <= (1, 20)
    assert decision.reused_tokens > decider.prefix.tokens


@pytest.mark.parametrize(
    "goal",
    [LanderGoal("land"), LanderGoal("hover", 0.0, 0.7), LanderGoal("left"), LanderGoal("hover", -0.2, 0.8)],
    ids=str,
)
def test_bundled_model_flies_seeds_it_was_not_trained_on(decider: STDecider, goal: LanderGoal) -> None:
    flown = summary(evaluate(SKILL, model_policy(decider), cases(goal, UNSEEN)))
    assert flown["successes"] >= 4, flown


def test_bundled_model_told_the_opposite_side_misses_the_judged_one(decider: STDecider) -> None:
    told = cases(LanderGoal("left"), UNSEEN, LanderGoal("right").text())
    assert summary(evaluate(SKILL, model_policy(decider), told))["successes"] <= 1


@pytest.mark.parametrize(("name", "function"), [("bundled", None), ("long", None), ("long", "land_now")])
def test_bench_decides_alike_in_every_way_and_reports_the_ratios(
    name: str, function: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "WARM_UP", 1)  # its times are not judged here
    steps: list[int] = []
    found = decide.bench_schema("lander", schemas()[name], observations(7), 3, steps.append, function)
    assert sum(steps) == 7
    assert found["agreement"] == 1.0
    wanted = {"one_pass_over_bare_forward", "token_by_token_over_one_pass", "hf_json_over_one_pass"}
    assert wanted <= set(found["ratios"])
    assert found["tokens"]["token_by_token_passes"] == (8 if name == "long" else 2)
    assert len(found["raw_ms"]["one_pass"]) == found["decisions"]
    # The call of the function with three arguments is longer.
    assert (found["tokens"]["json_tokens"] > 40) == (function is not None)


def test_recipe_trains_resumes_and_exports_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    words = ["rtcontrol", "models", "train", "--samples", "128", "--out", str(out), "--threads", "1"]
    for _ in range(2):  # the second finds the run finished and exports it again
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    assert json.loads((out / "log.jsonl").read_text().splitlines()[0])["samples"] == 128
    spec = DeciderSpec(str(out / "checkpoint"), tuple(agent.tools.openai()))
    assert spec.build().decide("x 0 y 0", "land").call is not None
    assert "rtcontrol run --env lander --model" in capsys.readouterr().out
