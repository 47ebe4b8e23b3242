"""A bundled world is one line: all that others take of it is there, under its own names."""

from __future__ import annotations

import pytest

from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import zoo


def test_a_model_is_bundled_of_each_worlds_agent() -> None:
    for world in registry.WORLDS.values():
        assert world.agent in zoo() and world.controller().model == world.agent


@pytest.mark.parametrize("name", registry.WORLDS)
def test_what_follows_from_a_worlds_line_is_its_own(name: str) -> None:
    world = registry.WORLDS[name]
    phrasings, skill, agent = world.phrasings(), world.skill(), world.controller()
    assert (world.name, skill.name, phrasings.agent, agent.name) == (name, name, name, world.agent)
    agent.tools.validate(skill.still)
    assert skill.goals and all(skill.recognise(goal.text()) == goal for goal in skill.goals)
    shown = next(world.plan().demonstrations(0, 2))
    assert phrasings.meant(shown.instruction) == shown.goal
