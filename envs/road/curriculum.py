"""The training curriculum of the driver."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from rtcontrol.agents.road.goals import PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import LIGHTS, WORDS
from rtcontrol.envs.curriculum import CurriculumOptions, PhrasedCurriculum, TrainingPlan, demonstrate
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.envs.road.world import SIGHT_M, Road
from rtcontrol.envs.skill import Demonstration
from rtcontrol.models.call import Call
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol_client.carla.intent import KMH
from rtcontrol_client.carla.observing import LIGHT_SIGHT_M

# By a row's call: the probability that training uses the row. These calls are frequent; other rows are always used.
KEEP_PROBABILITIES = {"set_speed": 0.08, "stop": 0.06, "follow": 0.15, "brake": 0.12}
# These higher probabilities are for goals that can be completed, after which the model must also act correctly.
COMPLETED_PROBABILITIES = {"set_speed": 0.2, "stop": 0.15, "follow": 0.25, "brake": 0.2}
COMPLETABLE_GOALS = frozenset({"lane", "turn", "overtake"})
OPTIONS = CurriculumOptions(
    noise=(0.0, 0.01, 0.03, 0.06), burst=6, switch=0.08, episode_s=(10.0, 40.0), max_delay_steps=2
)


class RoadCurriculum(PhrasedCurriculum[RoadGoal]):
    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: CurriculumOptions) -> None:
        super().__init__(rng, options, SKILL, Road())

    @classmethod
    def keep_probability(cls, row: Demonstration) -> float:
        probabilities = COMPLETED_PROBABILITIES if row.goal.kind in COMPLETABLE_GOALS else KEEP_PROBABILITIES
        return probabilities.get(row.call.name, 1.0)

    def _execute(self, call: Call) -> None:
        self._world.obey(call.name, call.arguments)

    def _has_ended(self) -> bool:
        return bool(self._world.counts["crash"])

    def _randomise_state(self) -> None:
        rng, road = self.rng, self._world
        if road.junction_m() == 0:
            return
        change = rng.random()
        if change < 0.2:
            road.car.speed = rng.uniform(0.0, 1.3) * road.limit
        elif change < 0.5:
            road.shift, road.car.lane = 0, rng.randint(1, road.lanes)
            road.traffic.populate(road.car.s)
        elif change < 0.7:
            road.traffic.place_ahead(road.car, rng.uniform(3.0, 90.0), road.car.speed * rng.uniform(0.3, 1.3))
        elif change < 0.9:
            road.junction.start = road.car.s + rng.choice((rng.uniform(4.0, LIGHT_SIGHT_M), rng.uniform(4.0, SIGHT_M)))
            road.car.speed = min(road.car.speed, 60.0 / KMH)
        else:
            road.intent.turn = rng.choice(("straight", "left", "right"))


PLAN = TrainingPlan(
    demonstrations=partial(demonstrate, RoadCurriculum, replace(OPTIONS, spoken=0.5)),
    observed=" ".join((*WORDS, *LIGHTS)),
    config=TrainConfig(samples=700_000, learning_rate=7e-4, bf16=True),
    shape=ModelShape(hidden=128, heads=2, intermediate=512),
    chunk=8_192,
    # Train with canonical sentences first. With all sentences from the start, the loss stays on a plateau.
    early=partial(demonstrate, RoadCurriculum, replace(OPTIONS, plain=1.0)),
    common_words=True,
    number_words=True,
    schema_phrases=True,
)
