"""The picture of a lander: Gymnasium's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rtcontrol.envs.lander.world import Lander


def painter() -> Callable[[int, Mapping[str, Any]], np.ndarray]:
    """What draws a lander of a seed where an observation shows it."""
    world = Lander(pictures=True)
    shown: list[int] = []

    def paint(seed: int, data: Mapping[str, Any]) -> np.ndarray:
        if shown != [seed]:  # the ground is the seed's
            world.reset(seed)
            shown[:] = [seed]
        world.show(data)
        return world.picture()

    return paint
