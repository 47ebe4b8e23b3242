"""The town's lanes as directed centre lines: where traffic runs, and which lanes a vehicle is on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

from tests.bridges.carla.standin.geometry import Curve, Pose
from tests.bridges.carla.standin.roads import HALVES, LANES, REACH_M, WIDTH_M, Road, incoming, outgoing, roads

# A vehicle is on each lane whose centre is nearer to it than this: on two of them while it changes.
REACHES_M = 2.4
# Nor is it on a lane that it crosses rather than follows.
FOLLOWS = math.radians(60.0)
# Lanes that leave one lane for different ways part over this length.
FORK_M = 14.0
CONFLICT_M = 3.0


@dataclass(eq=False)
class Lane:
    """A lane in its driving direction. `arm` is the arm by which it enters the junction, on a lane that does."""

    road: int
    number: int
    curve: Curve
    arm: str | None = None
    turn: str | None = None
    origin: Lane | None = None
    # By turn; a lane that has one way on has it as "straight".
    after: dict[str, Lane] = field(default_factory=dict)
    # Lanes over the junction that cannot be used at the same time, and those that leave the same lane.
    conflicts: list[Lane] = field(default_factory=list)
    forks: list[Lane] = field(default_factory=list)

    @property
    def in_junction(self) -> bool:
        return self.turn is not None

    @property
    def length(self) -> float:
        return self.curve.length


@dataclass(frozen=True)
class Place:
    """A vehicle on a lane: metres along it, metres to the left of its centre."""

    lane: Lane
    s: float
    left: float


class Network:
    def __init__(self) -> None:
        self.lanes: dict[tuple[int, int], Lane] = {}
        for road in roads().values():
            for number in range(1, road.lanes + 1):
                shift = WIDTH_M * (number - 0.5)
                turn = road.link.turn if road.link else None
                self.lanes[road.number, -number] = Lane(road.number, -number, road.curve.shifted(-shift), turn=turn)
                if not road.link:
                    curve = road.curve.shifted(shift).reversed()
                    self.lanes[road.number, number] = Lane(road.number, number, curve)
        for road in roads().values():
            self.connect(road)
        self.over = [lane for lane in self.lanes.values() if lane.in_junction]
        self.loops = [lane for lane in self.lanes.values() if not lane.in_junction]
        for lane in self.over:
            lane.forks = [other for other in self.over if other.origin is lane.origin and other is not lane]
            lane.conflicts = [other for other in self.over if other.origin is not lane.origin and meet(lane, other)]

    def connect(self, road: Road) -> None:
        if road.link:
            for number in range(1, road.lanes + 1):
                lane = self.lanes[road.number, -number]
                counted = road.link.lane + number - 1
                lane.origin = self.lanes[incoming(road.link.arm, counted)]
                lane.origin.arm = road.link.arm
                lane.origin.after[road.link.turn] = lane
                lane.after["straight"] = self.lanes[outgoing(road.link.to, counted)]
        elif road.number in HALVES:
            for number in range(1, LANES + 1):
                other = HALVES[road.number]
                self.lanes[road.number, -number].after["straight"] = self.lanes[other, -number]
                self.lanes[other, number].after["straight"] = self.lanes[road.number, number]

    def places(self, pose: Pose) -> list[Place]:
        """The lanes that something in a pose is on, with the nearest first."""
        x, y, heading = pose
        found = []
        for lane in self.near(x, y):
            on = lane.curve.project(x, y)
            if on and abs(on[1]) < REACHES_M:
                turned = math.remainder(heading - lane.curve.at(on[0]).heading, 2 * math.pi)
                if abs(turned) < FOLLOWS:
                    found.append(Place(lane, on[0], on[1]))
        return sorted(found, key=lambda place: abs(place.left))

    def near(self, x: float, y: float) -> list[Lane]:
        if within_junction(x, y):
            return self.over
        for number in (*HALVES, *HALVES.values()):
            on = roads()[number].curve.project(x, y)
            if on and abs(on[1]) < LANES * WIDTH_M + 1.0:
                side = 1 if on[1] > 0 else -1
                nearest = [lane * side for lane in range(1, LANES + 1) if abs(on[1] * side - beside(lane)) < REACHES_M]
                return [self.lanes[number, lane] for lane in nearest]
        return []


def beside(lane: int) -> float:
    return WIDTH_M * (lane - 0.5)


def within_junction(x: float, y: float) -> bool:
    return abs(x) < REACH_M and abs(y) < REACH_M


def meet(one: Lane, other: Lane) -> bool:
    """Whether vehicles on two lanes over the junction would touch."""
    points = [[lane.curve.at(s) for s in range(0, int(lane.length) + 1, 2)] for lane in (one, other)]
    return any(math.dist(a[:2], b[:2]) < CONFLICT_M for a in points[0] for b in points[1])


@cache
def network() -> Network:
    return Network()
