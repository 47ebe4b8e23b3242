"""The paddle's games to learn from: disturbed games of the expert, and of a model under the expert's eye."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from rtcontrol.agents.paddle_goal import Goal
from rtcontrol.agents.paddle_phrasings import sample_goal, training_instruction
from rtcontrol.envs.learning import Policy, Row, interleave
from rtcontrol.envs.paddle import BALL_HALF, BOTTOM, BOUNCE_SLOPE, HEIGHT, MAX_SPEED, SERVE_SPEED, TOP, WIDTH
from rtcontrol.envs.paddle_game import PaddleGame
from rtcontrol.envs.paddle_person import Person
from rtcontrol.envs.paddle_skill import SKILL, random_call
from rtcontrol.envs.stepping import StepCarry
from rtcontrol.models.call import Call


@dataclass(frozen=True)
class PaddleOptions:
    """How games are disturbed.

    `noise` are per-tick probabilities, one drawn a game, that a burst of 1 to 4 random calls begins. `scatter` is the
    chance, a tick, that ball and paddles are put anywhere; `switch` that a new goal is asked for; `rephrase` that the
    same one is said in other words. `plain` is the share of instructions in canonical words, beyond those that
    training sentences have anyway; `restless` that of persons who pay no attention to the ball. A game lasts `game_s`
    seconds; a call acts up to `late_steps` physics steps late; `seeds` is where the games' seeds are drawn.
    """

    hz: int = 16
    noise: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1)
    scatter: float = 0.15
    switch: float = 0.03
    rephrase: float = 0.25
    plain: float = 0.0
    restless: float = 0.3
    game_s: tuple[float, float] = (8.0, 25.0)
    late_steps: int = 3
    seeds: int = 1000


def demonstrations(
    seed: int,
    parallel: int = 64,
    options: PaddleOptions = PaddleOptions(),
    policy: Policy | None = None,
    beta: float = 0.0,
) -> Iterator[Row]:
    """Endless rows, the games interleaved, the same for the same arguments; `policy` and `beta` as in `interleave`.

    Seeds from `options.seeds` upwards are never touched.
    """
    games = [_Lesson(random.Random(f"paddle {seed} {index}"), options) for index in range(parallel)]
    yield from interleave(games, policy, beta)


class _Lesson:
    """One game that is told, disturbed and restarted for ever; times are in ticks."""

    _goal: Goal
    _instruction: str
    _noise: float
    _late: int
    _burst: int
    _left: float

    def __init__(self, rng: random.Random, options: PaddleOptions) -> None:
        self.rng = rng
        self._options = options
        self._sim = PaddleGame()
        self._carry = StepCarry(self._sim.step_s)
        self._period_ns = round(1e9 / options.hz)
        self._begin()
        # Staggered ends, so that the games of one batch are at different places from the start.
        self._left *= rng.random()

    def look(self) -> Row:
        text = SKILL.observe(self._sim.observe())
        # The label follows from the text alone: nothing is asked of the learner that it cannot see.
        return Row(self._instruction, text, SKILL.expert(SKILL.read_back(text), self._goal))

    def act(self, call: Call) -> None:
        """One tick: the call or a random one, at once or some physics steps late."""
        rng, sim = self.rng, self._sim
        if self._burst == 0 and rng.random() < self._noise:
            self._burst = rng.randint(1, 4)
        if self._burst:
            self._burst -= 1
            call = random_call(rng)
        late = rng.randint(0, self._late)
        for index in range(self._carry.steps(self._period_ns)):
            if index == late:
                sim.move(**call.arguments)
            sim.step()
        self._after()

    def _begin(self) -> None:
        rng, options = self.rng, self._options
        self._sim.reset(rng.randrange(options.seeds))
        self._sim.person = Person(rng, restless=rng.random() < options.restless)
        self._carry.reset()
        self._noise = rng.choice(options.noise)
        self._late = rng.choice((0, options.late_steps))
        self._burst = 0
        self._left = rng.uniform(*options.game_s) * options.hz
        self._aim()

    def _aim(self) -> None:
        self._goal = sample_goal(self.rng)
        self._instruction = self._say()

    def _say(self) -> str:
        plain = self._options.plain and self.rng.random() < self._options.plain
        return self._goal.text() if plain else training_instruction(self.rng, self._goal)

    def _after(self) -> None:
        rng, options = self.rng, self._options
        self._left -= 1
        if self._sim.outcome() is not None or self._left <= 0:
            self._begin()
            return
        chance = rng.random()
        if chance < options.switch:
            self._aim()
        elif chance < options.switch + options.rephrase:
            self._instruction = self._say()
        if rng.random() < options.scatter:
            _scatter(rng, self._sim)


def _scatter(rng: random.Random, sim: PaddleGame) -> None:
    """Ball and paddles anywhere, at any speed that the game knows, more often towards the model than away."""
    world = sim.world
    world.pause = 0
    world.own_y, world.other_y = rng.uniform(TOP, BOTTOM), rng.uniform(TOP, BOTTOM)
    world.ball_x, world.ball_y = rng.uniform(8.0, WIDTH - 8.0), rng.uniform(BALL_HALF, HEIGHT - BALL_HALF)
    speed = rng.uniform(SERVE_SPEED, MAX_SPEED)
    world.ball_vx = speed if rng.random() < 0.75 else -speed
    world.ball_vy = rng.uniform(-BOUNCE_SLOPE, BOUNCE_SLOPE) * speed
