"""Where the vehicle is on its way: followed from step to step, since inside a junction the map alone cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtcontrol.bridges.carla.intent import Intent, Turn
from rtcontrol.bridges.carla.lane_line import Strand, Way
from rtcontrol.bridges.carla.lanes import TownRoad
from rtcontrol.bridges.carla.neighbours import Body
from rtcontrol.bridges.carla.route import Chain

# Farther off the lane, or farther along it between two steps: somebody put the vehicle elsewhere.
LOST_M, JUMP_M = 6.0, 25.0
# The lane is another one from so far beyond the middle between the two.
FIRM_M = 0.05


@dataclass(slots=True)
class Passed:
    """What a step led over: `sideways_m` by how much farther right of its lane's centre the vehicle is for being in
    another lane now; `junctions` behind us, each the way taken and the one asked for; `entered` one; `lost`: elsewhere.
    """

    sideways_m: float = 0.0
    junctions: list[tuple[Way, Turn]] = field(default_factory=list)
    entered: bool = False
    lost: bool = False


class Track:
    """The strand that a vehicle is on, how far along and how far right of its centre line."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self.s = 0.0
        self.lateral_m = 0.0
        self._strand: Strand | None = None
        self._asked: Turn | None = None  # at the entry of the junction that we are in

    def chain(self, turn: Turn) -> Chain:
        """The way ahead from the start of our strand, under the choice of turn for the next junction."""
        strand = self._here()
        return self.road.chain(strand, "straight" if strand.junction else turn)

    def follow(self, own: Body, intent: Intent) -> Passed:
        """The vehicle has moved on. The turn of the intent is taken at a junction and spent behind it.

        ValueError: there is no road."""
        passed = Passed()
        if self._strand is None:
            self._find(own)
            return passed
        before = self.s
        self.s, self.lateral_m = self._strand.project(own.x, own.y, self.s)
        if abs(self.lateral_m) > LOST_M or abs(self.s - before) > JUMP_M or self.s < -FIRM_M:
            was = self._strand
            self._find(own)
            passed.lost = self._strand is not was
            return passed
        self._go_on(own, intent, passed)
        self._go_over(own, passed)
        return passed

    def _go_on(self, own: Body, intent: Intent, passed: Passed) -> None:
        for _ in range(8):
            strand = self._here()
            if self.s <= strand.length or not strand.after:
                return
            following = self.chain(intent.turn).strands[1]
            if following.junction and not strand.junction:
                passed.entered, self._asked = True, intent.turn
            if strand.junction and not following.junction:
                passed.junctions.append((strand.way, self._asked or strand.way))
                intent.passed_junction()
            self._strand = following
            self.s, self.lateral_m = following.project(own.x, own.y, self.s - strand.length)

    def _go_over(self, own: Body, passed: Passed) -> None:
        strand = self._here()
        if abs(self.lateral_m) <= 0.5 * strand.width + FIRM_M:
            return
        beside = strand.left if self.lateral_m < 0 else strand.right
        if beside is None:
            return
        was = self.lateral_m
        self.s, self.lateral_m = beside.project(own.x, own.y, self.s * beside.length / strand.length)
        self._strand = beside
        passed.sideways_m = self.lateral_m - was

    def _find(self, own: Body) -> None:
        position = self.road.place(own.x, own.y, own.z, own.yaw_deg)
        if position is None:
            raise ValueError("there is no road")
        self._strand, self.s, self.lateral_m = position.strand, position.s, position.lateral_m
        self._asked = position.strand.way if position.in_junction else None

    def _here(self) -> Strand:
        if self._strand is None:
            raise ValueError("the vehicle was not looked for yet")
        return self._strand
