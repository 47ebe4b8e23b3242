"""A simple world to train the driver model: a road with traffic, junctions and traffic lights, along one coordinate.

A car has a position along the road and a lane. A lane change takes `SHIFT_S`; after half of this time the car counts as
in the new lane. Calls have the same effects as in the CARLA bridge, since both use `rtcontrol_client.carla.intent`, and
observations have the same fields. Nothing steers here, since in CARLA the bridge keeps the car in its lane.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol_client.carla import intent as rules
from rtcontrol_client.carla.intent import FULL_BRAKE, KMH, CallContext, Intent, NearVehicle, Turn
from rtcontrol_client.carla.observing import LIGHT_SIGHT_M

LENGTH = 4.6
AHEAD_M, BEHIND_M = 220.0, 200.0
CLEAR_M = 14.0  # minimum distance between new cars


@dataclass(slots=True)
class Car:
    """A car. `s` is the position of its front bumper along the road in metres; `lane` counts from the left, starting at
    1; `speed` and the preferred speed are in m/s."""

    s: float
    lane: int
    speed: float
    preferred_speed: float


class Traffic:
    """The other cars on an endless road, near our car. `cars` is public, so that a test or training can set them."""

    def __init__(self, rng: random.Random, lanes: int, spacing_m: float, pace: float) -> None:
        """Create traffic. `spacing_m` is the mean gap in a lane. Cars prefer speeds of 55 to 105 % of `pace` (m/s)."""
        self.rng, self.lanes, self.spacing_m, self.pace = rng, lanes, spacing_m, pace
        self.cars: list[Car] = []

    def populate(self, centre: float) -> None:
        """Replace all cars by new cars from `centre - BEHIND_M` to `centre + AHEAD_M`, but leave a gap at `centre`."""
        self.cars.clear()
        for lane in range(1, self.lanes + 1):
            s = centre - BEHIND_M + self.rng.uniform(0, 2 * self.spacing_m)
            while s < centre + AHEAD_M:
                if abs(s - centre) > CLEAR_M + LENGTH:
                    self.cars.append(self._new_car(s, lane))
                s += CLEAR_M + LENGTH + self.rng.expovariate(1 / self.spacing_m)

    def place_ahead(self, car: Car, gap: float, speed: float) -> None:
        """Add a car ahead of `car` in the same lane, with this gap and speed, and remove the cars between the two."""
        s = car.s + LENGTH + gap
        near = [o for o in self.cars if o.lane == car.lane and car.s <= o.s < s + CLEAR_M + LENGTH]
        self.cars = [other for other in self.cars if other not in near]
        self.cars.append(Car(s, car.lane, speed, speed))

    def step(self, dt: float, ours: Sequence[Car], stop_line: float | None) -> None:
        """Advance all cars by `dt` seconds. Each follows the car ahead in its lane, which may be in `ours`, and stops
        at `stop_line` (None: the light is green)."""
        queues: dict[int, list[Car]] = {}
        for car in (*self.cars, *ours):
            queues.setdefault(car.lane, []).append(car)
        our_ids = {id(car) for car in ours}
        for cars in queues.values():
            cars.sort(key=lambda car: -car.s)
            leader: Car | None = None
            for car in cars:
                if id(car) not in our_ids:
                    self._drive_car(car, leader, stop_line, dt)
                leader = car

    def recycle(self, centre: float) -> None:
        """Move cars that are far from `centre` to the other end of the road, if there is room."""
        for car in self.cars:
            if car.s > centre + AHEAD_M:
                self._move_car(car, centre - BEHIND_M)
            elif car.s < centre - BEHIND_M:
                self._move_car(car, centre + AHEAD_M)

    def _move_car(self, car: Car, s: float) -> None:
        lane = self.rng.randint(1, self.lanes)
        if all(other.lane != lane or abs(other.s - s) > CLEAR_M + LENGTH for other in self.cars):
            new = self._new_car(s, lane)
            car.s, car.lane, car.speed, car.preferred_speed = new.s, new.lane, new.speed, new.preferred_speed

    def _new_car(self, s: float, lane: int) -> Car:
        preferred = self.pace * self.rng.uniform(0.55, 1.05)
        return Car(s, lane, preferred * self.rng.uniform(0.8, 1.0), preferred)

    def _drive_car(self, car: Car, leader: Car | None, stop_line: float | None, dt: float) -> None:
        acceleration = 0.8 * (car.preferred_speed - car.speed)
        if leader is not None:
            gap = leader.s - LENGTH - car.s
            acceleration = min(acceleration, 0.25 * (gap - 4.0 - 1.2 * car.speed) + 0.9 * (leader.speed - car.speed))
        if stop_line is not None and (left := stop_line - car.s) > 0 and car.speed * car.speed < 2 * 5.0 * left:
            acceleration = min(acceleration, 0.25 * (left - 2.0 - 1.2 * car.speed) - 0.9 * car.speed)
        car.speed = max(0.0, car.speed + max(-8.0, min(2.0, acceleration)) * dt)
        car.s += car.speed * dt


STEPS_A_SECOND = 32
DT = 1 / STEPS_A_SECOND
SHIFT_S = 3.0
LAG_S = 0.3  # the acceleration follows its target with this time constant
SIGHT_M = 150.0
GREEN_S, YELLOW_S, RED_S = 20.0, 3.0, 25.0
STRAIGHT_M, TURN_M = 26.0, 18.0  # lengths of the paths through a junction
TURN_KMH = 28.0  # the maximum safe speed in a turn
LIMITS = (30, 40, 50, 60, 70, 80, 90)
SEGMENT_M = (220.0, 600.0)
Light = Literal["none", "green", "yellow", "red"]


@dataclass(slots=True)
class Junction:
    """The next junction. `start` is its position along the road in metres, `phase` the phase of its light in seconds at
    time 0, and `way` the direction in which our car crosses it (None: our car has not entered the junction)."""

    start: float
    has_light: bool
    phase: float
    way: Turn | None = None

    def light(self, time_s: float) -> Light:
        if not self.has_light:
            return "none"
        phase = (time_s + self.phase) % (GREEN_S + YELLOW_S + RED_S)
        return "green" if phase < GREEN_S else "yellow" if phase < GREEN_S + YELLOW_S else "red"


class Road:
    """The road with our car and its traffic. `counts` has the numbers of crashes, red lights, fast corners, emergency
    brakes and refused calls."""

    step_s = DT

    def __init__(self, seed: int = 0) -> None:
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start a drive; the seed determines the road, its traffic and its lights."""
        rng = random.Random(f"road {seed}")
        lanes = rng.choice((2, 3, 3, 3, 4))
        self.limit = rng.choice(LIMITS) / KMH
        self.traffic = Traffic(rng, lanes, rng.choice((50.0, 90.0, 160.0)), self.limit)
        self.car = Car(0.0, rng.randint(1, lanes), self.limit * rng.uniform(0.3, 1.0), 0.0)
        self.intent = Intent()
        self.acceleration = 0.0
        self.shift, self._progress = 0, 0.0
        self.time = 0.0
        self.counts: Counter[str] = Counter()
        self.ways: list[Turn] = []
        self._ongoing_events = set[str]()
        self._next_junction(rng.uniform(180.0, SEGMENT_M[1]))
        self.traffic.populate(0.0)
        self.traffic.place_ahead(self.car, rng.uniform(25.0, 90.0), self.limit * rng.uniform(0.5, 0.85))

    @property
    def lanes(self) -> int:
        return self.traffic.lanes

    # -- calls and observations --------------------------------------------------------------------------------------

    def obey(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Execute a call of the agent `driver`."""
        turn = arguments.get("at_next_junction")
        if self._is_too_late(turn) or self.intent.obey(name, arguments, self.place()) is not None:
            self.counts["refused calls"] += 1
            return
        if wish := self.intent.pop_requested_change():
            if rules.has_room(self.car.speed, *self._near_cars(self.car.lane + wish)):
                self.shift, self._progress = wish, 0.0
            else:
                self.counts["refused calls"] += 1

    def place(self) -> CallContext:
        lane, lanes = self._shown_lane()
        return CallContext(self.car.speed * KMH, lane, lanes, self.shift, self.junction_m())

    def junction_m(self) -> float | None:
        """Return the distance to the next junction in metres: 0 inside a junction, None if it is not within SIGHT_M."""
        if self.junction.way is not None:
            return 0.0
        distance = self.junction.start - self.car.s
        return distance if distance < SIGHT_M else None

    def light(self) -> Light:
        """Return the light of the next junction, or "none" if it is farther away than LIGHT_SIGHT_M, as in CARLA."""
        if self.junction.way is not None or self.junction.start - self.car.s > LIGHT_SIGHT_M:
            return "none"
        return self.junction.light(self.time)

    def observe(self) -> dict[str, Any]:
        """Return an observation for the agent `driver`, with the same fields as in the CARLA bridge."""
        lane, lanes = self._shown_lane()
        data: dict[str, Any] = {
            "speed_kmh": self.car.speed * KMH,
            "limit_kmh": self.limit * KMH,
            "lane": lane,
            "lanes": lanes,
            "shift": self.shift,
            "light": self.light(),
            "junction_m": self.junction_m(),
            "turn": self.intent.turn,
        }
        turning = self._is_turning()
        for name, side in (("", 0), ("left_", -1), ("right_", 1)):
            if not turning and 1 <= lane + side <= lanes:
                for end, near in zip(("ahead", "behind"), self._near_cars(self.car.lane + side), strict=True):
                    if near is not None and near.gap_m < SIGHT_M:
                        data |= {f"{name}{end}_m": near.gap_m, f"{name}{end}_kmh": near.speed * KMH}
        return data

    def neighbours(self, lane: int) -> tuple[Car | None, Car | None]:
        """Return the nearest car ahead and the nearest car behind in a lane, by the positions of front bumpers."""
        ahead = behind = None
        for car in self.traffic.cars:
            if car.lane != lane:
                continue
            if car.s >= self.car.s:
                if ahead is None or car.s < ahead.s:
                    ahead = car
            elif behind is None or car.s > behind.s:
                behind = car
        return ahead, behind

    def _is_too_late(self, turn: Any) -> bool:
        """Return whether the next junction is too near to slow down for this turn, as in the CARLA bridge."""
        if turn not in ("left", "right") or turn == self.intent.turn or self.junction.way is not None:
            return False
        return self.junction.start - self.car.s < rules.slowing_distance_m(self.car.speed, TURN_KMH / KMH)

    # -- time ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Advance the road by one step of 1/32 s."""
        car = self.car
        self.time += DT
        ahead = None if self._is_turning() else self._near_cars(car.lane)[0]
        target = rules.target_acceleration(self.intent, car.speed, self.limit, ahead)
        if braking := rules.needs_emergency_brake(car.speed, ahead):
            target = -FULL_BRAKE
        self._count_if_started("emergency brakes", braking)
        self.acceleration += (target - self.acceleration) * min(1.0, DT / LAG_S)
        car.speed = max(0.0, car.speed + self.acceleration * DT)
        car.s += car.speed * DT
        self._continue_shift()
        self._continue_junction()
        red = self.junction.way is None and self.junction.light(self.time) in ("red", "yellow")
        self.traffic.step(DT, self._occupied_by_us(), self.junction.start if red else None)
        self.traffic.recycle(car.s)
        self._count_crashes()

    def _occupied_by_us(self) -> list[Car]:
        """Return our car as an obstacle for others: in both lanes during a lane change, and nowhere in a turn."""
        if self._is_turning():
            return []
        other = self.car.lane + (self.shift if self._progress < 0.5 else -self.shift)
        cars = [self.car]
        if self.shift:
            cars.append(Car(self.car.s, other, self.car.speed, 0.0))
        return cars

    def _continue_shift(self) -> None:
        if not self.shift:
            return
        before, self._progress = self._progress, self._progress + DT / SHIFT_S
        if before < 0.5 <= self._progress:
            self.car.lane += self.shift
        if self._progress >= 1.0:
            self.shift, self._progress = 0, 0.0

    def _continue_junction(self) -> None:
        if self.junction.way is None and self.car.s >= self.junction.start:
            self.counts["red light"] += self.junction.light(self.time) == "red"
            leftmost, rightmost = self.car.lane == 1, self.car.lane == self.lanes
            possible = {"straight": True, "left": leftmost and not self.shift, "right": rightmost and not self.shift}
            self.junction.way = self.intent.turn if possible[self.intent.turn] else "straight"
            self._count_if_started("corner", False)
        if self.junction.way is None:
            return
        if self.junction.way != "straight" and self.car.speed * KMH > TURN_KMH:
            self._count_if_started("corner", True)
        if self.car.s >= self.junction.start + (STRAIGHT_M if self.junction.way == "straight" else TURN_M):
            way = self.junction.way
            self.ways.append(way)
            self.intent.passed_junction()
            self._next_junction(self.traffic.rng.uniform(*SEGMENT_M))
            self.limit = self.traffic.rng.choice(LIMITS) / KMH
            self.traffic.pace = self.limit
            if way != "straight":
                self.car.lane = 1 if way == "left" else self.lanes
                self.traffic.populate(self.car.s)

    def _next_junction(self, distance: float) -> None:
        has_light = self.traffic.rng.random() < 0.75
        phase = self.traffic.rng.uniform(0.0, GREEN_S + YELLOW_S + RED_S)
        self.junction = Junction(self.car.s + distance, has_light, phase)

    def _is_turning(self) -> bool:
        return self.junction.way is not None and self.junction.way != "straight"

    def _shown_lane(self) -> tuple[int, int]:
        return (1, 1) if self._is_turning() else (self.car.lane, self.lanes)

    def _count_if_started(self, event: str, ongoing: bool) -> None:
        """Count an event once, when it starts; `ongoing` is whether it takes place in this step."""
        self.counts[event] += ongoing and event not in self._ongoing_events
        (self._ongoing_events.add if ongoing else self._ongoing_events.discard)(event)

    def _count_crashes(self) -> None:
        occupied = {car.lane for car in self._occupied_by_us()}
        touching = any(car.lane in occupied and abs(car.s - self.car.s) < LENGTH for car in self.traffic.cars)
        self._count_if_started("crash", touching)

    def _near_cars(self, lane: int) -> tuple[NearVehicle | None, NearVehicle | None]:
        """Return gap and speed of the nearest car ahead and of the nearest car behind in a lane."""
        ahead, behind = self.neighbours(lane)
        return (
            None if ahead is None else NearVehicle(max(0.0, ahead.s - LENGTH - self.car.s), ahead.speed),
            None if behind is None else NearVehicle(max(0.0, self.car.s - LENGTH - behind.s), behind.speed),
        )
