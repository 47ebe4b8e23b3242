"""The paddle's games to learn from: disturbed games of the expert, and of a model under the expert's eye."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from rtcontrol.agents.paddle.goals import PHRASINGS, PaddleGoal
from rtcontrol.agents.paddle.tools import WORDS
from rtcontrol.envs.curriculum import CurriculumOptions, PhrasedCurriculum, TrainingPlan
from rtcontrol.envs.paddle.game import PaddleGame
from rtcontrol.envs.paddle.skill import SKILL
from rtcontrol.envs.paddle.world import (
    BALL_HALF,
    BOTTOM,
    BOUNCE_SLOPE,
    HEIGHT,
    MAX_SPEED,
    SERVE_SPEED,
    TOP,
    WIDTH,
    Person,
)
from rtcontrol.envs.skill import Demonstration, Policy, interleave
from rtcontrol.models.call import Call
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig


@dataclass(frozen=True, kw_only=True)
class PaddleOptions(CurriculumOptions):
    """As those of any lesson; `restless` is the share of persons who pay no attention to the ball."""

    noise: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1)
    burst: int = 4
    switch: float = 0.03
    lasts_s: tuple[float, float] = (8.0, 25.0)
    late_steps: int = 3
    restless: float = 0.3


def demonstrations(
    seed: int,
    parallel: int = 64,
    options: PaddleOptions = PaddleOptions(),
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Demonstration]:
    """Endless rows, the games interleaved, the same for the same arguments; `policy` and `beta` as in `interleave`.

    Seeds from `options.seeds` upwards are never touched.
    """
    games = [_PaddleCurriculum(random.Random(f"paddle {seed} {index}"), options) for index in range(parallel)]
    yield from interleave(games, policy, beta)


class _PaddleCurriculum(PhrasedCurriculum[PaddleGoal]):
    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: PaddleOptions) -> None:
        self._sim, self._restless = PaddleGame(), options.restless
        super().__init__(rng, options, SKILL, self._sim.step_s)

    def _restart(self, seed: int) -> None:
        self._sim.reset(seed)
        self._sim.person = Person(self.rng, restless=self.rng.random() < self._restless)

    def _observe(self) -> dict[str, object]:
        return dict(self._sim.observe())

    def _obey(self, call: Call) -> None:
        self._sim.move(**call.arguments)

    def _step(self) -> None:
        self._sim.step()

    def _over(self) -> bool:
        return self._sim.outcome() is not None

    def _scatter(self) -> None:
        _scatter(self.rng, self._sim)


def _scatter(rng: random.Random, sim: PaddleGame) -> None:
    """Ball and paddles anywhere, at any speed that the game knows, more often towards the model than away."""
    world = sim.world
    world.pause = 0
    world.own_y, world.other_y = rng.uniform(TOP, BOTTOM), rng.uniform(TOP, BOTTOM)
    world.ball_x, world.ball_y = rng.uniform(8.0, WIDTH - 8.0), rng.uniform(BALL_HALF, HEIGHT - BALL_HALF)
    speed = rng.uniform(SERVE_SPEED, MAX_SPEED)
    world.ball_vx = speed if rng.random() < 0.75 else -speed
    world.ball_vy = rng.uniform(-BOUNCE_SLOPE, BOUNCE_SLOPE) * speed


PLAN = TrainingPlan(
    demonstrations=partial(demonstrations, options=PaddleOptions(spoken=0.6)),
    observed=" ".join(WORDS),
    config=TrainConfig(samples=340_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    chunk=8_192,
    # Seven ways to act and thousands of sentences at once stay on a plateau: first the acting, then the sentences.
    early=partial(demonstrations, options=PaddleOptions(plain=1.0)),
    common_words=True,
)
