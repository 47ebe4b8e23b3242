"""A paddle game: a person's paddle on the left, the model's on the right, one ball. This text specifies the physics.

A port to another language needs only this text; `tests/envs/paddle/paddle_trace.json` has a step-by-step trace to
compare with. The game uses only + - * / and comparisons of IEEE doubles, in the order written here, so that the numbers
of a port are the same to the last bit.

Field and units: x from 0 (the person's side) to 100 (the model's side), y from 0 (top) to 60 (bottom), seconds. "own"
is the model's paddle, "other" the person's paddle.

    step                1/60 s, fixed; every `v / 60` below is a division by 60
    ball                centre x, y; a square of half side 1
    paddle              centre y, height 10 (half 5); centre kept in 5..55; speed at most 60 either way
    own face            x = 96: a ball at x = 95 touches it            other face   x = 4: a ball at x = 5 touches it
    serve speed         |vx| = 45; after each paddle hit |vx| grows by 2.5, up to 70
    bounce              offset = (ball y - paddle y) / 6, in -1..1; vy = 0.75 * offset * |vx| with the new |vx|
    pause before serve  30 steps, the ball at rest in the centre (50, 30)

Random numbers come from one 32-bit generator: state = (1664525 * state + 1013904223) mod 2^32, first set to
(2654435761 * seed + 1) mod 2^32 (JavaScript: `Math.imul` and `>>> 0`). They determine only the slope of serves.

Start: score 0:0, both paddles at y = 30 and at rest, the ball in the centre, pause = 30, the first serve goes to the
model (toward = +1).

One step, in this order:

1. Paddles: y = y + v / 60, then y = min(max(y, 5), 55); own first. v is in units a second, clamped to -60..60 when set.
2. If pause > 0: pause = pause - 1; if pause is 0 now, serve: compute the next state, u = state >> 16 (0..65535),
   vx = toward * 45, vy = (u / 32768 - 1) * 0.6 * 45. The step ends here, with or without a serve.
3. Ball: before = x; x = x + vx / 60; y = y + vy / 60.
4. Walls: if y < 1: y = 2 - y, vy = -vy. If y > 59: y = 118 - y, vy = -vy.
5. Own paddle, if vx > 0 and before < 95 and x >= 95 and |y - own y| <= 6: x = 190 - x, s = min(vx + 2.5, 70),
   vx = -s, vy = 0.75 * ((y - own y) / 6) * s. Other paddle, if vx < 0 and before > 5 and x <= 5 and
   |y - other y| <= 6: x = 10 - x, s = min(-vx + 2.5, 70), vx = s, vy = 0.75 * ((y - other y) / 6) * s.
6. Points: if x >= 100 the other (the person) scores and toward = +1; if x <= 0 own (the model) scores and toward = -1
   (the next serve goes to the player who missed). After a point x = 50, y = 30, vx = vy = 0, pause = 30.

Observation, the object that the agent `paddle` reads: `ball_x` 0..100, `ball_y` 1..59, `ball_vx` -70..70 and
`ball_vy` -52.5..52.5 (units a second, both 0 before a serve), `own_y`, `other_y` 5..55. The model's call
`move(velocity=n)`, n in -3..3, sets own v = 20 * n (positive is down) until the next call. A game never ends by itself;
the program that uses it decides when to stop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

STEPS_A_SECOND = 60
WIDTH, HEIGHT = 100.0, 60.0
BALL_HALF = 1.0
PADDLE_HALF = 5.0
REACH = PADDLE_HALF + BALL_HALF
TOP, BOTTOM = PADDLE_HALF, HEIGHT - PADDLE_HALF
PADDLE_SPEED = 60.0
OWN_PLANE, OTHER_PLANE = 95.0, 5.0
SERVE_SPEED, SPEED_UP, MAX_SPEED = 45.0, 2.5, 70.0
SERVE_SLOPE, BOUNCE_SLOPE = 0.6, 0.75
PAUSE_STEPS = 30
LEVEL_SPEED = 20.0
_MASK = 0xFFFFFFFF


@dataclass(slots=True)
class Ball:
    """The ball: the position of its centre, and its velocity in units per second."""

    x: float
    y: float
    vx: float = 0.0
    vy: float = 0.0


class PaddleWorld:
    """The physics that this module's docstring specifies. `own_hits`, `other_hits`, `own_score` and `other_score` are
    counts since `reset`."""

    ball: Ball
    pause: int
    toward: int

    def __init__(self, seed: int = 0) -> None:
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start a game; `seed` (0 or more) determines the serves."""
        self._state = (2654435761 * seed + 1) & _MASK
        self.own_y = self.other_y = HEIGHT / 2
        self.own_v = self.other_v = 0.0
        self.own_hits = self.other_hits = self.own_score = self.other_score = 0
        self._centre_ball(toward=1)

    def set_model(self, velocity: float) -> None:
        """Set the velocity of the model's paddle in units per second (positive is down), clamped to -60..60."""
        self.own_v = min(max(velocity, -PADDLE_SPEED), PADDLE_SPEED)

    def set_other(self, velocity: float) -> None:
        """Set the velocity of the person's paddle in units per second, clamped to the maximum speed."""
        self.other_v = min(max(velocity, -PADDLE_SPEED), PADDLE_SPEED)

    def step(self) -> None:
        self.own_y = min(max(self.own_y + self.own_v / STEPS_A_SECOND, TOP), BOTTOM)
        self.other_y = min(max(self.other_y + self.other_v / STEPS_A_SECOND, TOP), BOTTOM)
        if self.pause > 0:
            self.pause -= 1
            if self.pause == 0:
                self._serve()
            return
        before = self.ball.x
        self.ball.x += self.ball.vx / STEPS_A_SECOND
        self.ball.y += self.ball.vy / STEPS_A_SECOND
        if self.ball.y < BALL_HALF:
            self.ball.y = 2 * BALL_HALF - self.ball.y
            self.ball.vy = -self.ball.vy
        if self.ball.y > HEIGHT - BALL_HALF:
            self.ball.y = 2 * (HEIGHT - BALL_HALF) - self.ball.y
            self.ball.vy = -self.ball.vy
        self._bounce_off_paddles(before)
        if self.ball.x >= WIDTH:
            self.other_score += 1
            self._centre_ball(toward=1)
        elif self.ball.x <= 0:
            self.own_score += 1
            self._centre_ball(toward=-1)

    def observe(self) -> dict[str, float]:
        """Return the observation that the agent `paddle` reads."""
        return {
            "ball_x": self.ball.x,
            "ball_y": self.ball.y,
            "ball_vx": self.ball.vx,
            "ball_vy": self.ball.vy,
            "own_y": self.own_y,
            "other_y": self.other_y,
        }

    def _bounce_off_paddles(self, before: float) -> None:
        if self.ball.vx > 0 and before < OWN_PLANE <= self.ball.x and abs(self.ball.y - self.own_y) <= REACH:
            self.ball.x = 2 * OWN_PLANE - self.ball.x
            speed = min(self.ball.vx + SPEED_UP, MAX_SPEED)
            self.ball.vx = -speed
            self.ball.vy = BOUNCE_SLOPE * ((self.ball.y - self.own_y) / REACH) * speed
            self.own_hits += 1
        elif self.ball.vx < 0 and before > OTHER_PLANE >= self.ball.x and abs(self.ball.y - self.other_y) <= REACH:
            self.ball.x = 2 * OTHER_PLANE - self.ball.x
            speed = min(-self.ball.vx + SPEED_UP, MAX_SPEED)
            self.ball.vx = speed
            self.ball.vy = BOUNCE_SLOPE * ((self.ball.y - self.other_y) / REACH) * speed
            self.other_hits += 1

    def _centre_ball(self, toward: int) -> None:
        self.ball = Ball(WIDTH / 2, HEIGHT / 2)
        self.pause = PAUSE_STEPS
        self.toward = toward

    def _serve(self) -> None:
        self._state = (1664525 * self._state + 1013904223) & _MASK
        slope = ((self._state >> 16) / 32768 - 1) * SERVE_SLOPE
        self.ball.vx = self.toward * SERVE_SPEED
        self.ball.vy = slope * SERVE_SPEED


AIM_EVERY = 12  # the scripted player updates its aim every 12 steps (0.2 s)


def reflect_at_walls(y: float) -> float:
    """Return the y of a ball after its reflections at the walls; `y` is where it would be without walls."""
    span = HEIGHT - 2 * BALL_HALF
    place = (y - BALL_HALF) % (2 * span)
    return BALL_HALF + (place if place <= span else 2 * span - place)


class Person:
    """A scripted player of the left paddle. `rng` determines its speed (30 to 50 units a second), its aiming errors
    (1.5 to 5 units) and where it waits while the ball moves away. A `restless` player moves at random instead."""

    def __init__(self, rng: random.Random, restless: bool = False) -> None:
        self._rng = rng
        self._restless = restless
        self._speed = rng.uniform(0.5, 0.83) * PADDLE_SPEED
        self._aim_error = rng.uniform(1.5, 5.0)
        self._steps = 0
        self._incoming = False
        self._aim_offset = 0.0
        self._target = rng.uniform(TOP, BOTTOM)

    def step(self, world: PaddleWorld) -> None:
        """Set the velocity of the person's paddle; called before each physics step."""
        if self._steps % AIM_EVERY == 0:
            self._update_target(world)
        self._steps += 1
        wanted = 8.0 * (self._target - world.other_y)
        world.set_other(min(max(wanted, -self._speed), self._speed))

    def _update_target(self, world: PaddleWorld) -> None:
        rng = self._rng
        incoming = world.ball.vx < 0
        if self._restless:
            if rng.random() < 0.15:
                self._target = rng.uniform(TOP, BOTTOM)
            return
        if incoming and not self._incoming:
            # Add a random error for each ball, and a random point of the paddle that shall hit the ball.
            self._aim_offset = rng.gauss(0.0, self._aim_error) + rng.uniform(-3.5, 3.5)
        if self._incoming and not incoming:
            self._target = rng.uniform(15.0, 45.0)
        self._incoming = incoming
        if incoming:
            seconds = (world.ball.x - OTHER_PLANE) / -world.ball.vx
            self._target = reflect_at_walls(world.ball.y + world.ball.vy * seconds) + self._aim_offset


def make_person(seed: int) -> Person:
    """Return the scripted player for the episode with this seed."""
    return Person(random.Random(f"person {seed}"))
