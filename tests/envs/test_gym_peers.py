"""What broke others' wrappers of Gymnasium's worlds flies here, or is refused by what it is.

Tuple and Dict actions (pytorch/rl issue 2716, thu-ml/tianshou issue 172), Tuple observations (DLR-RM/stable-baselines3
issue 1140, facebookresearch/Pearl issue 54), MultiDiscrete of two dimensions (stable-baselines3 issue 1713), Hopper-v2
of a package that nobody imported (Farama-Foundation/Gymnasium issue 1421), Atari's games by the ids of before
(Gymnasium issue 152), an AssertionError without a word (Farama-Foundation/Gymnasium-Robotics issue 265), a window where
there is no display, which ends the process (TianhongDai/hindsight-experience-replay issue 12)."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rtcontrol.envs.gym import GymWorld
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import random_call
from tests.envs.test_gym import PLAIN, Odd, made


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
    assert words.startswith("grid_1 300 ") and "grid_6 300 mission go to the red ball say " in words
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
