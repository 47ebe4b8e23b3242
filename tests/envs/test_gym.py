"""Gymnasium's worlds by their ids: actions as tools, what is seen as text, what cannot be mapped refused."""

from __future__ import annotations

import random
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.envs.gym import GymWorld
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import random_call
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
    assert (
        summary(evaluate(skill, lambda seen: [skill.any_call(random.Random(0)) for _ in seen], told, hz=50))[
            "successes"
        ]
        == 0
    )


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
    agent, world = GymWorld(f"gym:{name}").agent(), GymWorld(f"gym:{name}")
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
    agent = GymWorld("gym:CartPole-v1?precision=1").agent()
    assert agent.observe({"x": 1.26, "v": -0.04, "angle": 1e30, "spin": -3}) == "x 13 v 0 angle 9999 spin -30"


def test_a_whole_number_of_the_space_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, spaces.Discrete(500), spaces.Discrete(2)).agent().observe({"o": 314.0}) == "o 314"
    part = {"at": spaces.Discrete(500), "ram": spaces.Box(0, 255, (2,), np.uint8), "on": spaces.MultiBinary(2)}
    world = made(monkeypatch, spaces.Dict({**part, "x": PLAIN}), spaces.Discrete(2), "?precision=1")
    seen = {name: 0.5 if name.startswith("x") else 123.0 for name in world.shown}
    assert world.agent().observe(seen) == "at 123 on_1 123 on_2 123 ram_1 123 ram_2 123 x_1 5 x_2 5"


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
        (spaces.Box(-1, 1, (513,)), spaces.Discrete(2), "more than 512 numbers"),
        (spaces.Graph(PLAIN, None), spaces.Discrete(2), "holds a Graph"),
        (spaces.Dict({"a": PLAIN, "b": spaces.Sequence(PLAIN)}), spaces.Discrete(2), "holds a Sequence"),
        (PLAIN, spaces.Box(-np.inf, np.inf, (1,)), "have no bounds"),
        (PLAIN, spaces.Box(-1, 1, (513,)), "more than 512 numbers, too many for one call"),
        (PLAIN, spaces.Sequence(PLAIN), "are a Sequence, no tool"),
        (PLAIN, spaces.Dict({"say": spaces.Text(9)}), "its action say is a Text, no tool"),
        (PLAIN, spaces.Discrete(20_000), "are one of 20000 values"),
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
        GymWorld(f"gym:{name}").agent()
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


class Number:
    def __float__(self) -> float:
        return 1.5


TENSOR = torch.tensor([1.5, 2.0], requires_grad=True)
MASKED = np.ma.array([1.5, 2.0], mask=[True, False])
UNEVEN = [[1.5], [1.5, 2.0]]


@pytest.mark.parametrize(
    "reward",
    [np.float16(1.5), np.array(1.5), np.array([1.5], object), [1.5], TENSOR[0], TENSOR[:1].to(torch.bfloat16),
     Decimal("1.5"), Fraction(3, 2), Number(), np.ma.array([1.5])],
)  # fmt: skip
def test_a_reward_is_one_number_whatever_library_made_it(monkeypatch: pytest.MonkeyPatch, reward: Any) -> None:
    world = made(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(world.env, "step", lambda _: (world.env.observation_space.sample(), reward, True, False, {}))
    world.reset(0)
    world.step()
    ended = world.outcome()
    assert ended is not None and ended.ret == 1.5


@pytest.mark.parametrize(
    "reward", [UNEVEN, MASKED[:1], np.ma.masked, "1.5", 1j, None, 10**400, torch.empty(1, device="meta")]
)
def test_a_reward_that_is_no_number_is_the_worlds_mistake(monkeypatch: pytest.MonkeyPatch, reward: Any) -> None:
    world = made(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(Odd, "step", lambda self, _: (self.observation_space.sample(), reward, False, False, {}))
    world.reset(0)
    world.step()  # it was stepped: a safe call is in force
    with pytest.raises(UserError, match=r"Odd\.step\(\) gave .* as its reward"):
        world.outcome()


@pytest.mark.parametrize(
    ("seen", "found"),
    [(TENSOR, [1.5, 2.0]), (np.array([1.5, 2.0], object), [1.5, 2.0]), ((np.float16(1.5), 2), [1.5, 2.0]),
     (MASKED, None), (UNEVEN, None), ((np.zeros(2), {}), None), (np.array(["a", "b"], object), None)],
)  # fmt: skip
def test_what_is_seen_is_numbers_of_any_library_and_nothing_hidden(
    monkeypatch: pytest.MonkeyPatch, seen: Any, found: list[float] | None
) -> None:
    world = made(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(Odd, "reset", lambda self, **_: (seen, {}))
    world.reset(0)
    if found is not None:
        assert [*world.observe().values()] == found
    else:
        with pytest.raises(UserError, match=r"Odd\.reset\(\) gave an observation that holds"):
            world.observe()


def test_an_action_that_the_world_works_in_is_the_same_in_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def step(self: Odd, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        told.append(float(action[0]))
        action *= 9
        return self.observation_space.sample(), 0.0, False, False, {}

    monkeypatch.setattr(Odd, "step", step)
    world = made(monkeypatch, PLAIN, spaces.Box(-1, 1, (1,)))
    world.reset(0)
    world.act(a1=1.0)
    for _ in range(3):
        world.step()
    assert told == [1.0, 1.0, 1.0]


def test_a_reset_of_the_former_interface_is_told_at_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "reset", lambda self: self.observation_space.sample())
    world = made(monkeypatch, PLAIN, spaces.Discrete(2))
    with pytest.raises(UserError, match=r"test_gym\.py:\d+: Odd\.reset\(\) .*'seed'.* take seed and options"):
        world.reset(0)


@pytest.mark.parametrize("fps", ["20", -3, float("nan"), float("inf"), [30]])
def test_a_frame_rate_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, fps: Any) -> None:
    monkeypatch.setattr(Odd, "metadata", {"render_fps": fps})
    with pytest.raises(UserError, match="metadata say render_fps = "):
        made(monkeypatch, PLAIN, spaces.Discrete(2))
    monkeypatch.setattr(Odd, "metadata", {"render_fps": np.float32(20)})
    assert made(monkeypatch, PLAIN, spaces.Discrete(2)).step_s == 0.05


def test_a_world_without_a_space_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="gym:Odd-v0: Odd has no action_space"):
        made(monkeypatch, PLAIN, None)


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


class Mission(spaces.Space[str]):
    """Text that is not Gymnasium's, as MiniGrid's missions are."""

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
        (
            spaces.Tuple([spaces.Discrete(2, start=5), spaces.MultiBinary(2)]),
            {"a1": [5, 6], "a2_1": [0, 1], "a2_2": [0, 1]},
            {"a1": 6, "a2_1": 0, "a2_2": 1},
            (6, np.array([0, 1], np.int8)),
        ),
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
    ids=["dict", "tuple", "nested", "matrix"],
)
def test_actions_of_several_parts_are_parameters_of_one_tool(
    monkeypatch: pytest.MonkeyPatch, does: Any, parameters: dict[str, Any], chosen: dict[str, Any], gave: Any
) -> None:
    world = made(monkeypatch, PLAIN, does)
    assert world.parameters == parameters
    (schema,) = world.agent().tools.openai()
    assert list(schema["function"]["parameters"]["properties"]) == list(parameters)
    world.reset(0)
    world.act(**chosen)
    world.step()
    np.testing.assert_equal(world.env.given[-1], gave)
    assert does.contains(world.env.given[-1])


def test_an_action_of_more_numbers_than_a_call_has_heads_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    does = spaces.Box(-1, 1, (30,))
    world = made(monkeypatch, PLAIN, does)
    call = random_call(world.agent().tools.schemas, random.Random(0))
    assert len(call.arguments) == 30
    world.reset(0)
    world.act(**call.arguments)
    world.step()
    assert does.contains(world.env.given[-1]) and list(world.env.given[-1]) == list(call.arguments.values())


def test_text_and_small_grids_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sees = spaces.Dict(grid=spaces.Box(3, 3, (1, 2, 3), np.uint8), mission=Mission(), say=spaces.Text(9, min_length=9))
    world = made(monkeypatch, sees, spaces.Discrete(2))
    world.reset(0)
    seen, words = world.observe(), world.agent().observe(world.observe())
    assert seen["mission"] == "go to the\nred ball" and len(str(seen["say"])) == 9
    assert words.startswith("grid_1 3 ") and "grid_6 3 mission go to the red ball say " in words
    world._seen = {**world._seen, "mission": 7}
    with pytest.raises(UserError, match="holds 7 in mission, where its space has text"):
        world.observe()


def test_options_of_a_world_may_be_objects_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(gymnasium, "make", lambda id, **options: given.update(options) or Odd(PLAIN, PLAIN))
    GymWorld('gym:Odd-v0?config={"lanes": 3, "sees": ["x"]}&sizes=[1,2]')
    assert given == {"config": {"lanes": 3, "sees": ["x"]}, "sizes": [1, 2]}
    with pytest.raises(UserError, match=r"config=\{lanes: 3\} cannot be used. Give an object or a list of JSON"):
        GymWorld("gym:Odd-v0?config={lanes: 3}")


def test_a_window_is_refused_where_there_is_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="opens a window, and there is no display here"):
        GymWorld("gym:CartPole-v1?render_mode=human")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made(monkeypatch, PLAIN, PLAIN, "?render_mode=human")


@pytest.mark.parametrize(
    ("module", "package", "name"),
    [
        ("gymnasium_robotics", "gymnasium-robotics", "Hopper-v3"),
        ("ale_py", "ale-py", "PongNoFrameskip-v4"),
        ("ale_py", None, "Pong-v4"),
    ],
)
def test_ids_of_before_are_sought_in_the_package_that_has_them_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, package: str | None, name: str
) -> None:
    if name in gymnasium.registry:
        monkeypatch.setitem(gymnasium.registry, name, gymnasium.registry[name])  # put back in the end
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as raised:
        GymWorld(f"gym:{name}")
    lacks = f"it is of {package}, which is not installed. Install it: `pip install {package}`."
    assert (lacks if package else "Correct the id") in str(raised.value)
    pole = "gymnasium.envs.classic_control:CartPoleEnv"
    (tmp_path / f"{module}.py").write_text(f"import gymnasium\ngymnasium.register({name!r}, entry_point={pole!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module)
    try:
        assert GymWorld(f"gym:{name}").parameters == {"action": [0, 1]}
    finally:
        sys.modules.pop(module, None)
        gymnasium.registry.pop(name)


FAULTS = {
    "Silent": ("class Silent(gymnasium.Env):\n    def __init__(self):\n        assert 1 == 2\n", "entry_point=Silent",
               "cannot be made (AssertionError: assert 1 == 2, {file}.py:4). Correct it there."),
    "Grouped": ("Grouped = None\n", "vector_entry_point='nowhere:Nothing'",
                "It is registered for many worlds at once alone, and a controller flies one"),
    "Older": ("class Older:\n    pass\n", "entry_point=Older",
              "must inherit from the gymnasium.Env class"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_world_that_cannot_be_made_is_told_by_what_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    source, how, says = FAULTS[kind]
    file = f"peers_{kind.lower()}"
    (tmp_path / f"{file}.py").write_text(f"import gymnasium\n{source}\ngymnasium.register('{kind}-v0', {how})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(UserError) as raised:
            GymWorld(f"gym:{file}:{kind}-v0")
    finally:
        gymnasium.registry.pop(f"{kind}-v0", None)
        sys.modules.pop(file, None)
    assert says.format(file=file) in str(raised.value)
    assert "Correct the id or" not in str(raised.value)


def test_a_version_that_lacks_something_names_the_one_of_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, entry in ((1, "peers_nowhere:Old"), (2, "gymnasium.envs.classic_control:CartPoleEnv")):
        gymnasium.register(f"Peers-v{version}", entry_point=entry)
        monkeypatch.setitem(gymnasium.registry, f"Peers-v{version}", gymnasium.registry.pop(f"Peers-v{version}"))
    with pytest.raises(UserError, match="Take gym:Peers-v2, or install what this one lacks"):
        GymWorld("gym:Peers-v1")
    with pytest.raises(UserError, match="v7 for environment Peers doesn't exist.*Give one of these versions"):
        GymWorld("gym:Peers-v7")
