"""The bundled checkpoints: small enough, decided in one pass, and they do what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from safetensors import safe_open

from rtcontrol.agents.lander import tools as lander
from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.paddle import tools as paddle
from rtcontrol.agents.paddle.goals import KINDS, PaddleGoal
from rtcontrol.agents.road import tools as road
from rtcontrol.agents.road.goals import RoadGoal
from rtcontrol.bench.situations import situations
from rtcontrol.envs.base import Episode
from rtcontrol.envs.evaluate import Case, cases, evaluate, summary
from rtcontrol.envs.lander.skill import SKILL as LANDER
from rtcontrol.envs.paddle.skill import SKILL as PADDLE
from rtcontrol.envs.road.skill import SKILL as ROAD
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec, STDecider

AGENTS = {"lander": lander.agent, "paddle": paddle.agent, "driver": road.agent}
SKILLS = {"lander": LANDER, "paddle": PADDLE, "driver": ROAD}
LANDINGS = (LanderGoal("land"), LanderGoal("hover", 0.0, 0.7), LanderGoal("left"), LanderGoal("hover", -0.2, 0.8))
LANES = (RoadGoal("lane", "left"), RoadGoal("lane", "right"))
DRIVES = (RoadGoal("speed", 60), *LANES, RoadGoal("follow", 30), RoadGoal("stop"))
# (name, goal, episodes, successes at least). The model card says so too: to miss is what the paddle learnt least.
TOLD = [
    *(("lander", goal, 5, 4) for goal in LANDINGS),
    *(("paddle", PaddleGoal(kind), 4, 1 if kind == "miss" else 3) for kind in KINDS),
    *(("driver", goal, 3, 2) for goal in DRIVES),
]
OPPOSITES = [
    ("lander", LanderGoal("left"), LanderGoal("right").text(), 5),
    ("paddle", PaddleGoal("return"), "let me win", 4),
    ("driver", RoadGoal("stop"), RoadGoal("speed", 50).text(), 3),
]
# Those of the default suite, soon over: each model does something that it is told, and not when told the opposite.
QUICK = (LanderGoal("left"), PaddleGoal("return"), *LANES, RoadGoal("stop"))


def some_slow(listed: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*one, marks=[] if one[1] in QUICK else [pytest.mark.slow]) for one in listed]


@cache
def decider(name: str) -> STDecider:
    agent = AGENTS[name]
    # A budget of its own: without one the layout follows from what a pass was measured to cost, which load changes.
    return DeciderSpec(agent.model, tuple(agent.tools.openai()), budget_per_head=64, history=agent.history).build()


@cache
def flights(name: str, quick: bool) -> dict[Case, Episode]:
    """The quick episodes of a model or the others, on seeds that it was not trained on, sixteen worlds in a pass."""
    told = [(goal, None, seeds) for which, goal, seeds, _ in TOLD if which == name]
    told += [(goal, text, seeds) for which, goal, text, seeds in OPPOSITES if which == name]
    told = [one for one in told if (one[0] in QUICK) == quick]
    asked = [case for goal, text, seeds in told for case in cases(goal, range(5000, 5000 + seeds), text)]

    def policy(situations: Sequence[tuple[str, str]]) -> list[Call]:
        made = decider(name).decide_many([(seen, told) for told, seen in situations])
        return [decision.call for decision in made if decision.call is not None]

    episodes = evaluate(SKILLS[name], policy, asked, parallel=16)
    return dict(zip(asked, episodes, strict=True))


def successes(name: str, goal: Any, seeds: int, instruction: str | None = None) -> int:
    told = cases(goal, range(5000, 5000 + seeds), instruction)
    return int(summary([flights(name, goal in QUICK)[case] for case in told])["successes"])


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("lander", 15_000_000, 32 << 20),
        ("paddle", 3_000_000, 12_000_000),
        ("driver", 2_100_000, 8_000_000),
        ("village", 800_000, 2 << 20),
    ],
)
def test_bundled_model_is_within_its_size(name: str, parameters: int, size: int) -> None:
    path = resolve(name) / "model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        assert sum(file.get_tensor(key).numel() for key in file.keys()) <= parameters  # noqa: SIM118  (not a dict)
    assert sum(p.stat().st_size for p in path.parent.iterdir()) <= size


def test_bundled_models_decide_in_one_pass_over_few_tokens() -> None:
    for one in situations("lander", 3):
        decision = decider("lander").decide(one.observation, one.instruction)
    assert (decision.forward_passes, decision.tokens) <= (1, 20)
    assert decision.reused_tokens > decider("lander").prefix.tokens
    state = {"ball_x": 60.0, "ball_y": 20.0, "ball_vx": 50.0, "ball_vy": 9.0, "own_y": 30.0, "other_y": 30.0}
    for _ in range(2):
        decision = decider("paddle").decide(paddle.observe(state), "return every ball")
    assert (decision.forward_passes, decision.tokens) <= (1, 20)


@pytest.mark.parametrize(("name", "goal", "seeds", "least"), some_slow(TOLD))
def test_bundled_model_does_what_it_is_told(name: str, goal: Any, seeds: int, least: int) -> None:
    assert successes(name, goal, seeds) >= least


@pytest.mark.parametrize(("name", "goal", "told", "seeds"), some_slow(OPPOSITES))
def test_bundled_model_told_the_opposite_fails_the_judged_goal(name: str, goal: Any, told: str, seeds: int) -> None:
    assert successes(name, goal, seeds, told) <= 1


@pytest.mark.parametrize("name", AGENTS)
def test_a_bundled_model_says_that_it_learnt_its_agents_tools(name: str) -> None:
    agent = AGENTS[name]
    learnt = TrainingMetadata.of(resolve(name))
    assert learnt is not None and learnt.knows(agent.tools.schemas)
    # Who was taught what means nothing answers null to it, and says by which gate.
    assert learnt.history == agent.history and learnt.allow_null and learnt.gate is not None
    others = [other for other in AGENTS.values() if other is not agent]
    assert not any(learnt.knows(other.tools.schemas) for other in others)
    words = {word for seen in situations(name, 3) for word in seen.observation.split() if word.isalpha()}
    assert set(learnt.observation) <= words
