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
class InterpretedAgent:
    """An agent whose goals are to be understood: what it can be told is its `speech`."""

    name: str
    speech: Phrasings[Any, Any] | Goals

    @cached_property
    def tools(self) -> GoalTools:
        return self.speech.goal_tools(self.name) if isinstance(self.speech, Goals) else self.speech.goal_tools

    @cached_property
    def nonsense(self) -> Nonsense:
        """What asks for nothing here; what is kept for judging never."""
        if isinstance(self.speech, Goals):
            words = frozenset(re.findall(r"[a-z]+", self.speech.texts().lower()))
            return Nonsense("", self.speech.recognise, words - COMMON)
        return Nonsense(self.name, self.speech.recognise)

    def row(self, rng: random.Random, nonsense: float) -> tuple[str, Any]:
        """A sentence, and the goal that it asks for, None where it asks for none."""
        if rng.random() < nonsense:
            far = self.speech.beyond(rng) if rng.random() < BEYOND else None
            return (self.nonsense(rng) if far is None else far), None
        if isinstance(self.speech, Goals):
            goal: Any = self.speech.sample(rng)
            said = self.speech.sentence(rng, goal)
            return (said if rng.random() < CANONICAL else casual(rng, said, self._words)), goal
        goal, how = self.speech.sample_goal(rng), rng.random()
        if how < CANONICAL:
            return goal.text(), goal
        by_template = how < CANONICAL + TEMPLATES
        return (self.speech.training_instruction if by_template else self.speech.spoken_instruction)(rng, goal), goal

    @cached_property
    def _words(self) -> frozenset[str]:
        assert isinstance(self.speech, Goals)
        return frozenset(re.findall(r"[a-z]+", self.speech.texts().lower()))

    @cached_property
    def judged(self) -> frozenset[str]:
        """Sentences that are kept for judging."""
        if isinstance(self.speech, Goals):
            return frozenset(bare(said) for goal in self.speech.spread(1_000) for said in self.speech.held_out(goal))
        speech = self.speech
        return frozenset(
            bare(said) for kind in speech.kinds for made in speech.lists().values() for said, _ in made(kind)
        )


def taught(agent: Agent) -> InterpretedAgent:
    """What the agent can be told. UserError where it has no goals."""
    if agent.goals is not None:
        return InterpretedAgent(agent.name, agent.goals)
    world = registry.by_agent().get(agent.name)
    if world is None:
        raise UserError(
            f"The agent {agent.name} has no goals: nothing that is said could be mapped to one.",
            "Write `goals = {...}` in its file (docs/your-own-game.md).",
        )
    return InterpretedAgent(world.name, world.phrasings())


def rows(
    agents: Sequence[InterpretedAgent], count: int, seed: int = 0, nonsense: float = NONSENSE
) -> Iterator[DataRow]:
    """So many, of each agent in turn: what is said, the tools of its goals, and the goal's call (None: none)."""
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
