"""The bundled worlds: one line each, from which all else about them follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from rtcontrol.agents.agent import Agent
from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.envs.base import Environment
from rtcontrol.envs.curriculum import TrainingPlan
from rtcontrol.envs.skill import Skill
from rtcontrol.models.errors import UserError

# A world's two folders are `envs/NAME`, whose `WORLD` says what it is, and `agents/NAME`.
WORLDS = ("lander", "paddle", "road")


@dataclass(frozen=True, slots=True)
class BundledWorld:
    """A world of `envs/NAME` and `agents/NAME`: one sentence on it, the name of the agent that acts in it by default,
    whether there are pictures of it, and whether a model that was `trained` in it is bundled, and measured in
    docs/benchmarks: the others fly by their expert. What it `needs` beside the core's packages, and how that is
    installed, stands in the error where it cannot be imported.

    Nothing of it is imported before it is wanted: `SKILL` of skill.py, `PLAN` of curriculum.py and, where it has
    pictures, `painter()` of picture.py; of the agent `agent` of tools.py and `PHRASINGS` of phrasings.py.
    """

    name: str
    description: str
    agent: str
    pictures: bool = False
    trained: bool = True
    needs: tuple[str, str] = ("", "")

    def make(self, goal: str | None = None) -> Environment:
        """The environment, not yet started. UserError where what it needs is missing."""
        from rtcontrol.envs.paced import PacedEnvironment

        try:
            simulation = self.skill().make
        except ImportError as error:
            needed, install = self.needs
            if not needed:
                raise
            what = f"The {self.name} needs {needed}, which cannot be imported ({error})."
            raise UserError(what, f"Install it with `{install}`.") from error
        return PacedEnvironment.of(self.name, lambda: simulation(goal))

    def skill(self) -> Skill:
        """Its goals, its scripted expert, and what it is scored by."""
        found: Skill = self._part("envs", "skill").SKILL
        return found

    def plan(self) -> TrainingPlan:
        """How its own model is trained."""
        found: TrainingPlan = self._part("envs", "curriculum").PLAN
        return found

    def painter(self) -> Callable[..., Any] | None:
        """What draws it, as `rtcontrol.envs.pictures.Painter`; None where it has no picture."""
        return self._part("envs", "picture").painter() if self.pictures else None

    def controller(self) -> Agent:
        """The agent that acts in it."""
        found: Agent = self._part("agents", "tools").agent
        return found

    def phrasings(self) -> Phrasings[Any, Any]:
        """The ways to tell that agent what to do."""
        found: Phrasings[Any, Any] = self._part("agents", "phrasings").PHRASINGS
        return found

    def _part(self, floor: str, module: str) -> Any:
        return import_module(f"rtcontrol.{floor}.{self.name}.{module}")


@cache
def known() -> dict[str, BundledWorld]:
    """All worlds by name, in order."""
    return {name: import_module(f"rtcontrol.envs.{name}").WORLD for name in sorted(WORLDS)}


@cache
def by_agent() -> dict[str, BundledWorld]:
    """The same by the names of their agents, in order."""
    return {world.agent: world for world in sorted(known().values(), key=lambda world: world.agent)}


@cache
def trained() -> dict[str, BundledWorld]:
    """The worlds of which a model is bundled, by name, in order."""
    return {name: world for name, world in known().items() if world.trained}


def agent_names() -> tuple[str, ...]:
    """The names of the agents of which a model is bundled, in the order of the worlds."""
    return tuple(trained()[name].agent for name in WORLDS if name in trained())


def skill(name: str) -> Skill | None:
    """The skill of the environment called `name`; None for one that is not bundled."""
    world = known().get(name)
    return None if world is None else world.skill()


def make(name: str, **options: Any) -> Environment:
    """The environment called `name`, not yet started. UserError for an unknown name or option."""
    world = known().get(name)
    if world is None:
        raise UserError(f"There is no environment called {name!r}.", f"Known ones: {', '.join(known())}.")
    accepted = tuple(inspect.signature(world.make).parameters)
    for option in options:
        if option not in accepted:
            raise UserError(f"The environment {name} has no option {option!r}.", f"It takes: {', '.join(accepted)}.")
    return world.make(**options)
