"""The training curriculum of the paddle."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from rtcontrol.agents.paddle.goals import PHRASINGS, PaddleGoal
from rtcontrol.agents.paddle.tools import WORDS
from rtcontrol.envs.curriculum import CurriculumOptions, PhrasedCurriculum, TrainingPlan, demonstrate
from rtcontrol.envs.paddle import world as court
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.paddle.skill import SKILL
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig

OPTIONS = CurriculumOptions(
    noise=(0.0, 0.02, 0.05, 0.1), burst=4, switch=0.03, episode_s=(8.0, 25.0), max_delay_steps=3
)
RESTLESS = 0.3  # share of scripted players who ignore the ball


class PaddleCurriculum(PhrasedCurriculum[PaddleGoal]):
    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: CurriculumOptions) -> None:
        super().__init__(rng, options, SKILL, PaddleGame())

    def _restart(self, seed: int) -> None:
        super()._restart(seed)
        self._world.person = court.Person(self.rng, restless=self.rng.random() < RESTLESS)

    def _randomise_state(self) -> None:
        """Give ball and paddles random positions and velocities; the ball moves towards the model in 75 % of cases."""
        rng, world = self.rng, self._world.world
        world.pause = 0
        world.own_y, world.other_y = (rng.uniform(court.TOP, court.BOTTOM) for _ in range(2))
        world.ball.x = rng.uniform(8.0, court.WIDTH - 8.0)
        world.ball.y = rng.uniform(court.BALL_HALF, court.HEIGHT - court.BALL_HALF)
        speed = rng.uniform(court.SERVE_SPEED, court.MAX_SPEED)
        world.ball.vx = speed if rng.random() < 0.75 else -speed
        world.ball.vy = rng.uniform(-court.BOUNCE_SLOPE, court.BOUNCE_SLOPE) * speed


PLAN = TrainingPlan(
    demonstrations=partial(demonstrate, PaddleCurriculum, replace(OPTIONS, spoken=0.6)),
    observed=" ".join(WORDS),
    config=TrainConfig(samples=340_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    chunk=8_192,
    # Train with canonical sentences first. With thousands of sentences from the start, the loss stays on a plateau.
    early=partial(demonstrate, PaddleCurriculum, replace(OPTIONS, plain=1.0)),
    common_words=True,
)
