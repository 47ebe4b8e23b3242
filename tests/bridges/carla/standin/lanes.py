"""The town's lanes as directed centre lines: where vehicles are put, and by which lane they come to the junction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from tests.bridges.carla.standin.geometry import Curve, Pose
from tests.bridges.carla.standin.roads import ARMS, LANES, REACH_M, WIDTH_M, incoming, roads

# A vehicle is on the lane whose centre is nearer to it than this, and which it follows rather than crosses.
REACHES_M = 2.4
FOLLOWS = math.radians(60.0)


@dataclass(frozen=True)
class Lane:
    """A lane in its driving direction, by its road's and its own number in OpenDRIVE."""

    road: int
    number: int
    curve: Curve

    @property
    def length(self) -> float:
        return self.curve.length


class Network:
    """The lanes that lead to the junction or away from it, and the arm that each of the former enters by."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[int, int], Lane] = {}
        for road in roads().values():
            for number in range(1, LANES + 1) if not road.link else ():
                right = WIDTH_M * (number - 0.5)
                self.lanes[road.number, -number] = Lane(road.number, -number, road.curve.shifted(-right))
                self.lanes[road.number, number] = Lane(road.number, number, road.curve.shifted(right).reversed())
        self.arms = {arm: [self.lanes[incoming(arm, lane)] for lane in range(1, LANES + 1)] for arm in ARMS}

    def arm_of(self, pose: Pose) -> str | None:
        """The arm by which something in a pose comes to the junction."""
        for arm, lanes in self.arms.items():
            for lane in lanes:
                on = lane.curve.project(pose.x, pose.y)
                if on and abs(on[1]) < REACHES_M:
                    turned = math.remainder(pose.heading - lane.curve.at(on[0]).heading, 2 * math.pi)
                    if abs(turned) < FOLLOWS:
                        return arm
        return None


def within_junction(x: float, y: float) -> bool:
    return abs(x) < REACH_M and abs(y) < REACH_M


@cache
def network() -> Network:
    return Network()
