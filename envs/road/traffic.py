"""The other cars of the road: each keeps its lane, a speed it likes, and a gap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LENGTH = 4.6
AHEAD_M, BEHIND_M = 220.0, 200.0
CLEAR_M = 14.0  # nobody is put nearer than this to anybody


@dataclass(slots=True)
class Car:
    """`s` is the front bumper's place along the road, m; `lane` counts from the left, 1 the leftmost; speeds in m/s."""

    s: float
    lane: int
    speed: float
    wish: float


class Traffic:
    """Cars around a place that moves along an endless road. `cars` is open to whoever sets up a scene."""

    def __init__(self, rng: random.Random, lanes: int, spacing_m: float, pace: float) -> None:
        """`spacing_m` is the mean distance in a lane; `pace` the liked speed, m/s, of which each likes 55 to 105 %."""
        self.rng, self.lanes, self.spacing_m, self.pace = rng, lanes, spacing_m, pace
        self.cars: list[Car] = []

    def populate(self, centre: float) -> None:
        """New cars from behind to ahead, none within `CLEAR_M` and a car's length of the centre."""
        self.cars.clear()
        for lane in range(1, self.lanes + 1):
            s = centre - BEHIND_M + self.rng.uniform(0, 2 * self.spacing_m)
            while s < centre + AHEAD_M:
                if abs(s - centre) > CLEAR_M + LENGTH:
                    self.cars.append(self._new(s, lane))
                s += CLEAR_M + LENGTH + self.rng.expovariate(1 / self.spacing_m)

    def lead(self, car: Car, gap: float, speed: float) -> None:
        """Somebody ahead of `car` in its lane, at this gap and speed, and nobody between."""
        s = car.s + LENGTH + gap
        near = [o for o in self.cars if o.lane == car.lane and car.s <= o.s < s + CLEAR_M + LENGTH]
        self.cars = [other for other in self.cars if other not in near]
        self.cars.append(Car(s, car.lane, speed, speed))

    def step(self, dt: float, own: Sequence[Car], line: float | None) -> None:
        """One step; they see each other and the `own` cars, and stop at `line` where it is red ahead (None: green)."""
        lanes: dict[int, list[Car]] = {}
        for car in (*self.cars, *own):
            lanes.setdefault(car.lane, []).append(car)
        mine = {id(car) for car in own}
        for queue in lanes.values():
            queue.sort(key=lambda car: -car.s)
            leader: Car | None = None
            for car in queue:
                if id(car) not in mine:
                    self._drive(car, leader, line, dt)
                leader = car

    def recycle(self, centre: float) -> None:
        """Whoever is out of sight comes in again at the other end, where there is room."""
        for car in self.cars:
            if car.s > centre + AHEAD_M:
                self._move(car, centre - BEHIND_M)
            elif car.s < centre - BEHIND_M:
                self._move(car, centre + AHEAD_M)

    def _move(self, car: Car, s: float) -> None:
        lane = self.rng.randint(1, self.lanes)
        if all(other.lane != lane or abs(other.s - s) > CLEAR_M + LENGTH for other in self.cars):
            fresh = self._new(s, lane)
            car.s, car.lane, car.speed, car.wish = fresh.s, fresh.lane, fresh.speed, fresh.wish

    def _new(self, s: float, lane: int) -> Car:
        wish = self.pace * self.rng.uniform(0.55, 1.05)
        return Car(s, lane, wish * self.rng.uniform(0.8, 1.0), wish)

    def _drive(self, car: Car, leader: Car | None, line: float | None, dt: float) -> None:
        wanted = 0.8 * (car.wish - car.speed)
        if leader is not None:
            gap = leader.s - LENGTH - car.s
            wanted = min(wanted, 0.25 * (gap - 4.0 - 1.2 * car.speed) + 0.9 * (leader.speed - car.speed))
        if line is not None and (left := line - car.s) > 0 and car.speed * car.speed < 2 * 5.0 * left:
            wanted = min(wanted, 0.25 * (left - 2.0 - 1.2 * car.speed) - 0.9 * car.speed)
        car.speed = max(0.0, car.speed + max(-8.0, min(2.0, wanted)) * dt)
        car.s += car.speed * dt
