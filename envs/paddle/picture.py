"""The picture of a paddle game: its court from above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rtcontrol.envs.paddle.world import BALL_HALF, HEIGHT, PADDLE_HALF, WIDTH

SCALE = 6  # pixels a unit of the court
COURT, BALL, PERSON, MODEL = (24, 25, 22), (236, 232, 222), (134, 169, 255), (255, 127, 82)


def painter() -> Callable[[int, Mapping[str, Any]], np.ndarray]:
    """What draws the court of an observation."""
    return _paint


def _paint(seed: int, data: Mapping[str, Any]) -> np.ndarray:
    court = np.empty((round(HEIGHT * SCALE), round(WIDTH * SCALE), 3), dtype=np.uint8)
    court[:] = COURT

    def box(x: float, y: float, half_x: float, half_y: float, colour: tuple[int, int, int]) -> None:
        left, right = (max(0, round((x + half) * SCALE)) for half in (-half_x, half_x))
        top, bottom = (max(0, round((y + half) * SCALE)) for half in (-half_y, half_y))
        court[top:bottom, left:right] = colour

    box(3.0, data["other_y"], 1.0, PADDLE_HALF, PERSON)
    box(WIDTH - 3.0, data["own_y"], 1.0, PADDLE_HALF, MODEL)
    box(data["ball_x"], data["ball_y"], BALL_HALF, BALL_HALF, BALL)
    return court
