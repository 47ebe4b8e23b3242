"""Tests of a user's world as a simulation: what others read must not change with its next step."""

from __future__ import annotations

from typing import Any

import numpy as np

from rtcontrol.agents import Fallback, Tools
from rtcontrol.envs.base import Observation
from rtcontrol.envs.user_world import UserWorld
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


def test_text_has_no_nan_and_names_arrays() -> None:
    data = {"ahead": np.float32("nan"), "on": np.bool_(True), "behind": float("nan"), "joints": np.zeros(3)}
    assert observation_text(data) == "ahead none on true behind none"
    agent = tools_only_agent(
        "a", Tools([{"name": "go", "parameters": {"type": "object", "properties": {}}}]), "go", Fallback(None)
    )
    (left_out,) = notices(agent, Observation(0, 0, 0, data))
    assert left_out.startswith("Arrays are left out of the text for the model: joints. Write ")
    (empty,) = notices(agent, Observation(0, 0, 0, {"joints": np.zeros(3)}))
    assert "Nothing is left for the model to read." in empty
    assert notices(agent, Observation(0, 0, 0, {"ahead": 1.0})) == notices(agent, None) == []
