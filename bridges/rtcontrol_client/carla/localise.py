"""Where the vehicle is on its way: followed from step to step, since inside a junction the map alone cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

from rtcontrol_client.carla.intent import Intent, Turn
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.neighbours import Body
from rtcontrol_client.carla.route import LaneLine, Route

# Farther off the lane, or farther along it between two steps: somebody put the vehicle elsewhere.
LOST_M, JUMP_M = 6.0, 25.0
# The lane is another one from so far beyond the middle between the two.
FIRM_M = 0.05


@dataclass(slots=True)
class Passed:
    """What a step led over: `sideways_m` by how much farther right of its lane's centre the vehicle is for being in
    another lane now; `entered`: a junction; `lost`: elsewhere."""

    sideways_m: float = 0.0
    entered: bool = False
    lost: bool = False


class Track:
    """The lane that a vehicle is on, how far along and how far right of its centre line."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self.s = 0.0
        self.lateral_m = 0.0
        self._lane: LaneLine | None = None

    def route(self, turn: Turn) -> Route:
        """The way ahead from the start of our lane, under the choice of turn for the next junction."""
        lane = self._here()
        return self.road.route(lane, "straight" if lane.junction else turn)

    def follow(self, own: Body, intent: Intent) -> Passed:
        """The vehicle has moved on. The turn of the intent is taken at a junction and spent behind it.

        ValueError: there is no road."""
        passed = Passed()
        if self._lane is None:
            self._find(own)
            return passed
        before = self.s
        self.s, self.lateral_m = self._lane.project(own.x, own.y, self.s)
        if abs(self.lateral_m) > LOST_M or abs(self.s - before) > JUMP_M or self.s < -FIRM_M:
            was = self._lane
            self._find(own)
            passed.lost = self._lane is not was
            return passed
        self._go_on(own, intent, passed)
        self._go_over(own, passed)
        return passed

    def _go_on(self, own: Body, intent: Intent, passed: Passed) -> None:
        for _ in range(8):
            lane = self._here()
            if self.s <= lane.length or not lane.after:
                return
            following = self.route(intent.turn).lanes[1]
            passed.entered = passed.entered or (following.junction and not lane.junction)
            if lane.junction and not following.junction:
                intent.passed_junction()
            self._lane = following
            self.s, self.lateral_m = following.project(own.x, own.y, self.s - lane.length)

    def _go_over(self, own: Body, passed: Passed) -> None:
        lane = self._here()
        if abs(self.lateral_m) <= 0.5 * lane.width + FIRM_M:
            return
        beside = lane.left if self.lateral_m < 0 else lane.right
        if beside is None:
            return
        was = self.lateral_m
        self.s, self.lateral_m = beside.project(own.x, own.y, self.s * beside.length / lane.length)
        self._lane = beside
        passed.sideways_m = self.lateral_m - was

    def _find(self, own: Body) -> None:
        position = self.road.place(own.x, own.y, own.z, own.yaw_deg)
        if position is None:
            raise ValueError("there is no road")
        self._lane, self.s, self.lateral_m = position

    def _here(self) -> LaneLine:
        if self._lane is None:
            raise ValueError("the vehicle was not looked for yet")
        return self._lane
