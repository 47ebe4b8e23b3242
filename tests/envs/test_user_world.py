"""Tests of a user's world as a simulation: what others read must not change with its next step."""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rtcontrol.agents import Fallback, Tools
from rtcontrol.envs.base import Observation
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.pictures import encode_picture
from rtcontrol.envs.thread import WorldThread, _Job
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.run.live import WorldPictures
from rtcontrol.run.user_files import notices, observation_text, tools_only_agent


class Shared:
    """A world that returns its own state."""

    step_s = 0.1

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"x": 0, "joints": [0, 0], "scan": np.zeros(2)}

    def reset(self, seed: int) -> None: ...

    def step(self) -> None:
        self.state["x"] += 1
        self.state["joints"][0] += 1
        self.state["scan"] += 1

    def observe(self) -> dict[str, Any]:
        return self.state

    def outcome(self) -> None:
        return None

    def instruct(self, text: str) -> None: ...


def test_observation_is_not_changed_by_the_next_step() -> None:
    world = UserWorld(Shared(), "shared")
    before = world.observe()
    world.step()
    assert (before["x"], before["joints"], before["scan"].tolist()) == (0, [0, 0], [0, 0])
    assert world.observe()["joints"] == [1, 0]


def test_state_that_cannot_be_copied_is_observed() -> None:
    shared = Shared()
    shared.state["lock"] = (line for line in "ab")
    before = UserWorld(shared, "shared").observe()
    shared.step()
    assert before["x"] == 0 and before["lock"] is shared.state["lock"]


class Painted(Shared):
    def picture(self) -> Any:
        return np.full((2, 3, 4), self.state["x"], np.uint8)


def test_picture_of_a_world_is_no_tool_unless_it_is_named() -> None:
    world = UserWorld(Painted(), "painted")
    assert world.picture().shape == (2, 3, 4) and "picture" not in world.bindings
    assert UserWorld(Shared(), "shared").picture() is None
    tool = UserWorld(Painted(), "painted", tools=["picture"])
    assert tool.picture() is None and "picture" in tool.bindings


@pytest.mark.parametrize(
    ("picture", "shape"),
    [
        (np.zeros((4, 5, 3), np.uint8), (4, 5)),
        (np.zeros((4, 5, 4), np.uint8), (4, 5)),
        (np.zeros((4, 5), np.uint8), (4, 5)),
        (np.zeros((2000, 100, 3), np.uint8), (500, 25)),
    ],
)
def test_array_becomes_a_picture_file_of_limited_size(picture: Any, shape: tuple[int, int]) -> None:
    file = encode_picture(picture)
    assert struct.unpack(">II", file[16:24]) == shape[::-1]
    assert encode_picture(file) is file


@pytest.mark.parametrize("picture", [None, "text", b"GIF89a", np.zeros((4, 5, 3)), np.zeros((0, 5, 3), np.uint8), [1]])
def test_value_that_is_not_a_picture_is_refused(picture: Any) -> None:
    with pytest.raises(ValueError, match="it returned"):
        encode_picture(picture)


def test_failing_picture_is_reported_once() -> None:
    class Broken(Painted):
        def picture(self) -> Any:
            raise SystemExit("no display")

    lines: list[str] = []
    for world, result in ((Painted(), True), (Broken(), False), (Shared(), False)):
        env = PacedEnvironment("own", UserWorld(world, "own"))
        state, config = SimpleNamespace(launched=True), SimpleNamespace(env="own.py", period_ns=10**9)
        loop: Any = SimpleNamespace(env=env, state=state, config=config)
        pictures = WorldPictures(lines.append)
        file = pictures.newest(loop)
        assert (file is not None and file.startswith(b"\x89PNG")) == result
        pictures.newest(loop)
        env.close()
    assert lines == ["The page shows no pictures, because picture() failed (SystemExit: no display)."]


def test_text_has_no_nan_and_names_arrays() -> None:
    data = {"ahead": np.float32("nan"), "on": np.bool_(True), "behind": float("nan"), "joints": np.zeros(3)}
    assert observation_text(data) == "ahead none on true behind none"
    agent = tools_only_agent(
        "a", Tools([{"name": "go", "parameters": {"type": "object", "properties": {}}}]), "go", Fallback(None)
    )
    (left_out,) = notices(agent, Observation(0, 0, 0, data))
    assert left_out.startswith("The observation text for the model does not have these arrays: joints. Write ")
    (empty,) = notices(agent, Observation(0, 0, 0, {"joints": np.zeros(3)}))
    assert "The text is empty without them." in empty
    assert notices(agent, Observation(0, 0, 0, {"ahead": 1.0})) == notices(agent, None) == []


def test_third_signal_waits_for_no_world() -> None:
    free, thread = threading.Event(), WorldThread("slow")
    thread.create_world(object)
    thread._jobs.put(_Job(free.wait))
    thread.must_hurry = lambda: True
    thread.close()
    free.set()
    assert "did not close" in thread.close_error
