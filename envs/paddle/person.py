"""A scripted person for the paddle game: runs after the ball, late and not exactly."""

from __future__ import annotations

import random

from rtcontrol.envs.paddle.world import (
    BALL_HALF,
    BOTTOM,
    HEIGHT,
    OTHER_PLANE,
    PADDLE_SPEED,
    TOP,
    PaddleWorld,
)

LOOK_EVERY = 12  # steps between two looks at the ball: 0.2 s


def fold(y: float) -> float:
    """Where a ball that flies straight to `y` really is: reflected at the walls, however often."""
    span = HEIGHT - 2 * BALL_HALF
    place = (y - BALL_HALF) % (2 * span)
    return BALL_HALF + (place if place <= span else 2 * span - place)


class Person:
    """Everything follows from the generator given: speed (30 to 50 units a second), aim (errors of 1.5 to 5 units a
    ball) and where it waits while the ball flies away. `restless` persons pay no attention to the ball."""

    def __init__(self, rng: random.Random, restless: bool = False) -> None:
        self._rng = rng
        self._restless = restless
        self._speed = rng.uniform(0.5, 0.83) * PADDLE_SPEED
        self._error = rng.uniform(1.5, 5.0)
        self._steps = 0
        self._incoming = False
        self._off = 0.0
        self._target = rng.uniform(TOP, BOTTOM)

    def step(self, world: PaddleWorld) -> None:
        """Before each physics step: set the person's paddle."""
        if self._steps % LOOK_EVERY == 0:
            self._look(world)
        self._steps += 1
        wanted = 8.0 * (self._target - world.other_y)
        world.set_other(min(max(wanted, -self._speed), self._speed))

    def _look(self, world: PaddleWorld) -> None:
        rng = self._rng
        incoming = world.ball_vx < 0
        if self._restless:
            if rng.random() < 0.15:
                self._target = rng.uniform(TOP, BOTTOM)
            return
        if incoming and not self._incoming:
            # One mistake a ball, beside a wish to hit it with some part of the paddle.
            self._off = rng.gauss(0.0, self._error) + rng.uniform(-3.5, 3.5)
        if self._incoming and not incoming:
            self._target = rng.uniform(15.0, 45.0)
        self._incoming = incoming
        if incoming:
            seconds = (world.ball_x - OTHER_PLANE) / -world.ball_vx
            self._target = fold(world.ball_y + world.ball_vy * seconds) + self._off


def person(seed: int) -> Person:
    """The person who plays the episode of `seed`."""
    return Person(random.Random(f"person {seed}"))
