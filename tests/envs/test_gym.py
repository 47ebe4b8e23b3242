"""Gymnasium's worlds by their ids: their actions as tools, what is seen as text, what cannot be mapped refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.gym import GymWorld, gym_agent
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.run.skills import skill_of

POLE = """
from rtcontrol import Call

def expert(data, goal):
    lean = data["angle"] + 0.3 * data["spin"] + 0.02 * data["x"] + 0.05 * data["v"]
    return Call("act", {"action": "right" if lean > 0 else "left"})
"""


class Odd(gymnasium.Env[Any, Any]):
    """A world of any spaces, that does nothing but keep what it was given."""

    def __init__(self, sees: Any, does: Any) -> None:
        self.observation_space, self.action_space = sees, does
        self.given: list[Any] = []

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        return self.observation_space.sample(), 1.0, len(self.given) >= 3, False, {}


PLAIN = spaces.Box(-1, 1, (2,))


def made(monkeypatch: pytest.MonkeyPatch, sees: Any, does: Any, query: str = "") -> GymWorld:
    monkeypatch.setattr(gymnasium, "make", lambda id, **options: Odd(sees, does))
    return GymWorld(f"gym:Odd-v0{query}")


def test_a_scripted_expert_balances_the_pole_every_time(tmp_path: Path) -> None:
    (file := tmp_path / "pole.py").write_text(POLE)
    skill = skill_of("gym:CartPole-v1", str(file))
    told = cases(skill.goals[0], range(10))
    assert skill.goals[0].text() == "play CartPole-v1" and skill.make().step_s == 0.02
    assert summary(evaluate(skill, skill.expert_policy, told, hz=50))["successes"] == 10
    assert summary(evaluate(skill, skill.random_policy(), told, hz=50))["successes"] == 0


@pytest.mark.parametrize(
    ("name", "parameters", "seen", "still"),
    [
        ("CartPole-v1", {"action": ["left", "right"]}, ["x", "v", "angle", "spin"], {"action": "left"}),
        ("MountainCar-v0", {"action": ["left", "none", "right"]}, ["x", "v"], {"action": "none"}),
        ("MountainCar-v0?actions=a,b,c&safe=c", {"action": ["a", "b", "c"]}, ["x", "v"], {"action": "c"}),
        ("Pendulum-v1?levels=3", {"a1": [-2.0, 0.0, 2.0]}, ["cos", "sin", "spin"], {"a1": 0.0}),
        ("Pendulum-v1?levels=2&sees=a,b,c", {"a1": [-2.0, 2.0]}, ["a", "b", "c"], {"a1": -2.0}),
        (
            "LunarLander-v3?continuous=true&levels=3&actions=main,side",
            {"main": [-1.0, 0.0, 1.0], "side": [-1.0, 0.0, 1.0]},
            ["x", "y", "vx", "vy", "angle", "spin", "left_leg", "right_leg"],
            {"main": 0.0, "side": 0.0},
        ),
        (
            "LunarLander-v3?continuous=true&gravity=-8&levels=3",
            {"a1": [-1.0, 0.0, 1.0], "a2": [-1.0, 0.0, 1.0]},
            ["x", "y", "vx", "vy", "angle", "spin", "left_leg", "right_leg"],
            {"a1": 0.0, "a2": 0.0},
        ),
        (
            "CartPole-v1?actions=push,pull",
            {"action": ["push", "pull"]},
            ["x", "v", "angle", "spin"],
            {"action": "push"},
        ),
    ],
)
def test_actions_are_tools_of_declared_levels(
    name: str, parameters: dict[str, list[Any]], seen: list[str], still: dict[str, Any]
) -> None:
    agent, world = gym_agent(f"gym:{name}"), GymWorld(f"gym:{name}")
    (schema,) = agent.tools.openai()
    properties = schema["function"]["parameters"]["properties"]
    assert {key: part["enum"] for key, part in properties.items()} == parameters
    assert agent.fallback.safe_call == Call("act", still)
    for seed in (0, 0, 1):
        world.reset(seed)
    assert list(world.observe()) == seen
    for i in range(20):
        world.act(**{key: values[i % len(values)] for key, values in parameters.items()})
        world.step()
    assert agent.observe(world.observe()).split()[::2] == seen


def test_the_same_seed_and_calls_are_the_same_episode() -> None:
    found = []
    for _ in range(2):
        world = GymWorld("gym:Acrobot-v1")
        world.reset(5)
        for i in range(30):
            world.act(action=("left", "right")[i % 3 == 0])
            world.step()
        found.append(world.observe())
    assert found[0] == found[1]


def test_what_is_seen_is_whole_numbers_of_the_precision() -> None:
    agent = gym_agent("gym:CartPole-v1?precision=1")
    assert agent.observe({"x": 1.26, "v": -0.04, "angle": 1e30, "spin": -3}) == "x 13 v 0 angle 9999 spin -30"


@pytest.mark.parametrize(
    ("query", "success"),
    [("", None), ("?success=return>=3", True), ("?success=return>3", False), ("?success=steps<=3", True),
     ("?success=terminated", True), ("?success=truncated", False)],
)  # fmt: skip
def test_success_is_a_rule_on_the_episode(monkeypatch: pytest.MonkeyPatch, query: str, success: bool | None) -> None:
    monkeypatch.setattr(Odd, "spec", None)
    world = made(monkeypatch, PLAIN, spaces.Discrete(2), query)
    world.reset(4)
    for _ in range(5):  # two more than there are
        assert (world.outcome() is None) == (world._steps < 3)
        world.step()
    ended = world.outcome()
    assert ended is not None and (ended.success, ended.ret, ended.seed) == (success, 3.0, 4)
    assert ended.detail == {"end": "terminated", "steps": 3}


@pytest.mark.parametrize(
    ("sees", "does", "says"),
    [
        (spaces.Box(0, 255, (96, 96, 3), np.uint8), spaces.Discrete(2), "is an image"),
        (spaces.Box(-1, 1, (65,)), spaces.Discrete(2), "more than 64 numbers"),
        (spaces.Text(9), spaces.Discrete(2), "holds a Text"),
        (spaces.Dict({"a": PLAIN, "b": spaces.Sequence(PLAIN)}), spaces.Discrete(2), "holds a Sequence"),
        (PLAIN, spaces.Box(-np.inf, np.inf, (1,)), "have no bounds"),
        (PLAIN, spaces.Box(-1, 1, (7,)), "7 numbers, and a call has 6"),
        (PLAIN, spaces.Tuple([spaces.Discrete(2)]), "are a Tuple, no tool"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, sees: Any, does: Any, says: str
) -> None:
    with pytest.raises(UserError) as raised:
        made(monkeypatch, sees, does)
    assert raised.value.what.startswith("gym:Odd-v0: ") and says in raised.value.what
    assert "world" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Nope-v0", "cannot be made"),
        ("CartPole-v1?colour=red", "colour"),
        ("CartPole-v1?levels=1", "levels=1 cannot be used"),
        ("CartPole-v1?precision=many", "precision=many"),
        ("CartPole-v1?success=soon", "success=soon"),
        ("CartPole-v1?safe=up", "safe=up"),
        ("CartPole-v1?sees=x,v", "sees=x,v cannot be used. Give 4 names"),
        ("CartPole-v1?actions=left", "Give 2 names"),
        ("Pendulum-v1?actions=left,right", "Give 1 names"),
        ("Pendulum-v1?safe=0", "of numbers those nearest to 0 are safe"),
        ("CartPole-v1?sees=x,x,v,w", "Give each name once"),
        ("LunarLander-v3?gravity=5", "cannot be made"),
        ("CartPole-v1?max_episode_steps=-5", "cannot be made"),
    ],
)
def test_names_that_cannot_be_used_are_told(name: str, says: str) -> None:
    with pytest.raises(UserError, match=r"gym:") as raised:
        gym_agent(f"gym:{name}")
    assert says in str(raised.value)


def test_what_is_chosen_goes_by_its_name_and_not_by_its_place() -> None:
    world = GymWorld("gym:LunarLander-v3?continuous=true&levels=3&actions=main,side")
    world.reset(0)
    for chosen in ({"main": 1.0, "side": -1.0}, {"side": -1.0, "main": 1.0}):
        world.act(**chosen)
        assert list(world._action) == [1.0, -1.0]


def test_several_numbers_of_an_action_are_parameters_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for does, parameters, chosen, is_ in (
        (spaces.MultiDiscrete([2, 3]), {"a1": [0, 1], "a2": [0, 1, 2]}, {"a1": 1, "a2": 2}, [1, 2]),
        (spaces.MultiBinary(2), {"a1": [0, 1], "a2": [0, 1]}, {"a1": 0, "a2": 1}, [0, 1]),
        (spaces.Discrete(3, start=-1), {"action": [-1, 0, 1]}, {"action": -1}, -1),
    ):
        world = made(monkeypatch, PLAIN, does)
        world.reset(0)
        world.act(**chosen)
        world.step()
        assert world.parameters == parameters and does.contains(world.env.given[-1])
        assert np.array_equal(world.env.given[-1], is_)


leaves = st.sampled_from([PLAIN, spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 5])])
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=6,
)


@given(nested)
def test_whatever_is_seen_has_a_name_for_each_number(sees: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = made(monkeypatch, sees, spaces.Discrete(2))
        world.reset(0)
        seen = world.observe()
    assert len(set(seen)) == len(seen) > 0 and all(isinstance(value, float) for value in seen.values())
