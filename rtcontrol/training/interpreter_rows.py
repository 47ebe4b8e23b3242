"""Rows that teach a model to map what people say to one of an agent's goals, or to nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rtcontrol.agents import Agent, Goals
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.agents.phrasing import Phrasings, casual
from rtcontrol.agents.spoken import bare
from rtcontrol.envs import registry
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.probes import COMMON
from rtcontrol.training.out_of_scope import Nonsense

# Of the sentences that ask for a goal: in canonical words, and from the templates; the rest is what people say.
CANONICAL, TEMPLATES = 0.05, 0.25
NONSENSE = 0.15  # of all rows
BEYOND = 0.15  # of the nonsense: a number that no goal has


@dataclass(frozen=True)
class Taught:
    """An agent whose goals are to be understood: what it can be told is `told`."""

    name: str
    told: Phrasings[Any, Any] | Goals

    @cached_property
    def tools(self) -> GoalTools:
        return self.told.goal_tools(self.name) if isinstance(self.told, Goals) else self.told.goal_tools

    @cached_property
    def nonsense(self) -> Nonsense:
        """What asks for nothing here; what is kept for judging never."""
        if isinstance(self.told, Goals):
            words = frozenset(re.findall(r"[a-z]+", self.told.texts().lower()))
            return Nonsense("", self.told.recognise, words - COMMON)
        return Nonsense(self.name, self.told.recognise)

    def row(self, rng: random.Random, nonsense: float) -> tuple[str, Any]:
        """A sentence, and the goal that it asks for, None where it asks for none."""
        if rng.random() < nonsense:
            far = self.told.beyond(rng) if rng.random() < BEYOND else None
            return (self.nonsense(rng) if far is None else far), None
        if isinstance(self.told, Goals):
            goal: Any = self.told.sample(rng)
            said = self.told.sentence(rng, goal)
            return (said if rng.random() < CANONICAL else casual(rng, said, self._words)), goal
        goal, how = self.told.sample_goal(rng), rng.random()
        if how < CANONICAL:
            return goal.text(), goal
        by_template = how < CANONICAL + TEMPLATES
        return (self.told.training_instruction if by_template else self.told.spoken_instruction)(rng, goal), goal

    @cached_property
    def _words(self) -> frozenset[str]:
        assert isinstance(self.told, Goals)
        return frozenset(re.findall(r"[a-z]+", self.told.texts().lower()))

    @cached_property
    def judged(self) -> frozenset[str]:
        """Sentences that are kept for judging."""
        if isinstance(self.told, Goals):
            return frozenset(bare(said) for goal in self.told.spread(1_000) for said in self.told.held_out(goal))
        told = self.told
        return frozenset(bare(said) for kind in told.kinds for made in told.lists().values() for said, _ in made(kind))


def taught(agent: Agent) -> Taught:
    """What the agent can be told. UserError where it has no goals."""
    if agent.goals is not None:
        return Taught(agent.name, agent.goals)
    world = registry.by_agent().get(agent.name)
    if world is None:
        raise UserError(
            f"The agent {agent.name} has no goals: nothing that is said could be mapped to one.",
            "Write `goals = {...}` in its file (docs/your-own-game.md).",
        )
    return Taught(world.name, world.phrasings())


def rows(agents: Sequence[Taught], count: int, seed: int = 0, nonsense: float = NONSENSE) -> Iterator[DataRow]:
    """So many rows, of each agent in turn: what is said, the tools of its goals, and the goal's call (None: none)."""
    rng = random.Random(f"{seed}/interpreter")
    for number in range(count):
        agent = agents[number % len(agents)]
        while True:
            said, goal = agent.row(rng, nonsense)
            if bare(said) not in agent.judged:
                break
        call = None if goal is None else agent.tools.call(goal)
        told = f"interpreter:{agent.name}"
        yield DataRow(f"{told}:{number}", f"{told}:{number}", told, said, "", agent.tools.definitions, (), call)
