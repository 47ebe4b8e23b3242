"""Scripted traffic: vehicles that keep their lane, their distance and the lights, seeded and never in a hurry.

Each follows the Intelligent Driver Model behind whatever is ahead on its way (Treiber, Hennecke, Helbing 2000), be it
on rails or driven by a client; a red light is a vehicle that stands at the stop line.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from tests.bridges.carla.standin import lights
from tests.bridges.carla.standin.lanes import FORK_M, Lane
from tests.bridges.carla.standin.physics import BRAKE_MPS2, PUSH_MPS2, Control
from tests.bridges.carla.standin.wire import GREEN, YELLOW

LOOK_AHEAD_M = 100.0
STANDSTILL_M = 2.5
HEADWAY_S = 1.4
PUSHES_MPS2 = 2.0
BRAKES_MPS2 = 2.5
# A vehicle stops at a light that it can stop at by braking so hard.
STOPS_MPS2 = 4.0
BENDS_MPS2 = 2.5
BEFORE_LINE_M = 1.0
PACES_KMH = (36.0, 58.0)
# How long a vehicle keeps the pace it likes before it likes another.
LIKES_S = (15.0, 45.0)


@dataclass
class Occupant:
    """A vehicle on a lane, as others see it."""

    s: float
    speed: float
    half_length: float
    number: int


class Occupancy:
    """Who is on which lane, in order; made anew at each step."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, list[Occupant]] = {}

    def add(self, lane: Lane, occupant: Occupant) -> None:
        self.lanes.setdefault(lane, []).append(occupant)
        if occupant.s < FORK_M:
            for fork in lane.forks:
                self.lanes.setdefault(fork, []).append(occupant)

    def sort(self) -> None:
        for occupants in self.lanes.values():
            occupants.sort(key=lambda occupant: occupant.s)

    def ahead(self, lane: Lane, s: float, number: int) -> Occupant | None:
        """The next after a distance along a lane."""
        occupants = self.lanes.get(lane)
        if occupants is None:
            return None
        for occupant in occupants[bisect_right(occupants, s, key=lambda occupant: occupant.s) :]:
            if occupant.number != number:
                return occupant
        return None

    def blocked(self, lane: Lane) -> bool:
        """Whether anybody is on a lane that cannot be used at the same time."""
        return any(self.lanes.get(other) for other in lane.conflicts)


class Rail:
    """The body of a vehicle of the scripted traffic."""

    def __init__(self, lane: Lane, s: float, half_length: float, seed: int) -> None:
        self.lane, self.s, self.half_length = lane, s, half_length
        self.dice = random.Random(seed)
        self.speed = self.pace = self.acceleration = self.turn_rate = 0.0
        self.pace_until_s = 0.0
        self.turn = "straight"
        # It has come too near to stop at a light that is no longer green.
        self.goes = False
        self.choose()
        self.settle()

    def choose(self) -> None:
        """Its way on from the end of its lane."""
        self.turn = self.dice.choice(list(self.lane.after))
        self.goes = False

    def settle(self) -> None:
        self.x, self.y, self.heading = self.lane.curve.at(self.s)

    @property
    def following(self) -> Lane:
        return self.lane.after[self.turn]

    @property
    def control(self) -> Control:
        """What a driver would have done to accelerate so."""
        if self.acceleration >= 0.0:
            return Control(throttle=min(self.acceleration / PUSH_MPS2, 1.0))
        return Control(brake=min(-self.acceleration / BRAKE_MPS2, 1.0))

    def velocity(self) -> tuple[float, float]:
        return self.speed * math.cos(self.heading), self.speed * math.sin(self.heading)

    def step(self, delta_s: float, elapsed_s: float, occupancy: Occupancy, number: int) -> None:
        wanted = self.wanted(elapsed_s, occupancy, number)
        before = self.speed
        self.speed = max(before + wanted * delta_s, 0.0)
        self.acceleration = (self.speed - before) / delta_s
        self.s += 0.5 * (before + self.speed) * delta_s
        if self.s >= self.lane.length:
            self.s -= self.lane.length
            self.lane = self.following
            self.choose()
        self.settle()
        self.turn_rate = self.speed * self.lane.curve.locate(self.s)[0].curvature

    def wanted(self, elapsed_s: float, occupancy: Occupancy, number: int) -> float:
        if elapsed_s >= self.pace_until_s:
            self.pace = self.dice.uniform(*PACES_KMH) / 3.6
            self.pace_until_s = elapsed_s + self.dice.uniform(*LIKES_S)
        most = self.pace_here()
        free = PUSHES_MPS2 * (1.0 - (self.speed / max(most, 0.1)) ** 4)
        wanted = max(free, -BRAKES_MPS2)
        gap, speed = self.leader(occupancy, number)
        if gap is not None:
            wanted = min(wanted, self.follow(gap, speed))
        to_line = self.lane.length - self.s - self.half_length - BEFORE_LINE_M
        if self.lane.arm is not None and to_line < LOOK_AHEAD_M and self.stops(to_line, elapsed_s, occupancy):
            wanted = min(wanted, self.follow(to_line + STANDSTILL_M, 0.0))
        return max(wanted, -BRAKE_MPS2)

    def pace_here(self) -> float:
        """The pace it likes, or what the bend that it is in or comes to allows."""
        bend, before = self.lane, 0.0
        if self.lane.arm is not None:
            bend, before = self.following, self.lane.length - self.s
        curvature = abs(bend.curve.pieces[0].curvature) if bend.in_junction else 0.0
        if curvature == 0.0:
            return self.pace
        return min(self.pace, math.sqrt(BENDS_MPS2 / curvature + 2.0 * 1.5 * before))

    def leader(self, occupancy: Occupancy, number: int) -> tuple[float | None, float]:
        """Free metres to the vehicle ahead on its way, and that one's speed."""
        lane, s, before = self.lane, self.s, -self.s
        while before < LOOK_AHEAD_M:
            found = occupancy.ahead(lane, s, number)
            if found:
                return before + found.s - found.half_length - self.half_length, found.speed
            before += lane.length
            lane, s = lane.after[self.turn] if lane is self.lane else lane.after["straight"], -math.inf
        return None, 0.0

    def follow(self, gap: float, speed: float) -> float:
        """The Intelligent Driver Model's acceleration."""
        closing = self.speed * (self.speed - speed) / (2.0 * math.sqrt(PUSHES_MPS2 * BRAKES_MPS2))
        wish = STANDSTILL_M + max(self.speed * HEADWAY_S + closing, 0.0)
        return PUSHES_MPS2 * (1.0 - (wish / max(gap, 0.1)) ** 2)

    def stops(self, to_line: float, elapsed_s: float, occupancy: Occupancy) -> bool:
        """Whether it is to stop at the line ahead, for its light or for somebody who is still crossing."""
        assert self.lane.arm is not None
        light = lights.state(self.lane.arm, elapsed_s)
        if light == GREEN:
            self.goes = False
            return occupancy.blocked(self.following) and to_line > self.speed**2 / (2.0 * BRAKE_MPS2)
        if light == YELLOW and not self.goes:
            self.goes = to_line < self.speed**2 / (2.0 * STOPS_MPS2)
        return not self.goes
