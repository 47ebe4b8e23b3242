"""Tests of Gymnasium worlds: actions become tools, observations become text, unsupported spaces are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.envs.gym import GymWorld
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


class Odd(gymnasium.Env[Any, Any]):
    """A world with any spaces, which only stores the actions that it gets."""

    def __init__(self, sees: Any, does: Any) -> None:
        self.observation_space, self.action_space = sees, does
        self.given: list[Any] = []

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        return self.observation_space.sample(), 1.0, len(self.given) >= 3, False, {}


PLAIN = spaces.Box(-1, 1, (2,))


def world_of(monkeypatch: pytest.MonkeyPatch, sees: Any, does: Any, query: str = "") -> GymWorld:
    monkeypatch.setattr(gymnasium, "make", lambda id, **options: Odd(sees, does))
    return GymWorld(f"gym:Odd-v0{query}")


@pytest.mark.parametrize(
    ("name", "parameters", "names", "safe_arguments"),
    [
        ("CartPole-v1", {"action": ["left", "right"]}, ["x", "v", "angle", "spin"], {"action": "left"}),
        ("Pendulum-v1?levels=3", {"a1": [-2.0, 0.0, 2.0]}, ["cos", "sin", "spin"], {"a1": 0.0}),
        (
            "LunarLander-v3?continuous=true&levels=3&actions=main,side",
            {"main": [-1.0, 0.0, 1.0], "side": [-1.0, 0.0, 1.0]},
            ["x", "y", "vx", "vy", "angle", "spin", "left_leg", "right_leg"],
            {"main": 0.0, "side": 0.0},
        ),
    ],
)
def test_actions_are_tools_of_declared_levels(
    name: str, parameters: dict[str, list[Any]], names: list[str], safe_arguments: dict[str, Any]
) -> None:
    agent, world = GymWorld(f"gym:{name}").agent(), GymWorld(f"gym:{name}")
    assert not agent.notices  # nothing is guessed in known worlds
    (schema,) = agent.tools.openai()
    properties = schema["function"]["parameters"]["properties"]
    assert {key: part["enum"] for key, part in properties.items()} == parameters
    assert agent.fallback.safe_call == Call("act", safe_arguments)
    for seed in (0, 0, 1):
        world.reset(seed)
    assert list(world.observe()) == names
    for i in range(20):
        world.act(**{key: values[i % len(values)] for key, values in parameters.items()})
        world.step()
    assert agent.observe(world.observe()).split()[::2] == names


def test_integer_of_gym_space_is_shown_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world_of(monkeypatch, spaces.Discrete(500), spaces.Discrete(2)).agent().observe({"o": 314.0}) == "o 314"
    part = {"at": spaces.Discrete(500), "ram": spaces.Box(0, 255, (2,), np.uint8), "on": spaces.MultiBinary(2)}
    world = world_of(monkeypatch, spaces.Dict({**part, "x": PLAIN}), spaces.Discrete(2), "?precision=1")
    values = {name: 0.5 if name.startswith("x") else 123.0 for name in world.names}
    assert world.agent().observe(values) == "at 123 on_1 123 on_2 123 ram_1 123 ram_2 123 x_1 5 x_2 5"


@pytest.mark.parametrize(
    ("query", "success"),
    [("", None), ("?success=return>=3", True), ("?success=return>3", False), ("?success=steps<=3", True),
     ("?success=terminated", True), ("?success=truncated", False)],
)  # fmt: skip
def test_success_rule_judges_the_episode(monkeypatch: pytest.MonkeyPatch, query: str, success: bool | None) -> None:
    monkeypatch.setattr(Odd, "spec", None)
    world = world_of(monkeypatch, PLAIN, spaces.Discrete(2), query)
    world.reset(4)
    for _ in range(5):  # two more than there are
        assert (world.outcome() is None) == (world._episode.steps < 3)
        world.step()
    ended = world.outcome()
    assert ended is not None and (ended.success, ended.ret, ended.seed) == (success, 3.0, 4)
    assert ended.detail == {"end": "terminated", "steps": 3}


@pytest.mark.parametrize(
    ("sees", "does", "says"),
    [
        (spaces.Box(0, 255, (96, 96, 3), np.uint8), spaces.Discrete(2), "is an image"),
        (spaces.Box(-1, 1, (513,)), spaces.Discrete(2), "more than 512 numbers"),
        (spaces.Dict({"a": PLAIN, "b": spaces.Sequence(PLAIN)}), spaces.Discrete(2), "contains a Sequence"),
        (PLAIN, spaces.Box(-np.inf, np.inf, (1,)), "without bounds"),
        (PLAIN, spaces.Dict({"say": spaces.Text(9)}), "contain a Text"),
        (PLAIN, spaces.Discrete(20_000), "has 20000 values"),
    ],
)
def test_unsupported_space_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, sees: Any, does: Any, says: str) -> None:
    with pytest.raises(UserError) as raised:
        world_of(monkeypatch, sees, does)
    assert raised.value.what.startswith("gym:Odd-v0: ") and says in raised.value.what
    assert "world" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Nope-v0", "cannot be created"),
        ("CartPole-v1?colour=red", "colour"),
        ("CartPole-v1?levels=1", "levels=1 is not valid"),
        ("CartPole-v1?safe=up", "safe=up"),
        ("CartPole-v1?actions=x", "actions=x is not valid. Use 2 names"),
        ("Pendulum-v1?safe=0.3", "an allowed value for each parameter (a1: -2.0, -1.0, 0.0, 1.0, 2.0)"),
        ("Pendulum-v1?safe=0,0", "an allowed value for each parameter"),
        ("CartPole-v1?actions=x,x", "Use different names"),
    ],
)
def test_unusable_gym_name_is_reported(name: str, says: str) -> None:
    with pytest.raises(UserError, match=r"gym:") as raised:
        GymWorld(f"gym:{name}").agent()
    assert says in str(raised.value)


@pytest.mark.parametrize("reward", [[1.5, 2.0], "a", float("nan"), 10**400])
def test_reward_that_is_not_a_number_is_reported(monkeypatch: pytest.MonkeyPatch, reward: Any) -> None:
    world = world_of(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(Odd, "step", lambda self, _: (self.observation_space.sample(), reward, False, False, {}))
    world.reset(0)
    world.step()  # it was stepped: a safe call is in force
    with pytest.raises(UserError, match=r"Odd\.step\(\) returned an invalid result"):
        world.outcome()


@pytest.mark.parametrize("observation", [[[1.5], [1.5, 2.0]], np.zeros(3), "text", None])
def test_observation_outside_its_space_is_reported(monkeypatch: pytest.MonkeyPatch, observation: Any) -> None:
    world = world_of(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(Odd, "reset", lambda self, **_: (observation, {}))
    world.reset(0)
    with pytest.raises(UserError, match=r"Odd\.reset\(\) returned an observation that does not fit"):
        world.observe()


def test_world_cannot_modify_the_action_for_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    actions: list[float] = []

    def step(self: Odd, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions.append(float(action[0]))
        action *= 9
        return self.observation_space.sample(), 0.0, False, False, {}

    monkeypatch.setattr(Odd, "step", step)
    world = world_of(monkeypatch, PLAIN, spaces.Box(-1, 1, (1,)))
    world.reset(0)
    world.act(a1=1.0)
    for _ in range(3):
        world.step()
    assert actions == [1.0, 1.0, 1.0]


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
def test_every_number_of_an_observation_has_a_name(sees: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = world_of(monkeypatch, sees, spaces.Discrete(2))
        world.reset(0)
        values = world.observe()
    assert len(set(values)) == len(values) > 0 and all(isinstance(value, int | float) for value in values.values())


def test_any_legal_action_can_be_the_safe_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target = spaces.Box(0, 512, (2,), np.float32)
    world = world_of(monkeypatch, PLAIN, target, "?safe=256,256")
    assert world.tool.safe_arguments == {"a1": 256.0, "a2": 256.0} and not any(
        "safe" in text for text in world.agent().notices
    )


def test_guessed_safe_action_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (guess,) = world_of(monkeypatch, PLAIN, spaces.Discrete(5)).agent().notices
    assert guess == "The safe call act(action=0) is a guess. Name the safe action: gym:Odd-v0?safe=ACTION."


def test_declared_bounds_can_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    drone = spaces.Dict(
        height=spaces.Box(0, 500, (1,), np.float64),
        speed=spaces.Box(-np.inf, np.inf, (1,), np.float64),
        t=spaces.Box(0, 2**62, (1,), np.int64),
    )
    agent = world_of(monkeypatch, drone, spaces.Discrete(2), "?safe=0").agent()
    seen = {"height_1": 450.0, "speed_1": 450.0, "t_1": 1764412345678901235}
    assert agent.observe(seen) == "height_1 45000 speed_1 9999 t_1 1764412345678901235"
    (endless,) = agent.notices
    assert endless.startswith("speed_1: no declared bounds, so values above 99.99 are shown as 9999.")


class Mission(spaces.Space[str]):
    """A text space that is not one of Gymnasium's, like MiniGrid's mission space."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, *_: Any) -> str:
        return "go to the\nred ball"


@pytest.mark.parametrize(
    ("does", "parameters", "chosen", "gave"),
    [
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (1,))),
            {"a": [0, 1], "b_1": [0.0, 0.25, 0.5, 0.75, 1.0]},
            {"b_1": 0.25, "a": 1},
            {"a": 1, "b": np.array([0.25], np.float32)},
        ),
        (spaces.Discrete(3, start=-1), {"action": [-1, 0, 1]}, {"action": -1}, -1),
        (
            spaces.Dict({"self": spaces.Discrete(2), "arm": spaces.Tuple([spaces.Dict(up=spaces.Discrete(3))])}),
            {"arm_1_up": [0, 1, 2], "self": [0, 1]},
            {"self": 1, "arm_1_up": 2},
            {"self": 1, "arm": ({"up": 2},)},
        ),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])),
            {"a1": [0, 1], "a2": [0, 1, 2], "a3": [0, 1], "a4": [0, 1]},
            {"a1": 1, "a2": 2, "a3": 0, "a4": 1},
            np.array([[1, 2], [0, 1]]),
        ),
    ],
    ids=["dict", "choice", "nested", "matrix"],
)
def test_composite_action_becomes_one_tool_with_parameters(
    monkeypatch: pytest.MonkeyPatch, does: Any, parameters: dict[str, Any], chosen: dict[str, Any], gave: Any
) -> None:
    world = world_of(monkeypatch, PLAIN, does)
    assert {key: [*values] for key, values in world.tool.parameters.items()} == parameters
    (schema,) = world.agent().tools.openai()
    assert list(schema["function"]["parameters"]["properties"]) == list(parameters)
    world.reset(0)
    world.act(**chosen)
    world.step()
    np.testing.assert_equal(world.env.given[-1], gave)
    assert does.contains(world.env.given[-1])


def test_text_and_small_grids_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    sees = spaces.Dict(grid=spaces.Box(3, 3, (1, 2, 3), np.uint8), mission=Mission(), say=spaces.Text(9, min_length=9))
    world = world_of(monkeypatch, sees, spaces.Discrete(2))
    world.reset(0)
    values, words = world.observe(), world.agent().observe(world.observe())
    assert values["mission"] == "go to the\nred ball" and len(str(values["say"])) == 9
    assert words.startswith("grid_1 3 ") and "grid_6 3 mission go to the red ball say " in words
    world._episode.observation = {**world._episode.observation, "mission": 7}
    with pytest.raises(UserError, match="7 is not text"):
        world.observe()


def test_world_that_cannot_be_created_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "import gymnasium\nclass Silent(gymnasium.Env):\n    def __init__(self):\n        assert 1 == 2, 'mute'\n"
    (tmp_path / "peers_silent.py").write_text(f"{source}\ngymnasium.register('Silent-v0', entry_point=Silent)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(UserError, match=r"cannot be created \(AssertionError: mute"):
            GymWorld("gym:peers_silent:Silent-v0")
    finally:
        gymnasium.registry.pop("Silent-v0", None)
        sys.modules.pop("peers_silent", None)


def test_world_makes_pictures_if_it_can_and_should() -> None:
    world = GymWorld("gym:CartPole-v1", pictures=True)
    world.reset(0)
    assert world.picture().shape == (400, 600, 3)
    world.env.close()
    for name, pictures in (("gym:CartPole-v1", False), ("gym:CartPole-v1?render_mode=none", True)):
        plain = GymWorld(name, pictures=pictures)
        assert plain.picture() is None
        plain.env.close()
