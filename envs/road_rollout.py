"""The road's drives to learn from: disturbed drives of the expert, and of a model under the expert's eye."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from rtcontrol.agents.driver_goal import Goal, recognise
from rtcontrol.agents.driver_phrasings import sample_goal, training_instruction
from rtcontrol.bridges.carla.pace import KMH
from rtcontrol.envs.learning import Policy, Row, interleave
from rtcontrol.envs.road import DT, LIGHT_SIGHT_M, SIGHT_M, Road
from rtcontrol.envs.road_skill import SKILL, random_call
from rtcontrol.envs.stepping import StepCarry
from rtcontrol.models.call import Call

# Which share of the rows with these calls is shown: calls that begin something are rare, calls that go on are not.
KEPT = {"set_speed": 0.08, "stop": 0.06, "follow": 0.15, "brake": 0.12}
# Of goals that begin something more, or their end (the lane is reached) is not learnt.
KEPT_OF_LANES = {"set_speed": 0.5, "stop": 0.3, "follow": 0.5, "brake": 0.3}
LANES = frozenset({"lane", "turn", "overtake"})


@dataclass(frozen=True)
class RoadOptions:
    """How drives are disturbed.

    `noise` are per-tick probabilities, one drawn a drive, that a burst of 1 to 6 random calls begins. `scatter` is the
    chance, a tick, that the car finds itself elsewhere: another lane, speed, car ahead or junction; `switch` that a
    new goal is asked for; `rephrase` that the same one is said in other words. `plain` is the share of instructions in
    canonical words, beyond those that training sentences have anyway. A drive lasts `drive_s` seconds; a call acts up
    to `late_steps` physics steps late; `seeds` is where the drives' seeds are drawn.
    """

    hz: int = 16
    noise: tuple[float, ...] = (0.0, 0.01, 0.03, 0.06)
    scatter: float = 0.15
    switch: float = 0.08
    rephrase: float = 0.25
    plain: float = 0.0
    drive_s: tuple[float, float] = (10.0, 40.0)
    late_steps: int = 2
    seeds: int = 1000


def demonstrations(
    seed: int,
    parallel: int = 64,
    options: RoadOptions = RoadOptions(),
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Row]:
    """Endless rows, the drives interleaved, the same for the same arguments; `policy` and `beta` as in `interleave`.

    Seeds from `options.seeds` upwards are never touched.
    """
    drives = [_Lesson(random.Random(f"road {seed} {index}"), options) for index in range(parallel)]
    rng = random.Random(f"road {seed} kept")
    for row in interleave(drives, policy, beta):
        # What a policy decided is not thrown away: its passes are dearer than the learning.
        if policy is not None or rng.random() < _kept(row):
            yield row


def _kept(row: Row) -> float:
    goal = recognise(row.instruction)
    kept = KEPT_OF_LANES if goal is not None and goal.kind in LANES else KEPT
    return kept.get(row.call.name, 1.0)


class _Lesson:
    """One drive that is told, disturbed and restarted for ever; times are in ticks."""

    _goal: Goal
    _instruction: str
    _noise: float
    _late: int
    _burst: int
    _left: float

    def __init__(self, rng: random.Random, options: RoadOptions) -> None:
        self.rng = rng
        self._options = options
        self._road = Road()
        self._carry = StepCarry(DT)
        self._period_ns = round(1e9 / options.hz)
        self._begin()
        # Staggered ends, so that the drives of one batch are at different places from the start.
        self._left *= rng.random()

    def look(self) -> Row:
        text = SKILL.observe(self._road.observe())
        # The label follows from the text alone: nothing is asked of the learner that it cannot see.
        return Row(self._instruction, text, SKILL.expert(SKILL.read_back(text), self._goal))

    def act(self, call: Call) -> None:
        """One tick: the call or a random one, at once or some physics steps late."""
        rng, road = self.rng, self._road
        if self._burst == 0 and rng.random() < self._noise:
            self._burst = rng.randint(1, 6)
        if self._burst:
            self._burst -= 1
            call = random_call(rng)
        late = rng.randint(0, self._late)
        steps = self._carry.steps(self._period_ns)
        for index in range(steps):
            if index == min(late, steps - 1):
                road.obey(call.name, call.arguments)
            road.step()
        self._after()

    def _begin(self) -> None:
        rng, options = self.rng, self._options
        self._road.reset(rng.randrange(options.seeds))
        self._carry.reset()
        self._noise = rng.choice(options.noise)
        self._late = rng.choice((0, options.late_steps))
        self._burst = 0
        self._left = rng.uniform(*options.drive_s) * options.hz
        self._aim()

    def _aim(self) -> None:
        self._goal = sample_goal(self.rng)
        self._instruction = self._say()

    def _say(self) -> str:
        plain = self._options.plain and self.rng.random() < self._options.plain
        return self._goal.text() if plain else training_instruction(self.rng, self._goal)

    def _after(self) -> None:
        rng, options, road = self.rng, self._options, self._road
        self._left -= 1
        if road.crashes or self._left <= 0:
            self._begin()
            return
        chance = rng.random()
        if chance < options.switch:
            self._aim()
        elif chance < options.switch + options.rephrase:
            self._instruction = self._say()
        if rng.random() < options.scatter:
            _scatter(rng, road)


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
