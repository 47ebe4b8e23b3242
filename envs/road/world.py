"""A road with traffic and junctions with lights, along one coordinate: the training world of the driver model.

Cars have a place along the road and a lane. A lane change takes `SHIFT_S`; after half of this time the car counts as in
the new lane. Calls have the meaning of the CARLA bridge, by the same code (`rtcontrol_client.carla.intent`), and
observations the same fields. There is no steering: keeping the lane is the bridge's task.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol_client.carla.intent import FULL_BRAKE, KMH, Intent, Near, Place, Turn, emergency, room, slowing_m, wanted
from rtcontrol_client.carla.observing import LIGHT_SIGHT_M

LENGTH = 4.6
AHEAD_M, BEHIND_M = 220.0, 200.0
CLEAR_M = 14.0  # the least distance between new cars


@dataclass(slots=True)
class Car:
    """A car. `s` is the place of the front bumper along the road, m; `lane` counts from the left, 1 the leftmost;
    speeds in m/s."""

    s: float
    lane: int
    speed: float
    wish: float


class Traffic:
    """The cars around a place that moves along an endless road. `cars` is public for setting up a scene."""

    def __init__(self, rng: random.Random, lanes: int, spacing_m: float, pace: float) -> None:
        """Create traffic with the mean distance `spacing_m` in a lane. Cars prefer 55 to 105 % of the speed `pace`,
        m/s."""
        self.rng, self.lanes, self.spacing_m, self.pace = rng, lanes, spacing_m, pace
        self.cars: list[Car] = []

    def populate(self, centre: float) -> None:
        """Create cars from far back to far ahead, none within `CLEAR_M` and a car's length of the centre."""
        self.cars.clear()
        for lane in range(1, self.lanes + 1):
            s = centre - BEHIND_M + self.rng.uniform(0, 2 * self.spacing_m)
            while s < centre + AHEAD_M:
                if abs(s - centre) > CLEAR_M + LENGTH:
                    self.cars.append(self._new(s, lane))
                s += CLEAR_M + LENGTH + self.rng.expovariate(1 / self.spacing_m)

    def lead(self, car: Car, gap: float, speed: float) -> None:
        """Put a car ahead of `car` in the same lane, at this gap and speed, and remove the cars between them."""
        s = car.s + LENGTH + gap
        near = [o for o in self.cars if o.lane == car.lane and car.s <= o.s < s + CLEAR_M + LENGTH]
        self.cars = [other for other in self.cars if other not in near]
        self.cars.append(Car(s, car.lane, speed, speed))

    def step(self, dt: float, own: Sequence[Car], line: float | None) -> None:
        """Advance one step; cars see each other and the `own` cars, and stop at `line` for a red light ahead (None:
        green)."""
        queues: dict[int, list[Car]] = {}
        for car in (*self.cars, *own):
            queues.setdefault(car.lane, []).append(car)
        mine = {id(car) for car in own}
        for queue in queues.values():
            queue.sort(key=lambda car: -car.s)
            leader: Car | None = None
            for car in queue:
                if id(car) not in mine:
                    self._drive(car, leader, line, dt)
                leader = car

    def recycle(self, centre: float) -> None:
        """Move cars that are out of sight to the other end of the road, if there is room."""
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


STEPS_A_SECOND = 32
DT = 1 / STEPS_A_SECOND
SHIFT_S = 3.0
LAG_S = 0.3  # share of the wanted acceleration
SIGHT_M = 150.0
GREEN_S, YELLOW_S, RED_S = 20.0, 3.0, 25.0
STRAIGHT_M, TURN_M = 26.0, 18.0  # metres through a junction
TURN_KMH = 28.0  # the largest safe speed in a corner
LIMITS = (30, 40, 50, 60, 70, 80, 90)
SEGMENT_M = (220.0, 600.0)
Light = Literal["none", "green", "yellow", "red"]


@dataclass(slots=True)
class Junction:
    """The next junction: its start along the road, m; the phase of its light (if any) at time 0; and the direction
    (`way`) of a car inside."""

    place: float
    lit: bool
    phase: float
    way: Turn | None = None

    def light(self, time_s: float) -> Light:
        if not self.lit:
            return "none"
        phase = (time_s + self.phase) % (GREEN_S + YELLOW_S + RED_S)
        return "green" if phase < GREEN_S else "yellow" if phase < GREEN_S + YELLOW_S else "red"


class Road:
    """The physics of the road. `counts` counts crashes, red lights, fast corners, emergency brakes and refused
    calls."""

    step_s = DT

    def __init__(self, seed: int = 0) -> None:
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start a drive: the road, its traffic and lights follow from the seed."""
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
        self._lasting = set[str]()
        self._next_junction(rng.uniform(180.0, SEGMENT_M[1]))
        self.traffic.populate(0.0)
        self.traffic.lead(self.car, rng.uniform(25.0, 90.0), self.limit * rng.uniform(0.5, 0.85))

    @property
    def lanes(self) -> int:
        return self.traffic.lanes

    # -- calls and observations --------------------------------------------------------------------------------------

    def obey(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Execute a call of the agent `driver`."""
        if self._late(arguments.get("at_next_junction")) or self.intent.obey(name, arguments, self.place()) is not None:
            self.counts["refused calls"] += 1
            return
        if wish := self.intent.take_wish():
            if room(self.car.speed, *self._near(self.car.lane + wish)):
                self.shift, self._progress = wish, 0.0
            else:
                self.counts["refused calls"] += 1

    def place(self) -> Place:
        lane, lanes = self._shown_lane()
        return Place(self.car.speed * KMH, lane, lanes, self.shift, self.junction_m())

    def junction_m(self) -> float | None:
        """Return the distance to the entry of the next junction, 0 inside one, or None if no junction is near."""
        if self.junction.way is not None:
            return 0.0
        left = self.junction.place - self.car.s
        return left if left < SIGHT_M else None

    def light(self) -> Light:
        """Return the light of a junction that is near enough to be seen, as in the CARLA bridge (`LIGHT_SIGHT_M`)."""
        if self.junction.way is not None or self.junction.place - self.car.s > LIGHT_SIGHT_M:
            return "none"
        return self.junction.light(self.time)

    def observe(self) -> dict[str, Any]:
        """Return the agent's observation, as in the CARLA bridge."""
        lane, lanes = self._shown_lane()
        seen: dict[str, Any] = {
            "speed_kmh": self.car.speed * KMH,
            "limit_kmh": self.limit * KMH,
            "lane": lane,
            "lanes": lanes,
            "shift": self.shift,
            "light": self.light(),
            "junction_m": self.junction_m(),
            "turn": self.intent.turn,
        }
        turning = self._turning()
        for name, side in (("", 0), ("left_", -1), ("right_", 1)):
            if not turning and 1 <= lane + side <= lanes:
                for end, near in zip(("ahead", "behind"), self._near(self.car.lane + side), strict=True):
                    if near is not None and near.gap_m < SIGHT_M:
                        seen |= {f"{name}{end}_m": near.gap_m, f"{name}{end}_kmh": near.speed * KMH}
        return seen

    def neighbours(self, lane: int) -> tuple[Car | None, Car | None]:
        """Return the nearest cars in a lane, ahead and back; one next to us is ahead if its bumper is."""
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

    def _late(self, turn: Any) -> bool:
        """Return whether a turn comes too late to slow down for it, as in the CARLA bridge."""
        if turn not in ("left", "right") or turn == self.intent.turn or self.junction.way is not None:
            return False
        return self.junction.place - self.car.s < slowing_m(self.car.speed, TURN_KMH / KMH)

    # -- time ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Advance by 1/32 s."""
        car = self.car
        self.time += DT
        ahead = None if self._turning() else self._near(car.lane)[0]
        want = wanted(self.intent, car.speed, self.limit, ahead)
        if braking := emergency(car.speed, ahead):
            want = -FULL_BRAKE
        self._see("emergency brakes", braking)
        self.acceleration += (want - self.acceleration) * min(1.0, DT / LAG_S)
        car.speed = max(0.0, car.speed + self.acceleration * DT)
        car.s += car.speed * DT
        self._shift()
        self._pass()
        red = self.junction.way is None and self.junction.light(self.time) in ("red", "yellow")
        self.traffic.step(DT, self._own(), self.junction.place if red else None)
        self.traffic.recycle(car.s)
        self._crash()

    def _own(self) -> list[Car]:
        """Return our car for the other cars: it occupies two lanes during a change."""
        if self._turning():
            return []
        other = self.car.lane + (self.shift if self._progress < 0.5 else -self.shift)
        cars = [self.car]
        if self.shift:
            cars.append(Car(self.car.s, other, self.car.speed, 0.0))
        return cars

    def _shift(self) -> None:
        if not self.shift:
            return
        before, self._progress = self._progress, self._progress + DT / SHIFT_S
        if before < 0.5 <= self._progress:
            self.car.lane += self.shift
        if self._progress >= 1.0:
            self.shift, self._progress = 0, 0.0

    def _pass(self) -> None:
        if self.junction.way is None and self.car.s >= self.junction.place:
            self.counts["red light"] += self.junction.light(self.time) == "red"
            leftmost, rightmost = self.car.lane == 1, self.car.lane == self.lanes
            may = {"straight": True, "left": leftmost and not self.shift, "right": rightmost and not self.shift}
            self.junction.way = self.intent.turn if may[self.intent.turn] else "straight"
            self._see("corner", False)
        if self.junction.way is None:
            return
        if self.junction.way != "straight" and self.car.speed * KMH > TURN_KMH:
            self._see("corner", True)
        if self.car.s >= self.junction.place + (STRAIGHT_M if self.junction.way == "straight" else TURN_M):
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
        lit = self.traffic.rng.random() < 0.75
        phase = self.traffic.rng.uniform(0.0, GREEN_S + YELLOW_S + RED_S)
        self.junction = Junction(self.car.s + distance, lit, phase)

    def _turning(self) -> bool:
        return self.junction.way is not None and self.junction.way != "straight"

    def _shown_lane(self) -> tuple[int, int]:
        return (1, 1) if self._turning() else (self.car.lane, self.lanes)

    def _see(self, name: str, on: bool) -> None:
        """Count an event if it starts now."""
        self.counts[name] += on and name not in self._lasting
        (self._lasting.add if on else self._lasting.discard)(name)

    def _crash(self) -> None:
        taken = {car.lane for car in self._own()}
        touching = any(car.lane in taken and abs(car.s - self.car.s) < LENGTH for car in self.traffic.cars)
        self._see("crash", touching)

    def _near(self, lane: int) -> tuple[Near | None, Near | None]:
        """Return the nearest cars ahead and back, by their gaps."""
        ahead, behind = self.neighbours(lane)
        return (
            None if ahead is None else Near(max(0.0, ahead.s - LENGTH - self.car.s), ahead.speed),
            None if behind is None else Near(max(0.0, self.car.s - LENGTH - behind.s), behind.speed),
        )
