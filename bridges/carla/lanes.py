"""The lanes of a town as strands: where a place is in them, and the way ahead under a choice of turn.

Everything is read from `carla.Map` once, when `TownRoad` is made; afterwards only places that nothing is known about
ask the map again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtcontrol.bridges.carla.intent import Turn
from rtcontrol.bridges.carla.lane_line import Key, Strand, between, way_of
from rtcontrol.bridges.carla.route import NONE_LIT, Chain

if TYPE_CHECKING:
    import carla

# The way ahead and behind is known at least so far.
REACH_M = 160.0
SAMPLE_M = 0.5
MOST_LANES = 12


@dataclass(frozen=True, slots=True)
class LanePosition:
    """A place in a strand: metres from its start, offset to the right of its centre line."""

    strand: Strand
    s: float
    lateral_m: float

    @property
    def in_junction(self) -> bool:
        return self.strand.junction


class TownRoad:
    """The lanes of a `carla.Map`."""

    def __init__(self, map: carla.Map) -> None:
        """Reads the whole town: about 5 microseconds a metre of lane."""
        import carla

        self.map = map
        self._location = carla.Location
        self.driving = carla.LaneType.Driving
        self._strands: dict[Key, Strand] = {}
        self._ends: dict[Key, list[Any]] = {}  # waypoints just beyond a strand's end
        self._chains: dict[tuple[Key, Turn], Chain] = {}
        self._behind: dict[Key, list[tuple[float, Strand]]] = {}
        self._counted: dict[Key, tuple[int, int]] = {}
        self._lines = NONE_LIT
        self._todo = [waypoint for pair in map.get_topology() for waypoint in pair]
        self._read_all()

    def place(self, x: float, y: float, z: float, yaw_deg: float | None = None) -> LanePosition | None:
        """Where a place is: the nearest driving lane. Inside a junction, where lanes cross, the direction decides.

        None: the map knows no lane."""
        waypoint = self.map.get_waypoint(self._location(x, y, z), True, self.driving)
        if waypoint is None:
            return None
        strand = self.strand(waypoint)
        if strand.junction and yaw_deg is not None:
            strand = self._crossing(waypoint, strand, x, y, yaw_deg)
        return LanePosition(strand, *strand.search(x, y))

    def strand(self, waypoint: carla.Waypoint) -> Strand:
        """The strand of a waypoint."""
        found = self._strands.get(_key(waypoint))
        if found is None:  # a lane without any link, or a short section that reading stepped over
            self._todo.append(waypoint)
            self._read_all()
            found = self._strands[_key(waypoint)]
        return found

    def chain(self, strand: Strand, turn: Turn) -> Chain:
        """The way ahead from the start of a strand. Inside a junction its own way is taken, whatever is asked for."""
        key = (strand.key, turn)
        found = self._chains.get(key)
        if found is None:
            found = self._chains[key] = self._ahead(strand, turn)
        return found

    def lit(self, lines: Mapping[Key, Mapping[int, float]]) -> None:
        """Lights hold for lanes: of each lane the place of the stop line of each one, by its number."""
        self._lines = lines
        self._chains.clear()

    def behind(self, strand: Strand) -> list[tuple[float, Strand]]:
        """The strand and all those that lead to it: (place of their start, negative before this one's, strand)."""
        found = self._behind.get(strand.key)
        if found is None:
            found, todo = [(0.0, strand)], [(0.0, strand)]
            while todo:
                start, here = todo.pop()
                if start < -REACH_M:
                    continue
                for before in here.before:
                    if all(before is not known for _, known in found):
                        found.append((start - before.length, before))
                        todo.append(found[-1])
            self._behind[strand.key] = found
        return found

    def strands(self) -> list[Strand]:
        return list(self._strands.values())

    # -- the way ahead ------------------------------------------------------------------------------------------------

    def _ahead(self, strand: Strand, turn: Turn) -> Chain:
        strands, asked, entry, taken = [strand], turn, None, None
        beyond = 0.0
        while beyond < REACH_M and strands[-1].after:
            here = strands[-1]
            enters = not here.junction and any(after.junction for after in here.after)
            following = _choose(here, asked if enters else "straight")
            if enters and entry is None and following.junction:
                entry = sum(known.length for known in strands)
                taken, asked = following.way, "straight"
            strands.append(following)
            beyond += following.length
        return Chain(strands, turn, taken, entry, self._lines)

    # -- reading the map ----------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """What is to be read, what lies beside it and beyond its end, which the map's topology may not name."""
        while self._todo:
            waypoint = self._todo.pop()
            if waypoint.lane_type == self.driving and _key(waypoint) not in self._strands:
                self._read(waypoint)
        self._connect()

    def _read(self, waypoint: carla.Waypoint) -> None:
        key = _key(waypoint)
        waypoints = [*reversed(_walk(waypoint, "previous")), waypoint, *_walk(waypoint, "next")]
        points = [(at.x, at.y) for at in (known.transform.location for known in waypoints)]
        if math.dist(points[0], points[-1]) < 1e-3 and len(points) < 4:  # shorter than can be told apart
            x, y = points[0]
            yaw = math.radians(waypoint.transform.rotation.yaw)
            points = [(x, y), (x + 0.01 * math.cos(yaw), y + 0.01 * math.sin(yaw))]
        middle = waypoints[len(waypoints) // 2]
        self._strands[key] = Strand(key, points, middle.lane_width, waypoint.is_junction)
        ends = self._ends[key] = [after for after in waypoints[-1].next(0.05) if _key(after) != key]
        lefts, rights = self._beside(middle, "get_left_lane"), self._beside(middle, "get_right_lane")
        self._counted[key] = len(lefts) + 1, len(lefts) + 1 + len(rights)
        self._todo += [*ends, *lefts, *rights]

    def _beside(self, middle: carla.Waypoint, side: str) -> list[Any]:
        """The lanes of the same direction on one side."""
        found: list[Any] = []
        here = getattr(middle, side)()
        while here is not None and len(found) < MOST_LANES and self._same_way(here, middle):
            found.append(here)
            here = getattr(here, side)()
        return found

    def _same_way(self, one: carla.Waypoint, other: carla.Waypoint) -> bool:
        return one.lane_type == self.driving and one.lane_id * other.lane_id > 0

    def _connect(self) -> None:
        """What leads to what, and what lies beside what; again after a strand was added."""
        self._chains.clear()
        self._behind.clear()
        for key, strand in self._strands.items():
            strand.before = []
            strand.index, strand.count = self._counted[key]
        for key, ends in list(self._ends.items()):
            after = [self._strands.get(_key(end)) for end in ends]
            self._strands[key].after = [known for known in dict.fromkeys(after) if known is not None]
        for strand in self._strands.values():
            for after_ in strand.after:
                after_.before.append(strand)
            road, section, lane = strand.key
            inner, outer = lane - (1 if lane > 0 else -1), lane + (1 if lane > 0 else -1)
            strand.left = self._strands.get((road, section, inner)) if strand.index > 1 else None
            strand.right = self._strands.get((road, section, outer)) if strand.index < strand.count else None
        inside = [strand for strand in self._strands.values() if strand.junction]
        for strand in inside:
            if any(not before.junction for before in strand.before) or not strand.before:
                _orient(strand)
        for strand in inside:
            _widen(strand)

    def _crossing(self, waypoint: carla.Waypoint, nearest: Strand, x: float, y: float, yaw_deg: float) -> Strand:
        yaw = math.radians(yaw_deg)
        heading = (math.cos(yaw), math.sin(yaw))
        best, least = nearest, math.inf
        for strand in self._strands.values():
            if not strand.junction or math.dist((strand.xs[0], strand.ys[0]), (x, y)) > strand.length + strand.width:
                continue
            s, lateral = strand.search(x, y)
            if -1.0 <= s <= strand.length + 1.0:
                apart = abs(lateral) + 3.0 * abs(between(strand.at(s)[2:], heading))
                if apart < least:
                    best, least = strand, apart
        return best


def _key(waypoint: carla.Waypoint) -> Key:
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id


def _walk(start: carla.Waypoint, way: str) -> list[Any]:
    """Waypoints from here to the lane's end (`next`) or start (`previous`), without the first."""
    key, found, sign = _key(start), [], 0.0

    def onward(here: carla.Waypoint, distance: float) -> Any:
        for candidate in getattr(here, way)(distance):
            moved = candidate.s - here.s
            # A lane that leads to its own start comes back with the same numbers.
            if _key(candidate) == key and (sign == 0.0 or moved * sign > 0.0):
                return candidate
        return None

    here = start
    while (following := onward(here, SAMPLE_M)) is not None:
        sign = sign or following.s - here.s
        found.append(following)
        here = following
    low, high, last = 0.0, SAMPLE_M, None
    for _ in range(12):
        middle = 0.5 * (low + high)
        candidate = onward(here, middle)
        low, high, last = (low, middle, last) if candidate is None else (middle, high, candidate)
    if last is not None:
        found.append(last)
    return found


def _choose(strand: Strand, turn: Turn) -> Strand:
    """Where to go on: by the turn asked for, else straight on, else whatever turns least."""

    def apart(after: Strand) -> tuple[bool, bool, float]:
        turned = abs(after.turned()) + abs(between(strand.tangents[-1], after.tangents[0]))
        return after.way != turn, after.way != "straight", turned

    return min(strand.after, key=apart)


def _orient(strand: Strand) -> None:
    """Tells a junction's strand, and those that go on from it inside, how the way turns altogether."""
    inside, end = [strand], strand
    while end.after and end.after[0].junction and end.after[0] not in inside:
        end = end.after[0]
        inside.append(end)
    way = way_of(between(strand.tangents[0], end.tangents[-1]))
    for part in inside:
        part.way = way


def _widen(strand: Strand) -> None:
    """Straight over a junction the lanes count as before it, also where each is a road of its own; in a turn: one."""
    if strand.way != "straight":
        strand.index = strand.count = 1
        strand.left = strand.right = None
        return
    if strand.count > 1 or len(strand.before) != 1 or strand.before[0].junction:
        return
    entry = strand.before[0]
    strand.index, strand.count = entry.index, entry.count
    for side, beside in (("left", entry.left), ("right", entry.right)):
        across = [after for after in beside.after if after.junction and after.way == "straight"] if beside else []
        setattr(strand, side, across[0] if across else None)
