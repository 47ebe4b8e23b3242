"""The lanes of a town: where a place is in them, and the way ahead under a choice of turn.

Everything is read from `carla.Map` once, when `TownRoad` is made; afterwards only places that nothing is known about
ask the map again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcontrol_client.carla.intent import Turn
from rtcontrol_client.carla.route import NONE_LIT, Key, LaneLine, Route, between, way_of

if TYPE_CHECKING:
    import carla

# The way ahead and behind is known at least so far.
REACH_M = 160.0
SAMPLE_M = 0.5
MOST_LANES = 12


class LanePosition(NamedTuple):
    """A place in a lane: metres from its start, offset to the right of its centre line."""

    lane: LaneLine
    s: float
    lateral_m: float


class TownRoad:
    """The lanes of a `carla.Map`."""

    def __init__(self, map: carla.Map) -> None:
        """Reads the whole town: about 5 microseconds a metre of lane."""
        import carla

        self.map = map
        self._location = carla.Location
        self.driving = carla.LaneType.Driving
        self._lanes: dict[Key, LaneLine] = {}
        self._ends: dict[Key, list[Any]] = {}  # waypoints just beyond a lane's end
        self._routes: dict[tuple[Key, Turn], Route] = {}
        self._behind: dict[Key, list[tuple[float, LaneLine]]] = {}
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
        lane = self.lane_of(waypoint)
        if lane.junction and yaw_deg is not None:
            lane = self._crossing(waypoint, lane, x, y, yaw_deg)
        return LanePosition(lane, *lane.search(x, y))

    def lane_of(self, waypoint: carla.Waypoint) -> LaneLine:
        """The lane of a waypoint."""
        found = self._lanes.get(_key(waypoint))
        if found is None:  # a lane without any link, or a short section that reading stepped over
            self._todo.append(waypoint)
            self._read_all()
            found = self._lanes[_key(waypoint)]
        return found

    def route(self, lane: LaneLine, turn: Turn) -> Route:
        """The way ahead from the start of a lane. Inside a junction its own way is taken, whatever is asked for."""
        key = (lane.key, turn)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._ahead(lane, turn)
        return found

    def lit(self, lines: Mapping[Key, Mapping[int, float]]) -> None:
        """Lights hold for lanes: of each lane the place of the stop line of each one, by its number."""
        self._lines = lines
        self._routes.clear()

    def behind(self, lane: LaneLine) -> list[tuple[float, LaneLine]]:
        """The lane and all those that lead to it: (place of their start, negative before this one's, lane)."""
        found = self._behind.get(lane.key)
        if found is None:
            found, todo = [(0.0, lane)], [(0.0, lane)]
            while todo:
                start, here = todo.pop()
                if start < -REACH_M:
                    continue
                for before in here.before:
                    if all(before is not known for _, known in found):
                        found.append((start - before.length, before))
                        todo.append(found[-1])
            self._behind[lane.key] = found
        return found

    def lanes(self) -> list[LaneLine]:
        return list(self._lanes.values())

    # -- the way ahead ------------------------------------------------------------------------------------------------

    def _ahead(self, lane: LaneLine, turn: Turn) -> Route:
        lanes, asked, entry, taken = [lane], turn, None, None
        beyond = 0.0
        while beyond < REACH_M and lanes[-1].after:
            here = lanes[-1]
            enters = not here.junction and any(after.junction for after in here.after)
            following = _choose(here, asked if enters else "straight")
            if enters and entry is None and following.junction:
                entry = sum(known.length for known in lanes)
                taken, asked = following.way, "straight"
            lanes.append(following)
            beyond += following.length
        return Route(lanes, turn, taken, entry, self._lines)

    # -- reading the map ----------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """What is to be read, what lies beside it and beyond its end, which the map's topology may not name."""
        while self._todo:
            waypoint = self._todo.pop()
            if waypoint.lane_type == self.driving and _key(waypoint) not in self._lanes:
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
        self._lanes[key] = LaneLine(key, points, middle.lane_width, waypoint.is_junction)
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
        """What leads to what, and what lies beside what; again after a lane was added."""
        self._routes.clear()
        self._behind.clear()
        for key, lane in self._lanes.items():
            lane.before = []
            lane.index, lane.count = self._counted[key]
        for key, ends in list(self._ends.items()):
            after = [self._lanes.get(_key(end)) for end in ends]
            self._lanes[key].after = [known for known in dict.fromkeys(after) if known is not None]
        for lane in self._lanes.values():
            for after_ in lane.after:
                after_.before.append(lane)
            road, section, number = lane.key
            inner, outer = number - (1 if number > 0 else -1), number + (1 if number > 0 else -1)
            lane.left = self._lanes.get((road, section, inner)) if lane.index > 1 else None
            lane.right = self._lanes.get((road, section, outer)) if lane.index < lane.count else None
        inside = [lane for lane in self._lanes.values() if lane.junction]
        for lane in inside:
            if any(not before.junction for before in lane.before) or not lane.before:
                _orient(lane)
        for lane in inside:
            _widen(lane)

    def _crossing(self, waypoint: carla.Waypoint, nearest: LaneLine, x: float, y: float, yaw_deg: float) -> LaneLine:
        yaw = math.radians(yaw_deg)
        heading = (math.cos(yaw), math.sin(yaw))
        best, least = nearest, math.inf
        for lane in self._lanes.values():
            if not lane.junction or math.dist((lane.xs[0], lane.ys[0]), (x, y)) > lane.length + lane.width:
                continue
            s, lateral = lane.search(x, y)
            if -1.0 <= s <= lane.length + 1.0:
                apart = abs(lateral) + 3.0 * abs(between(lane.at(s)[2:], heading))
                if apart < least:
                    best, least = lane, apart
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


def _choose(lane: LaneLine, turn: Turn) -> LaneLine:
    """Where to go on: by the turn asked for, else straight on, else whatever turns least."""

    def apart(after: LaneLine) -> tuple[bool, bool, float]:
        turned = abs(after.turned()) + abs(between(lane.tangents[-1], after.tangents[0]))
        return after.way != turn, after.way != "straight", turned

    return min(lane.after, key=apart)


def _orient(lane: LaneLine) -> None:
    """Tells a junction's lane, and those that go on from it inside, how the way turns altogether."""
    inside, end = [lane], lane
    while end.after and end.after[0].junction and end.after[0] not in inside:
        end = end.after[0]
        inside.append(end)
    way = way_of(between(lane.tangents[0], end.tangents[-1]))
    for part in inside:
        part.way = way


def _widen(lane: LaneLine) -> None:
    """Straight over a junction the lanes count as before it, also where each is a road of its own; in a turn: one."""
    if lane.way != "straight":
        lane.index = lane.count = 1
        lane.left = lane.right = None
        return
    if lane.count > 1 or len(lane.before) != 1 or lane.before[0].junction:
        return
    entry = lane.before[0]
    lane.index, lane.count = entry.index, entry.count
    for side, beside in (("left", entry.left), ("right", entry.right)):
        across = [after for after in beside.after if after.junction and after.way == "straight"] if beside else []
        setattr(lane, side, across[0] if across else None)
