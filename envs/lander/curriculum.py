"""The lander's flights to learn from: disturbed rollouts of the expert, and of a model under the expert's eye."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from rtcontrol.agents.lander.goals import DEFAULT_WEIGHTS, PHRASINGS, LanderGoal, LanderKind
from rtcontrol.agents.lander.tools import observe, read_back
from rtcontrol.envs.curriculum import TrainingPlan
from rtcontrol.envs.lander.skill import expert, random_call
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import Demonstration, Policy, StepCarry, interleave
from rtcontrol.models.call import Call
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.trainer import TrainConfig


@dataclass(frozen=True)
class LanderOptions:
    """How flights are disturbed.

    `noise` are per-tick probabilities, one drawn a flight, that a burst of 1 to 4 random calls begins. `scatter` is
    the share of flights that start anywhere in the field instead of at the top; `switch` that of goals replaced in
    flight after 2 to 6 s; `rephrase` the chance, a tick, of new words for the same goal, `spoken` the share of them as
    people say them. A flight on the ground ends after `ground_ticks`, at times with an order to take off again; `seeds`
    is where the terrains' seeds are drawn.
    """

    weights: Mapping[LanderKind, float] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    hz: int = 16
    noise: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1)
    scatter: float = 0.5
    switch: float = 0.4
    rephrase: float = 0.25
    spoken: float = 0.0
    flight_s: tuple[float, float] = (5.0, 14.0)
    ground_ticks: int = 6
    take_off: float = 0.15
    seeds: int = 1000


def demonstrations(
    seed: int,
    parallel: int = 64,
    options: LanderOptions = LanderOptions(),
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Demonstration]:
    """Endless rows, the flights interleaved, the same for the same arguments.

    Without `policy` the expert flies. With one the model flies and each flight's tick is the expert's with
    probability `beta`; the label is always the expert's. Seeds from `options.seeds` upwards are never touched.
    """
    balance = _Balance(options.weights)
    flights = [_LanderCurriculum(random.Random(f"{seed} {index}"), options, balance) for index in range(parallel)]
    yield from interleave(flights, policy, beta)


class _Balance:
    """Keeps the rows' goals at the wished shares: short landings come up more often than long hovers."""

    def __init__(self, weights: Mapping[LanderKind, float]) -> None:
        total = sum(weights.values())
        self._shares = {kind: weight / total for kind, weight in weights.items()}
        self._rows = dict.fromkeys(weights, 0)

    def count(self, kind: LanderKind) -> None:
        self._rows[kind] += 1

    def sample(self, rng: random.Random) -> LanderGoal:
        total = sum(self._rows.values())
        wanted = {
            kind: share * share * total / max(self._rows[kind], 1) if total else share
            for kind, share in self._shares.items()
        }
        return PHRASINGS.sample_goal(rng, wanted)


class _LanderCurriculum:
    """One lander that is told, disturbed and restarted for ever; times are in ticks."""

    _goal: LanderGoal
    _instruction: str
    _noise: float
    _late: float
    _burst: int
    _ground: int
    _left: float
    _switch: float

    def __init__(self, rng: random.Random, options: LanderOptions, balance: _Balance) -> None:
        self.rng = rng
        self._options = options
        self._balance = balance
        self._sim = Lander()
        self._carry = StepCarry(self._sim.step_s)
        self._period_ns = round(1e9 / options.hz)
        self._begin()
        # Staggered ends, so that the landers of one batch are in different phases of flight from the start.
        self._left *= rng.random()

    def look(self) -> Demonstration:
        self._balance.count(self._goal.kind)
        text = observe(self._sim.observe())
        # The label follows from the text alone: nothing is asked of the learner that it cannot see.
        return Demonstration(self._instruction, text, expert(read_back(text), self._goal), self._goal)

    def act(self, call: Call) -> None:
        """One tick: the call or a random one, at once or a physics step late."""
        rng, sim = self.rng, self._sim
        if self._burst == 0 and rng.random() < self._noise:
            self._burst = rng.randint(1, 4)
        if self._burst:
            self._burst -= 1
            call = random_call(rng)
        late = rng.random() < self._late
        if not late:
            sim.engines(**call.arguments)
        for index in range(self._carry.steps(self._period_ns)):
            if late and index == 1:
                sim.engines(**call.arguments)
            sim.step()
        self._after()

    def _begin(self) -> None:
        rng, options = self.rng, self._options
        self._sim.reset(rng.randrange(options.seeds))
        self._carry.reset()
        if rng.random() < options.scatter:
            _scatter(rng, self._sim)
        self._noise = rng.choice(options.noise)
        self._late = rng.choice((0.0, 0.5, 1.0))
        self._burst = 0
        self._ground = 0
        self._left = rng.uniform(*options.flight_s) * options.hz
        self._aim()

    def _aim(self) -> None:
        rng, options = self.rng, self._options
        self._goal = self._balance.sample(rng)
        self._instruction = self._say()
        self._switch = rng.uniform(2, 6) * options.hz if rng.random() < options.switch else float("inf")

    def _say(self) -> str:
        spoken = self._options.spoken and self.rng.random() < self._options.spoken
        draw = PHRASINGS.spoken_instruction if spoken else PHRASINGS.training_instruction
        return draw(self.rng, self._goal)

    def _after(self) -> None:
        rng, options = self.rng, self._options
        data = self._sim.observe()
        on_ground = data["left_leg"] and data["right_leg"] and self._goal.kind != "hover"
        self._ground = self._ground + 1 if on_ground else 0
        self._left -= 1
        self._switch -= 1
        if self._sim.outcome() is not None or self._left <= 0:
            self._begin()
        elif self._ground > options.ground_ticks:
            if rng.random() < options.take_off:
                self._goal = PHRASINGS.sample_goal(rng, {"hover": 1.0})
                self._instruction = self._say()
            else:
                self._begin()
        elif self._switch <= 0:
            self._aim()
        elif rng.random() < options.rephrase:
            self._instruction = self._say()


def _scatter(rng: random.Random, sim: Lander) -> None:
    """Anywhere above the terrain, at any plausible speed and lean."""
    x = rng.uniform(-0.7, 0.7)
    sim.place(
        x,
        rng.uniform(0.15 if abs(x) < 0.25 else 0.6, 1.5),
        rng.gauss(0.0, 0.35),
        rng.gauss(-0.15, 0.3),
        rng.gauss(0.0, 0.25),
        rng.gauss(0.0, 0.25),
    )


PLAN = TrainingPlan(
    demonstrations=partial(demonstrations, options=LanderOptions(spoken=0.5)),
    observed="x y vx vy angle spin legs",
    config=TrainConfig(samples=480_000),
    shape=ModelShape(hidden=192, heads=6, intermediate=384),
    number_words=True,
)
