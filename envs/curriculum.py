"""One world that is told, disturbed and restarted for ever: what the lessons of all skills with a told goal share."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rtcontrol.agents.phrasing import Phrasings
from rtcontrol.envs.skill import Demonstration, Skill, StepCarry, Task
from rtcontrol.models.call import Call

if TYPE_CHECKING:  # with them comes torch
    from rtcontrol.models.train.scratch import ModelShape
    from rtcontrol.models.train.trainer import TrainConfig


GoalT = TypeVar("GoalT", bound=Task)


@dataclass(frozen=True, kw_only=True)
class CurriculumOptions:
    """How a world is disturbed.

    `noise` are per-tick probabilities, one drawn an episode, that a burst of 1 to `burst` random calls begins.
    `scatter` is the chance, a tick, that the world finds itself elsewhere; `switch` that a new goal is asked for;
    `rephrase` that the same one is said in other words. `plain` is the share of instructions in canonical words,
    beyond those that training sentences have anyway; of the others `spoken` is the share of what people say. An episode
    lasts `lasts_s` seconds; a call acts up to `late_steps` physics steps late; `seeds` is below what the worlds' seeds
    are drawn.
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
    """How a bundled world's own model is trained: `demonstrations` takes (seed, parallel, policy=, beta=); `early`,
    where given, stands in for it in the beginning. `observed` are the words of its observations; beside those of its
    sentences the model knows `common_words`, the `number_words` and whole `schema_phrases` where that is wished."""

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
    """A `learning.Lesson`; times are in ticks. `step_s` is the world's physics step. The subclass has made its world
    before this begins."""

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
        skill = self._skill
        text = skill.observe(self._observe())
        # The label follows from the text alone: nothing is asked of the learner that it cannot see.
        return Demonstration(self._instruction, text, skill.expert(skill.read_back(text), self._goal), self._goal)

    def act(self, call: Call) -> None:
        """One tick: the call or a random one, at once or some physics steps late."""
        rng = self.rng
        if self._burst == 0 and rng.random() < self._noise:
            self._burst = rng.randint(1, self._options.burst)
        if self._burst:
            self._burst -= 1
            call = self._skill.any_call(rng)
        late = rng.randint(0, self._late)
        steps = self._carry.steps(self._period_ns)
        for index in range(max(steps, 1)):
            if index == min(late, max(steps - 1, 0)):
                self._obey(call)
            if index < steps:
                self._step()
        self._after()

    def _begin(self) -> None:
        rng, options = self.rng, self._options
        self._restart(rng.randrange(options.seeds))
        self._carry.reset()
        self._noise = rng.choice(options.noise)
        self._late = rng.choice((0, options.late_steps))
        self._burst = 0
        self._left = rng.uniform(*options.lasts_s) * options.hz
        self._aim()

    def _aim(self) -> None:
        self._goal = self._sample_goal()
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
            self._aim()
        elif chance < options.switch + options.rephrase:
            self._instruction = self._say()
        if rng.random() < options.scatter:
            self._scatter()

    # -- the world ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _restart(self, seed: int) -> None: ...

    @abstractmethod
    def _observe(self) -> dict[str, object]: ...

    @abstractmethod
    def _obey(self, call: Call) -> None: ...

    @abstractmethod
    def _step(self) -> None: ...

    @abstractmethod
    def _over(self) -> bool:
        """Whether the episode ended by itself."""

    @abstractmethod
    def _scatter(self) -> None:
        """One thing about the situation is suddenly another."""

    @abstractmethod
    def _sample_goal(self) -> GoalT: ...

    @abstractmethod
    def _sentence(self, goal: GoalT) -> str:
        """What somebody says who wants it."""

    @abstractmethod
    def _spoken(self, goal: GoalT) -> str:
        """What somebody says who was never shown how to."""


class PhrasedCurriculum(DisturbedCurriculum[GoalT]):
    """A bundled world's, told what its agent's `phrasings` say."""

    phrasings: Phrasings[Any, GoalT]

    def _sample_goal(self) -> GoalT:
        return self.phrasings.sample_goal(self.rng)

    def _sentence(self, goal: GoalT) -> str:
        return self.phrasings.training_instruction(self.rng, goal)

    def _spoken(self, goal: GoalT) -> str:
        return self.phrasings.spoken_instruction(self.rng, goal)
