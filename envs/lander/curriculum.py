"""The training curriculum of the lander."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from rtcontrol.agents.lander.goals import DEFAULT_WEIGHTS, PHRASINGS, LanderGoal, LanderKind
from rtcontrol.envs.curriculum import CurriculumOptions, PhrasedCurriculum, TrainingPlan, demonstrate
from rtcontrol.envs.lander.skill import SKILL
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import Demonstration
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig

OPTIONS = CurriculumOptions(
    noise=(0.0, 0.02, 0.05, 0.1), burst=4, switch=0.005, episode_s=(5.0, 14.0), max_delay_steps=1, scatter=0.0
)
RANDOM_START = 0.5  # share of episodes that start at a random position instead of at the top
GROUND_TICKS, TAKE_OFF = 6, 0.15  # an episode ends after 6 ticks on the ground, or takes off with probability 0.15


class LanderCurriculum(PhrasedCurriculum[LanderGoal]):
    """The curriculum of the lander. Hovering episodes last longer than landings, so `_sample_goal` corrects the
    probabilities of goals until each kind of goal has its share (DEFAULT_WEIGHTS) of the rows."""

    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: CurriculumOptions, rows: Counter[LanderKind]) -> None:
        self._row_counts, self._ground_ticks = rows, 0
        super().__init__(rng, options, SKILL, Lander())

    def demonstration(self) -> Demonstration:
        self._row_counts[self._goal.kind] += 1
        return super().demonstration()

    def _restart(self, seed: int) -> None:
        super()._restart(seed)
        self._ground_ticks = 0
        if self.rng.random() < RANDOM_START:
            _place_at_random(self.rng, self._world)

    def _has_ended(self) -> bool:
        """Return whether the episode has ended, or the lander has been on the ground for more than GROUND_TICKS. In the
        latter case, with probability TAKE_OFF, set a new goal (to hover) and continue the episode instead."""
        data = self._world.observe()
        on_ground = data["left_leg"] and data["right_leg"] and self._goal.kind != "hover"
        self._ground_ticks = self._ground_ticks + 1 if on_ground else 0
        if super()._has_ended() or self._ground_ticks <= GROUND_TICKS:
            return super()._has_ended()
        if self.rng.random() >= TAKE_OFF:
            return True
        self._set_goal(PHRASINGS.sample_goal(self.rng, {"hover": 1.0}))
        return False

    def _sample_goal(self) -> LanderGoal:
        total, weights = sum(self._row_counts.values()), dict(DEFAULT_WEIGHTS)
        if total:
            weights = {kind: w * w * total / max(self._row_counts[kind], 1) for kind, w in weights.items()}
        return PHRASINGS.sample_goal(self.rng, weights)


def _place_at_random(rng: random.Random, world: Lander) -> None:
    """Move the lander to a random position above the ground, with a random velocity, angle and spin."""
    x = rng.uniform(-0.7, 0.7)
    world.place(
        x,
        rng.uniform(0.15 if abs(x) < 0.25 else 0.6, 1.5),
        rng.gauss(0.0, 0.35),
        rng.gauss(-0.15, 0.3),
        rng.gauss(0.0, 0.25),
        rng.gauss(0.0, 0.25),
    )


def demonstrations(options: CurriculumOptions, *args: Any, **named: Any) -> Iterator[Demonstration]:
    """Yield rows as `demonstrate` does; all its worlds share the counts that balance the kinds of goals."""
    rows: Counter[LanderKind] = Counter()
    return demonstrate(partial(LanderCurriculum, rows=rows), options, *args, **named)


PLAN = TrainingPlan(
    demonstrations=partial(demonstrations, replace(OPTIONS, spoken=0.5)),
    observed="x y vx vy angle spin legs",
    config=TrainConfig(samples=480_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    number_words=True,
)
