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
    noise=(0.0, 0.02, 0.05, 0.1), burst=4, switch=0.005, lasts_s=(5.0, 14.0), late_steps=1, scatter=0.0
)
SCATTERED = 0.5  # share of flights that start anywhere in the field instead of at the top
GROUND_TICKS, TAKE_OFF = 6, 0.15  # ticks on the ground that end a flight; probability to take off instead


class LanderCurriculum(PhrasedCurriculum[LanderGoal]):
    """The curriculum of the lander, which samples short landings more often than long hovers, so that the rows are
    balanced."""

    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: CurriculumOptions, rows: Counter[LanderKind]) -> None:
        self._rows, self._ground = rows, 0
        super().__init__(rng, options, SKILL, Lander())

    def look(self) -> Demonstration:
        self._rows[self._goal.kind] += 1
        return super().look()

    def _restart(self, seed: int) -> None:
        super()._restart(seed)
        self._ground = 0
        if self.rng.random() < SCATTERED:
            _scatter(self.rng, self._world)

    def _over(self) -> bool:
        """Return whether the episode ended, or the lander was on the ground for long. It may then get the instruction
        to take off instead."""
        data = self._world.observe()
        on_ground = data["left_leg"] and data["right_leg"] and self._goal.kind != "hover"
        self._ground = self._ground + 1 if on_ground else 0
        if super()._over() or self._ground <= GROUND_TICKS:
            return super()._over()
        if self.rng.random() >= TAKE_OFF:
            return True
        self._aim(PHRASINGS.sample_goal(self.rng, {"hover": 1.0}))
        return False

    def _sample_goal(self) -> LanderGoal:
        total, weights = sum(self._rows.values()), dict(DEFAULT_WEIGHTS)
        if total:
            weights = {kind: w * w * total / max(self._rows[kind], 1) for kind, w in weights.items()}
        return PHRASINGS.sample_goal(self.rng, weights)


def _scatter(rng: random.Random, world: Lander) -> None:
    """Move the lander anywhere above the terrain, at any plausible speed and lean."""
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
    """Yield rows as `demonstrate` does, with the kinds of goals balanced over all worlds."""
    rows: Counter[LanderKind] = Counter()
    return demonstrate(partial(LanderCurriculum, rows=rows), options, *args, **named)


PLAN = TrainingPlan(
    demonstrations=partial(demonstrations, replace(OPTIONS, spoken=0.5)),
    observed="x y vx vy angle spin legs",
    config=TrainConfig(samples=480_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    number_words=True,
)
