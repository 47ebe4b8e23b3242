"""A vehicle's physics as a client asks for them: what the bicycle has of them, and constants of no meaning."""

from __future__ import annotations

import math
from typing import Any

from tests.bridges.carla.standin.actors import Vehicle
from tests.bridges.carla.standin.physics import MAX_STEER, STEERING_CURVE, WHEELBASE_M

TRACK_M = 1.6
RADIUS_CM = 34.0
MASS_KG = 1800.0


def physics(vehicle: Vehicle) -> list[Any]:
    """Wheels are front left, front right, rear left, rear right; their places are in world centimetres, as CARLA's."""
    wheels = []
    cos, sin = math.cos(vehicle.body.heading), math.sin(vehicle.body.heading)
    for ahead, most in ((WHEELBASE_M / 2, math.degrees(MAX_STEER)), (-WHEELBASE_M / 2, 0.0)):
        for left in (TRACK_M / 2, -TRACK_M / 2):
            x = vehicle.body.x + ahead * cos - left * sin
            y = vehicle.body.y + ahead * sin + left * cos
            place = [100.0 * x, -100.0 * y, RADIUS_CM]
            wheels.append(
                [3.5, 0.25, most, RADIUS_CM, 1500.0, 3000.0 if most == 0.0 else 0.0, 2.0, 17.0, 1000.0, place]
            )
    engine = [[[0.0, 500.0], [5000.0, 500.0]], 5000.0, 1.0, 0.15, 2.0, 0.35, True, 0.5, 10.0, 4.0, []]
    steering = [list(point) for point in STEERING_CURVE]
    return [*engine, MASS_KG, 0.3, [0.0, 0.0, 0.0], steering, wheels, False]
