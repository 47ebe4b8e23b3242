"""Generate training examples: in randomly disturbed episodes, an expert labels each observation with a call."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.envs.judge import Task
from rtcontrol.envs.skill import Demonstration, Policy, Skill, StepAccumulator
from rtcontrol.models.call import Call

if TYPE_CHECKING:  # do not import torch at run time
    from rtcontrol.models.train.scratch import ModelShape
    from rtcontrol.models.train.trainer import TrainConfig


GoalT = TypeVar("GoalT", bound=Task)


@dataclass(frozen=True, kw_only=True)
class CurriculumOptions:
    """Options for random disturbances of training episodes.

    In each tick, a burst of 1 to `burst` random calls starts with a probability that each episode samples from `noise`.
    Other probabilities per tick are `scatter` (a jump to a random state), `switch` (a new goal) and `rephrase` (another
    phrasing of the goal). `plain` is the share of canonical instructions, `spoken` the share of sentences written by
    people among the other instructions. The duration of an episode is between the two values of `episode_s`. A call
    acts up to `max_delay_steps` physics steps late. The seeds of episodes are below `seeds`.
    """

    noise: tuple[float, ...]
    burst: int
    switch: float
    episode_s: tuple[float, float]
    max_delay_steps: int
    scatter: float = 0.15
    rephrase: float = 0.25
    plain: float = 0.0
    spoken: float = 0.0
    hz: float = 16
    seeds: int = 1000


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The training plan for the model of a bundled world.

    `demonstrations` yields training rows and has the arguments (seed, parallel, policy=, beta=) of `demonstrate`. If
    `early` is set, training starts with its rows. The vocabulary contains the words of observations (`observed`) and of
    the agent's sentences; `common_words`, `number_words` and `schema_phrases` add common English words, number words
    and phrases of tool schemas.
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
    """A world for training, in endless episodes with random instructions and disturbances (`CurriculumOptions`).

    A subclass sets `_world` to a Simulation before it calls this constructor. `step_s` is the physics step in seconds.
    """

    _world: Any
    _goal: GoalT
    _instruction: str
    _noise: float
    _max_delay_steps: int
    _burst_left: int
    _remaining_ticks: float

    def __init__(self, rng: random.Random, options: CurriculumOptions, skill: Skill, step_s: float) -> None:
        self.rng = rng
        self._options, self._skill = options, skill
        self._accumulator = StepAccumulator(step_s)
        self._period_ns = round(1e9 / options.hz)
        self._start_episode()
        # Shorten the first episode by a random factor, so that the worlds of a batch do not all restart together.
        self._remaining_ticks *= rng.random()

    def demonstration(self) -> Demonstration:
        """Return the instruction and observation of the current tick, with the expert's call for them."""
        text = self._skill.observe(self._observe())
        # The expert reads only the observation text, so that its call depends only on what the model also reads.
        call = self._skill.expert(self._skill.parse_observation(text), self._goal)
        return Demonstration(self._instruction, text, call, self._goal)

    def run_tick(self, call: Call) -> None:
        """Run one tick with this call, or with a random call during a burst; a random delay may precede the call."""
        rng = self.rng
        if self._burst_left == 0 and rng.random() < self._noise:
            self._burst_left = rng.randint(1, self._options.burst)
        if self._burst_left:
            self._burst_left -= 1
            call = self._skill.any_call(rng)
        delay_steps = rng.randint(0, self._max_delay_steps)
        self._accumulator.run(self._period_ns, self._step, partial(self._execute, call), delay_steps)
        self._finish_tick()

    def _start_episode(self) -> None:
        rng, options = self.rng, self._options
        self._restart(rng.randrange(options.seeds))
        self._accumulator.reset()
        self._noise = rng.choice(options.noise)
        self._max_delay_steps = rng.choice((0, options.max_delay_steps))
        self._burst_left = 0
        self._remaining_ticks = rng.uniform(*options.episode_s) * options.hz
        self._set_goal(self._sample_goal())

    def _set_goal(self, goal: GoalT) -> None:
        self._goal = goal
        self._instruction = self._sample_instruction()

    def _sample_instruction(self) -> str:
        rng, options = self.rng, self._options
        if options.plain and rng.random() < options.plain:
            return self._goal.text()
        return (self._spoken if options.spoken and rng.random() < options.spoken else self._sentence)(self._goal)

    def _finish_tick(self) -> None:
        rng, options = self.rng, self._options
        self._remaining_ticks -= 1
        if self._has_ended() or self._remaining_ticks <= 0:
            self._start_episode()
            return
        chance = rng.random()
        if chance < options.switch:
            self._set_goal(self._sample_goal())
        elif chance < options.switch + options.rephrase:
            self._instruction = self._sample_instruction()
        if rng.random() < options.scatter:
            self._randomise_state()

    # -- the world ----------------------------------------------------------------------------------------------------

    def _restart(self, seed: int) -> None:
        self._world.reset(seed)

    def _observe(self) -> dict[str, object]:
        return dict(self._world.observe())

    def _execute(self, call: Call) -> None:
        self._world.bindings[call.name](**call.arguments)

    def _step(self) -> None:
        self._world.step()

    def _has_ended(self) -> bool:
        return self._world.outcome() is not None

    def _randomise_state(self) -> None:
        """Set a part of the world's state at random; does nothing if the state cannot be set from outside."""

    @abstractmethod
    def _sample_goal(self) -> GoalT: ...

    @abstractmethod
    def _sentence(self, goal: GoalT) -> str:
        """Return a training instruction for a goal."""

    @abstractmethod
    def _spoken(self, goal: GoalT) -> str:
        """Return an instruction for a goal, written by people who did not know the training sentences."""


class PhrasedCurriculum(DisturbedCurriculum[GoalT]):
    """The curriculum of a bundled world, with instructions from its agent's `phrasings`."""

    phrasings: Phrasings[Any, Any]

    def __init__(self, rng: random.Random, options: CurriculumOptions, skill: Skill, world: Any) -> None:
        self._world = world
        super().__init__(rng, options, skill, world.step_s)

    @classmethod
    def keep_probability(cls, row: Demonstration) -> float:
        """Return the probability that training uses this row; it may be below 1 for rows with frequent calls."""
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
    """Yield training rows of `parallel` worlds, tick by tick and without end; equal arguments give equal rows.

    Without `policy`, the expert's calls act in the worlds. With `policy`, the policy's calls act, but in each tick of
    each world the expert's call replaces them with probability `beta`. The label of a row is always the expert's call.
    Episode seeds are below `options.seeds`.
    """
    worlds = [curriculum(random.Random(f"{seed} {index}"), options) for index in range(parallel)]
    rng = random.Random(f"{seed} kept")
    while True:
        rows = [world.demonstration() for world in worlds]
        calls = _calls_to_execute(worlds, rows, policy, beta)
        for world, row in zip(worlds, rows, strict=True):
            # Keep all rows of a policy, because its forward passes cost more than training on the rows.
            if policy is not None or rng.random() < world.keep_probability(row):
                yield row
        for world, call in zip(worlds, calls, strict=True):
            world.run_tick(call)


def _calls_to_execute(
    worlds: Sequence[PhrasedCurriculum[Any]], rows: Sequence[Demonstration], policy: Policy | None, beta: float
) -> list[Call]:
    experts = [row.call for row in rows]
    if policy is None:
        return experts
    learners = policy([(row.instruction, row.observation) for row in rows])
    triples = zip(worlds, experts, learners, strict=True)
    return [expert if world.rng.random() < beta else learner for world, expert, learner in triples]
