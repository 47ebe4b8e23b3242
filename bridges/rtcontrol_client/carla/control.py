"""Control pedals and steering of a vehicle whose engine and brakes are unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

# The assumed acceleration of full throttle and full brakes in m/s2; `PedalController` corrects for the actual values.
ENGINE, BRAKES = 4.0, 8.0
DRIVE_RATE, BRAKE_RATE = 0.15, 0.08  # change of each integral per second and m/s2 of error
DRIVE_MOST, BRAKE_MOST = 0.8, 0.5
# Measured and requested acceleration are compared as means over about this number of seconds.
MEAN_S = 0.25
STANDING, HOLD = 0.3, 0.3  # below 0.3 m/s, if no acceleration is requested, apply 30 % of the brakes


@dataclass(frozen=True, slots=True)
class Control:
    """The fields of `carla.VehicleControl`: throttle or brake from 0 to 1 (never both), steer from -1 (left) to 1, and
    the hand brake, which holds a vehicle at rest."""

    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False


class PedalController:
    """A PI controller of the acceleration. Its integrals are `hold`, which converges to the throttle that keeps the
    speed, and `more`, which converges to the additional brake. Both pause while a pedal is at its limit."""

    def __init__(self, dt_s: float) -> None:
        self.dt_s = dt_s
        self.hold = 0.0
        self.more = 0.0
        self._speed: float | None = None
        self._measured = 0.0
        self._expected = 0.0

    def step(self, wanted: float, speed: float) -> Control:
        """Return the pedals for a requested acceleration (m/s2) at a speed (m/s), both finite. Call once per step."""
        self._update_integrals(wanted, speed)
        if wanted <= 0.0 and speed < STANDING:
            self.more = 0.0
            return Control(brake=max(HOLD, _clamped_share(-wanted / BRAKES)), hand_brake=True)
        throttle = wanted / ENGINE + self.hold
        if throttle >= 0.0:
            self.more = 0.0
            return Control(throttle=_clamped_share(throttle))
        # Without throttle the vehicle already slows down by `hold`; the brakes provide the rest.
        return Control(brake=_clamped_share(-throttle * ENGINE / BRAKES + self.more))

    def _update_integrals(self, wanted: float, speed: float) -> None:
        mean = min(1.0, self.dt_s / MEAN_S)
        if self._speed is not None:
            self._measured += mean * ((speed - self._speed) / self.dt_s - self._measured)
        self._speed = speed
        self._expected += mean * (wanted - self._expected)
        if speed < STANDING:
            return
        shortfall = self._expected - self._measured
        throttle = wanted / ENGINE + self.hold
        if throttle >= 0.0:
            if 0.0 < throttle < 1.0 or (throttle >= 1.0) == (shortfall < 0.0):
                self.hold = _clamped(self.hold + DRIVE_RATE * shortfall * self.dt_s, 0.0, DRIVE_MOST)
            return
        brake = -throttle * ENGINE / BRAKES + self.more
        if 0.0 < brake < 1.0 or (brake >= 1.0) == (shortfall > 0.0):
            self.more = _clamped(self.more - BRAKE_RATE * shortfall * self.dt_s, -BRAKE_MOST, BRAKE_MOST)


def _clamped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _clamped_share(value: float) -> float:
    return _clamped(value, 0.0, 1.0) if math.isfinite(value) else 0.0


AHEAD_S, LEAST_M, MOST_M = 0.75, 4.0, 25.0  # the look-ahead distance is driven in AHEAD_S; it has these limits
LATERAL = 6.5  # maximum lateral acceleration in m/s2
CREEP = 2.0  # speed in m/s below which the lateral acceleration is not limited
RATE = 2.0  # maximum change of the steering per second
TRIM_RATE, TRIM_MOST, TRIM_WITHIN_M = 0.004, 0.02, 0.6  # integral correction of a steering bias (as curvature)
# CURVE has pairs of a speed in km/h and the share of the maximum steering angle that CARLA allows at this speed.
WHEELBASE_M, MAX_STEER = 2.85, math.radians(70.0)
CURVE = ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))


def look_ahead_m(speed: float) -> float:
    return min(max(AHEAD_S * speed, LEAST_M), MOST_M)


class SteeringController:
    """The steering controller, for a vehicle with the dimensions of CARLA's Model 3."""

    def __init__(self, dt_s: float) -> None:
        self.dt_s = dt_s
        self.value = 0.0
        self.trim = 0.0

    def step(self, forward: float, right: float, speed: float, offset_m: float) -> float:
        """Return the steering, from -1 (left) to 1, towards a target `forward` and `right` of the rear axle (m).

        `offset_m` is how far the vehicle is to the right of its planned path. All values are finite. Call once per
        simulation step.
        """
        distance2 = forward * forward + right * right
        curvature = 2.0 * right / distance2 if distance2 > 1e-6 else 0.0
        if abs(offset_m) < TRIM_WITHIN_M and speed > CREEP:
            self.trim = _steer_within(self.trim - TRIM_RATE * offset_m * self.dt_s, TRIM_MOST)
        max_curvature = LATERAL / max(speed, CREEP) ** 2
        curvature = _steer_within(curvature + self.trim, max_curvature)
        max_angle = MAX_STEER * steering_share(3.6 * speed)
        wish = _steer_within(math.atan(WHEELBASE_M * curvature) / max_angle, 1.0)
        change = _steer_within(wish - self.value, RATE * self.dt_s)
        self.value = _steer_within(self.value + change, 1.0)
        return self.value


def steering_share(kmh: float) -> float:
    """Return the share of the maximum steering angle that CARLA's vehicles apply at a speed."""
    for (low, share), (high, share_high) in pairwise(CURVE):
        if kmh <= high:
            return share + (share_high - share) * max(kmh - low, 0.0) / (high - low)
    return CURVE[-1][1]


def _steer_within(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
