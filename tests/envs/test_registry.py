"""A bundled world is one line: all that others take of it is there, under its own names."""

from __future__ import annotations

import pytest

from rtcontrol.envs import registry
from rtcontrol.envs.pictures import painter
from rtcontrol.models.checkpoint.checkpoint import zoo


def test_the_agents_are_those_of_the_worlds() -> None:
    assert {world.agent for world in registry.known().values()} == set(registry.by_agent())


def test_a_model_is_bundled_of_the_worlds_that_say_so_and_of_no_other() -> None:
    for name, world in registry.known().items():
        assert world.trained == (world.agent in zoo()) == (name in registry.trained())
        assert world.controller().model == (world.agent if world.trained else "expert")
    assert set(registry.agent_names()) == {world.agent for world in registry.trained().values()}


@pytest.mark.parametrize("name", registry.WORLDS)
def test_what_follows_from_a_worlds_line_is_its_own(name: str) -> None:
    world = registry.known()[name]
    phrasings, skill, agent = world.phrasings(), world.skill(), world.controller()
    assert (world.name, skill.name, phrasings.agent, agent.name) == (name, name, name, world.agent)
    agent.tools.validate(skill.still)
    assert skill.goals and all(skill.recognise(goal.text()) == goal for goal in skill.goals)
    shown = next(world.plan().demonstrations(0, 2))
    assert phrasings.meant(shown.instruction) == shown.goal
    assert (painter(name) is not None) == world.pictures
