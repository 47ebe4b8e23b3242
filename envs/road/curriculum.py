"""The road's drives to learn from: disturbed drives of the expert, and of a model under the expert's eye."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from rtcontrol.agents.road.goals import PHRASINGS, RoadGoal
from rtcontrol.agents.road.tools import LIGHTS, WORDS
from rtcontrol.envs.curriculum import CurriculumOptions, PhrasedCurriculum, TrainingPlan
from rtcontrol.envs.road.skill import SKILL
from rtcontrol.envs.road.world import DT, SIGHT_M, Road
from rtcontrol.envs.skill import Demonstration, Policy, interleave
from rtcontrol.models.call import Call
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig
from rtcontrol_client.carla.intent import KMH
from rtcontrol_client.carla.observing import LIGHT_SIGHT_M

# Which share of the rows with these calls is shown: calls that begin something are rare, calls that go on are not.
KEPT = {"set_speed": 0.08, "stop": 0.06, "follow": 0.15, "brake": 0.12}
# Of goals that begin something more, or their end (the lane is reached) is not learnt.
KEPT_OF_LANES = {"set_speed": 0.2, "stop": 0.15, "follow": 0.25, "brake": 0.2}
LANES = frozenset({"lane", "turn", "overtake"})


@dataclass(frozen=True, kw_only=True)
class RoadOptions(CurriculumOptions):
    """As those of any lesson."""

    noise: tuple[float, ...] = (0.0, 0.01, 0.03, 0.06)
    burst: int = 6
    switch: float = 0.08
    lasts_s: tuple[float, float] = (10.0, 40.0)
    late_steps: int = 2


def demonstrations(
    seed: int,
    parallel: int = 64,
    options: RoadOptions = RoadOptions(),
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Demonstration]:
    """Endless rows, the drives interleaved, the same for the same arguments; `policy` and `beta` as in `interleave`.

    Seeds from `options.seeds` upwards are never touched.
    """
    drives = [_RoadCurriculum(random.Random(f"road {seed} {index}"), options) for index in range(parallel)]
    rng = random.Random(f"road {seed} kept")
    for row in interleave(drives, policy, beta):
        # What a policy decided is not thrown away: its passes are dearer than the learning.
        if policy is not None or rng.random() < _kept(row):
            yield row


def _kept(row: Demonstration) -> float:
    kept = KEPT_OF_LANES if row.goal.kind in LANES else KEPT
    return kept.get(row.call.name, 1.0)


class _RoadCurriculum(PhrasedCurriculum[RoadGoal]):
    phrasings = PHRASINGS

    def __init__(self, rng: random.Random, options: RoadOptions) -> None:
        self._road = Road()
        super().__init__(rng, options, SKILL, DT)

    def _restart(self, seed: int) -> None:
        self._road.reset(seed)

    def _observe(self) -> dict[str, object]:
        return dict(self._road.observe())

    def _obey(self, call: Call) -> None:
        self._road.obey(call.name, call.arguments)

    def _step(self) -> None:
        self._road.step()

    def _over(self) -> bool:
        return bool(self._road.crashes)

    def _scatter(self) -> None:
        _scatter(self.rng, self._road)


def _scatter(rng: random.Random, road: Road) -> None:
    """One thing about the situation is suddenly another."""
    if road.junction_m() == 0:
        return
    what = rng.random()
    if what < 0.2:
        road.car.speed = rng.uniform(0.0, 1.3) * road.limit
    elif what < 0.5:
        road.shift, road.car.lane = 0, rng.randint(1, road.lanes)
        road.traffic.populate(road.car.s)
    elif what < 0.7:
        road.traffic.lead(road.car, rng.uniform(3.0, 90.0), road.car.speed * rng.uniform(0.3, 1.3))
    elif what < 0.9:
        road.junction = road.car.s + rng.choice((rng.uniform(4.0, LIGHT_SIGHT_M), rng.uniform(4.0, SIGHT_M)))
        road.car.speed = min(road.car.speed, 60.0 / KMH)
    else:
        road.intent.turn = rng.choice(("straight", "left", "right"))


PLAN = TrainingPlan(
    demonstrations=partial(demonstrations, options=RoadOptions(spoken=0.5)),
    observed=" ".join((*WORDS, *LIGHTS)),
    config=TrainConfig(samples=700_000, learning_rate=7e-4, bf16=True),
    shape=ModelShape(hidden=128, heads=2, intermediate=512),
    chunk=8_192,
    # First the driving, then the sentences: both at once stay on a plateau.
    early=partial(demonstrations, options=RoadOptions(plain=1.0)),
    common_words=True,
    number_words=True,
    schema_phrases=True,
)
