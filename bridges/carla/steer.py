"""Pure pursuit: the wheel angle that leads the rear axle over an arc to a point ahead on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

AHEAD_S, LEAST_M, MOST_M = 0.75, 4.0, 25.0  # the look-ahead distance is so many seconds of driving, within these
LATERAL = 6.5  # m/s2 that no steering asks for more of
CREEP = 2.0  # m/s below which the lateral acceleration says nothing
RATE = 2.0  # of the whole range a second
TRIM_RATE, TRIM_MOST, TRIM_WITHIN_M = 0.004, 0.02, 0.6  # curvature that makes good a vehicle which steers otherwise
# Speed in km/h and the share of the steering that is left at it, as CARLA's vehicles have it.
CURVE = ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))


def look_ahead_m(speed: float) -> float:
    return min(max(AHEAD_S * speed, LEAST_M), MOST_M)


class Steer:
    """Steering of a vehicle with a wheelbase (m), a largest wheel angle (degrees), and a share of it by speed."""

    def __init__(
        self,
        dt_s: float,
        wheelbase_m: float,
        max_steer_deg: float,
        curve: Sequence[tuple[float, float]] = CURVE,
    ) -> None:
        self.dt_s, self.wheelbase_m = dt_s, wheelbase_m
        self.largest = math.radians(max_steer_deg)
        self.curve = [point for point in curve if point[1] > 0.0] or CURVE
        self.value = 0.0
        self.trim = 0.0

    def step(self, forward: float, right: float, speed: float, off_m: float) -> float:
        """Steering within -1 (left) and 1 for a target `forward` and `right` of the rear axle, m.

        `off_m`: how far right of where it should be the vehicle is; finite, all of them. Once a simulation step.
        """
        distance2 = forward * forward + right * right
        curvature = 2.0 * right / distance2 if distance2 > 1e-6 else 0.0
        if abs(off_m) < TRIM_WITHIN_M and speed > CREEP:
            self.trim = _within(self.trim - TRIM_RATE * off_m * self.dt_s, TRIM_MOST)
        most = LATERAL / max(speed, CREEP) ** 2
        curvature = _within(curvature + self.trim, most)
        largest = self.largest * _left(self.curve, 3.6 * speed)
        wish = _within(math.atan(self.wheelbase_m * curvature) / largest, 1.0)
        change = _within(wish - self.value, RATE * self.dt_s)
        self.value = _within(self.value + change, 1.0)
        return self.value


def _left(curve: Sequence[tuple[float, float]], kmh: float) -> float:
    for (low, share), (high, share_high) in pairwise(curve):
        if kmh <= high and low < high:
            return share + (share_high - share) * max(kmh - low, 0.0) / (high - low)
    return curve[-1][1]


def _within(value: float, most: float) -> float:
    return min(max(value, -most), most)
