"""Demonstrations for training, from disturbed episodes of an expert, or of a model with the expert's labels."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.envs.judge import Task
from rtcontrol.envs.skill import Demonstration, Policy, Skill, StepCarry
from rtcontrol.models.call import Call

if TYPE_CHECKING:  # they import torch
    from rtcontrol.models.train.scratch import ModelShape
    from rtcontrol.models.train.trainer import TrainConfig


GoalT = TypeVar("GoalT", bound=Task)


@dataclass(frozen=True, kw_only=True)
class CurriculumOptions:
    """Options for disturbing episodes.

    `noise` has probabilities per tick, one of which is chosen per episode, of a burst of 1 to `burst` random calls.
    `scatter` is the probability per tick that the world is put into another state, `switch` of a new goal, `rephrase`
    of other words for the same goal. `plain` is the share of instructions in canonical words, in addition to those
    among training sentences; `spoken` is the share of sentences by people among the others. An episode lasts `lasts_s`
    seconds; a call acts up to `late_steps` physics steps late; the worlds' seeds are below `seeds`.
    """

    noise: tuple[float, ...]
    burst: int
    switch: float
    lasts_s: tuple[float, float]
    late_steps: int
    scatter: float = 0.15
    rephrase: float = 0.25
    plain: float = 0.0
    spoken: float = 0.0
    hz: float = 16
    seeds: int = 1000


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The training plan for the model of a bundled world.

    `demonstrations` takes (seed, parallel, policy=, beta=), as `demonstrate` does; `early` replaces it at first, if
    given. `observed` are the words of observations; the vocabulary also has the words of the agent's sentences and, if
    set, `common_words`, `number_words` and whole `schema_phrases`.
    """

    demonstrations: Callable[..., Iterator[Demonstration]]
    observed: str
    config: TrainConfig
    shape: ModelShape
    chunk: int = 16_384
    early: Callable[..., Iterator[Demonstration]] | None = None
    common_words: bool = False
    number_words: bool = False
    schema_phrases: bool = False


class DisturbedCurriculum(ABC, Generic[GoalT]):
    """A world that gets random instructions, is disturbed, and restarts without end. Times are in ticks, `step_s` is
    the physics step.

    The subclass sets `_world`, a Simulation, before it calls this constructor.
    """

    _world: Any
    _goal: GoalT
    _instruction: str
    _noise: float
    _late: int
    _burst: int
    _left: float

    def __init__(self, rng: random.Random, options: CurriculumOptions, skill: Skill, step_s: float) -> None:
        self.rng = rng
        self._options, self._skill = options, skill
        self._carry = StepCarry(step_s)
        self._period_ns = round(1e9 / options.hz)
        self._begin()
        # Staggered ends, so that the worlds of one batch are at different places from the start.
        self._left *= rng.random()

    def look(self) -> Demonstration:
        """Return a demonstration of the current tick: the observation with the expert's call."""
        text = self._skill.observe(self._observe())
        # The label depends on the text alone, so that the learner can see everything it needs.
        call = self._skill.expert(self._skill.read_back(text), self._goal)
        return Demonstration(self._instruction, text, call, self._goal)

    def act(self, call: Call) -> None:
        """Run one tick under the call, or under a random one, at once or some physics steps late."""
        rng = self.rng
        if self._burst == 0 and rng.random() < self._noise:
            self._burst = rng.randint(1, self._options.burst)
        if self._burst:
            self._burst -= 1
            call = self._skill.any_call(rng)
        self._carry.run(self._period_ns, self._step, partial(self._obey, call), rng.randint(0, self._late))
        self._after()

    def _begin(self) -> None:
        rng, options = self.rng, self._options
        self._restart(rng.randrange(options.seeds))
        self._carry.reset()
        self._noise = rng.choice(options.noise)
        self._late = rng.choice((0, options.late_steps))
        self._burst = 0
        self._left = rng.uniform(*options.lasts_s) * options.hz
        self._aim(self._sample_goal())

    def _aim(self, goal: GoalT) -> None:
        self._goal = goal
        self._instruction = self._say()

    def _say(self) -> str:
        rng, options = self.rng, self._options
        if options.plain and rng.random() < options.plain:
            return self._goal.text()
        return (self._spoken if options.spoken and rng.random() < options.spoken else self._sentence)(self._goal)

    def _after(self) -> None:
        rng, options = self.rng, self._options
        self._left -= 1
        if self._over() or self._left <= 0:
            self._begin()
            return
        chance = rng.random()
        if chance < options.switch:
            self._aim(self._sample_goal())
        elif chance < options.switch + options.rephrase:
            self._instruction = self._say()
        if rng.random() < options.scatter:
            self._scatter()

    # -- the world ----------------------------------------------------------------------------------------------------

    def _restart(self, seed: int) -> None:
        self._world.reset(seed)

    def _observe(self) -> dict[str, object]:
        return dict(self._world.observe())

    def _obey(self, call: Call) -> None:
        self._world.bindings[call.name](**call.arguments)

    def _step(self) -> None:
        self._world.step()

    def _over(self) -> bool:
        """Return whether the episode has ended."""
        return self._world.outcome() is not None

    def _scatter(self) -> None:
        """Change a part of the world's state, if that is possible from outside."""

    @abstractmethod
    def _sample_goal(self) -> GoalT: ...

    @abstractmethod
    def _sentence(self, goal: GoalT) -> str:
        """Return a training instruction for a goal."""

    @abstractmethod
    def _spoken(self, goal: GoalT) -> str:
        """Return an instruction for a goal, written by people who never saw the training sentences."""


class PhrasedCurriculum(DisturbedCurriculum[GoalT]):
    """The curriculum of a bundled world, with instructions from its agent's `phrasings`."""

    phrasings: Phrasings[Any, Any]

    def __init__(self, rng: random.Random, options: CurriculumOptions, skill: Skill, world: Any) -> None:
        self._world = world
        super().__init__(rng, options, skill, world.step_s)

    @classmethod
    def kept(cls, row: Demonstration) -> float:
        """Return the probability with which a row like this one is used."""
        return 1.0

    def _sample_goal(self) -> GoalT:
        goal: GoalT = self.phrasings.sample_goal(self.rng)
        return goal

    def _sentence(self, goal: GoalT) -> str:
        return self.phrasings.training_instruction(self.rng, goal)

    def _spoken(self, goal: GoalT) -> str:
        return self.phrasings.spoken_instruction(self.rng, goal)


def demonstrate(
    curriculum: Callable[..., PhrasedCurriculum[Any]],
    options: CurriculumOptions,
    seed: int,
    parallel: int = 64,
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Demonstration]:
    """Yield endless rows of `parallel` worlds, tick by tick, the same for the same arguments.

    Without `policy` the expert acts. With one the model acts, and each world's tick is the expert's with probability
    `beta`; the label is always the expert's. Seeds from `options.seeds` upwards are never used.
    """
    worlds = [curriculum(random.Random(f"{seed} {index}"), options) for index in range(parallel)]
    rng = random.Random(f"{seed} kept")
    while True:
        rows = [world.look() for world in worlds]
        calls = _chosen(worlds, rows, policy, beta)
        for world, row in zip(worlds, rows, strict=True):
            # Keep all rows that a policy decided, since its passes cost more than the learning.
            if policy is not None or rng.random() < world.kept(row):
                yield row
        for world, call in zip(worlds, calls, strict=True):
            world.act(call)


def _chosen(
    worlds: Sequence[PhrasedCurriculum[Any]], rows: Sequence[Demonstration], policy: Policy | None, beta: float
) -> list[Call]:
    experts = [row.call for row in rows]
    if policy is None:
        return experts
    learners = policy([(row.instruction, row.observation) for row in rows])
    each = zip(worlds, experts, learners, strict=True)
    return [expert if world.rng.random() < beta else learner for world, expert, learner in each]
