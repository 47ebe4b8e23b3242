"""A vehicle that clients drive: a kinematic bicycle about its middle on flat, dry ground. It is no model of CARLA's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

WHEELBASE_M = 2.85
MAX_STEER = math.radians(70.0)
# Speed in km/h and share of the steering that is left at it: the steering curve that CARLA's vehicles have.
STEERING_CURVE = ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))
STEER_RATE = math.radians(180.0)
PUSH_MPS2 = 4.0
# Above the speed at which this power gives PUSH_MPS2, the push falls with speed.
POWER_W_PER_KG = 40.0
BRAKE_MPS2 = 8.0
ROLLING_MPS2 = 0.15
DRAG_PER_M = 0.0006
GRIP_MPS2 = 8.0


@dataclass(frozen=True)
class Control:
    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False
    reverse: bool = False
    manual_gear_shift: bool = False
    gear: int = 0

    @classmethod
    def read(cls, values: list[Any]) -> Control:
        throttle, steer, brake, hand_brake, reverse, manual, gear = values
        within = [min(max(value, least), 1.0) for value, least in ((throttle, 0.0), (steer, -1.0), (brake, 0.0))]
        return cls(*within, bool(hand_brake), bool(reverse), bool(manual), int(gear))


def steering_left(speed_kmh: float) -> float:
    """Share of the steering that is left at a speed."""
    before = STEERING_CURVE[0]
    for point in STEERING_CURVE[1:]:
        if speed_kmh <= point[0]:
            return before[1] + (point[1] - before[1]) * (speed_kmh - before[0]) / (point[0] - before[0])
        before = point
    return before[1]


class Bicycle:
    """Place, speed and wheels of one vehicle; `speed` is negative in reverse."""

    def __init__(self, x: float, y: float, heading: float) -> None:
        self.x, self.y, self.heading = x, y, heading
        self.speed = 0.0
        self.wheels = 0.0
        self.turn_rate = 0.0
        self.slip = 0.0
        self.acceleration = 0.0
        self.control = Control()

    def velocity(self) -> tuple[float, float]:
        direction = self.heading + self.slip
        return self.speed * math.cos(direction), self.speed * math.sin(direction)

    def step(self, delta_s: float, substeps: int) -> None:
        before = self.speed
        for _ in range(substeps):
            self.substep(delta_s / substeps)
        self.acceleration = (self.speed - before) / delta_s

    def substep(self, delta_s: float) -> None:
        control, speed = self.control, self.speed
        pace = abs(speed)
        # To the right is positive for CARLA and negative here.
        wanted = -control.steer * MAX_STEER * steering_left(pace * 3.6)
        self.wheels += min(max(wanted - self.wheels, -STEER_RATE * delta_s), STEER_RATE * delta_s)
        push = control.throttle * min(PUSH_MPS2, POWER_W_PER_KG / max(pace, 0.1))
        speed += (-push if control.reverse else push) * delta_s
        hold = BRAKE_MPS2 * (1.0 if control.hand_brake else control.brake)
        if pace > 0.0 or push == 0.0:
            hold += ROLLING_MPS2 + DRAG_PER_M * pace * pace
        # Brakes and friction stop a vehicle; they never drive it the other way.
        self.speed = math.copysign(max(abs(speed) - hold * delta_s, 0.0), speed)
        self.slip = math.atan(0.5 * math.tan(self.wheels))
        curvature = math.cos(self.slip) * math.tan(self.wheels) / WHEELBASE_M
        most = GRIP_MPS2 / max(self.speed * self.speed, 1.0)
        if abs(curvature) > most:
            curvature = math.copysign(most, curvature)
            self.slip = math.asin(min(max(0.5 * WHEELBASE_M * curvature, -1.0), 1.0))
        self.turn_rate = self.speed * curvature
        direction = self.heading + self.slip + 0.5 * self.turn_rate * delta_s
        self.x += self.speed * math.cos(direction) * delta_s
        self.y += self.speed * math.sin(direction) * delta_s
        self.heading += self.turn_rate * delta_s
