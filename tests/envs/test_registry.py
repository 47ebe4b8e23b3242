"""Tests of the registry of bundled worlds: each entry is complete and refers to its own world."""

from __future__ import annotations

import pytest

from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import zoo


def test_agent_of_each_world_has_bundled_model() -> None:
    for world in registry.WORLDS.values():
        assert world.agent in zoo() and world.controller().model == world.agent


@pytest.mark.parametrize("name", registry.WORLDS)
def test_registry_entry_refers_to_its_own_world(name: str) -> None:
    world = registry.WORLDS[name]
    phrasings, skill, agent = world.phrasings(), world.skill(), world.controller()
    assert (world.name, skill.name, phrasings.agent, agent.name) == (name, name, name, world.agent)
    agent.tools.validate(skill.noop_call)
    assert skill.goals and all(skill.recognise(goal.text()) == goal for goal in skill.goals)
    shown = next(world.plan().demonstrations(0, 2))
    assert phrasings.goal_of(shown.instruction) == shown.goal
