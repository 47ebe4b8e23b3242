"""The registry of the worlds that are part of rtcontrol."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from rtcontrol.agents.agent import Agent
from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.envs.base import Environment
from rtcontrol.envs.curriculum import TrainingPlan
from rtcontrol.envs.skill import Skill
from rtcontrol.models.errors import UserError


@dataclass(frozen=True, slots=True)
class BundledWorld:
    """A world that is part of rtcontrol, in the folders `envs/NAME` and `agents/NAME`. `agent` is the name of its
    default agent, which has a bundled model. `needs` is a pair (extra packages, install command), for the message
    when an import fails.

    Attributes of its modules are imported on first use: `SKILL` of envs/NAME/skill.py, `PLAN` of
    envs/NAME/curriculum.py, `agent` of agents/NAME/tools.py and `PHRASINGS` of agents/NAME/goals.py.
    """

    name: str
    description: str
    agent: str
    needs: tuple[str, str] = ("", "")

    def make(self, goal: str | None = None) -> Environment:
        """Return a new environment, which is not started yet. Raises UserError if an extra package is missing."""
        from rtcontrol.envs.paced import PacedEnvironment

        try:
            simulation = self.skill().make
        except ImportError as error:
            needed, install = self.needs
            if not needed:
                raise
            problem = f"The world {self.name} needs {needed}, which cannot be imported ({error})."
            raise UserError(problem, f"Install it with `{install}`.") from error
        return PacedEnvironment.from_factory(self.name, lambda: simulation(goal))

    def skill(self) -> Skill:
        """Return the interface of this world for training and evaluation, with its goals and scripted expert."""
        return cast("Skill", self._part("envs", "skill").SKILL)

    def plan(self) -> TrainingPlan:
        """Return the training plan for the model of this world."""
        return cast("TrainingPlan", self._part("envs", "curriculum").PLAN)

    def controller(self) -> Agent:
        return cast("Agent", self._part("agents", "tools").agent)

    def phrasings(self) -> Phrasings[Any, Any]:
        """Return the phrasings of instructions for the default agent."""
        return cast("Phrasings[Any, Any]", self._part("agents", "goals").PHRASINGS)

    def _part(self, floor: str, module: str) -> Any:
        return import_module(f"rtcontrol.{floor}.{self.name}.{module}")


WORLDS = {
    world.name: world
    for world in (
        BundledWorld(
            "lander",
            "Gymnasium's continuous LunarLander, 50 physics steps a second; land, or hover, as instructed.",
            agent="lander",
            needs=("Gymnasium with Box2D", 'pip install "gymnasium[box2d]"'),
        ),
        BundledWorld(
            "paddle",
            "A paddle game, 60 physics steps a second, against a scripted person; return, miss, aim, stay or mirror.",
            agent="paddle",
        ),
        BundledWorld(
            "road",
            "A road with lanes, traffic and lights along one coordinate; drive, change lane, follow, turn, overtake, "
            "stop.",
            agent="driver",
        ),
    )
}
BY_AGENT = {world.agent: world for world in sorted(WORLDS.values(), key=lambda world: world.agent)}
AGENTS = tuple(world.agent for world in WORLDS.values())


def skill(name: str) -> Skill | None:
    """Return the interface for training and evaluation of the world called `name`; None if it is not bundled."""
    world = WORLDS.get(name)
    return None if world is None else world.skill()
