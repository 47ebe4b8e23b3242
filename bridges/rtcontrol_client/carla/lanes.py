"""The lanes of a town, the search for the lane at a position, and the route ahead for a chosen turn.

`TownRoad` reads the whole `carla.Map` when it is created; later it reads only lanes that were missing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rtcontrol_client.carla.intent import Turn

if TYPE_CHECKING:
    import carla

Way = Literal["straight", "left", "right"]
Key = tuple[int, int, int]  # (road, lane section, lane) as in OpenDRIVE
STEP_M = 1.0
# BEND is the maximum lateral acceleration in a bend (m/s2). Bends are measured at points BEND_STEP_M apart.
BEND = 4.2
BEND_STEP_M = 4.0
NO_BEND = 99.0
ALIKE = 0.05  # consecutive bends whose speeds differ by less than this share are merged
STRAIGHT_WITHIN = math.radians(40.0)
SAME_LINE_M = 10.0  # stop lines that are nearer to each other than this are merged
REACH_M = 160.0  # routes contain lanes up to at least this distance ahead and behind
SAMPLE_M = 0.5
MOST_LANES = 12
NONE_LIT: Mapping[Key, Mapping[int, float]] = MappingProxyType({})


class CentreLine:
    """The centre line of a lane, stored as points at equal distances and the tangents between them."""

    def __init__(self, points: Sequence[tuple[float, float]], width: float) -> None:
        """Create a line through at least two different points, which are connected by straight segments."""
        self.width = width
        self.xs, self.ys, self.step, self.length = _resample(points)
        self.last = len(self.xs) - 2
        places = pairwise(zip(self.xs, self.ys, strict=True))
        self.tangents = [_unit_vector(x - before_x, y - before_y) for (before_x, before_y), (x, y) in places]
        self.bends = self._bend_speeds()
        self._box = (min(self.xs) - width, min(self.ys) - width, max(self.xs) + width, max(self.ys) + width)

    def at(self, s: float) -> tuple[float, float, float, float]:
        """Return the point at the distance `s` from the start, and the unit tangent there: x, y, tx, ty."""
        i = min(max(int(s / self.step), 0), self.last)
        tx, ty = self.tangents[i]
        rest = s - i * self.step
        return self.xs[i] + rest * tx, self.ys[i] + rest * ty, tx, ty

    def project(self, x: float, y: float, hint: float) -> tuple[float, float]:
        """Project a point onto the line; return its distance from the start and its offset to the right.

        The search starts at the distance `hint`. A distance below 0 is before the start, above `length` beyond the end.
        """
        step, last = self.step, self.last
        i = min(max(int(hint / step), 0), last)
        tx = ty = dx = dy = along = 0.0
        for _ in range(12):
            tx, ty = self.tangents[i]
            dx, dy = x - self.xs[i], y - self.ys[i]
            along = dx * tx + dy * ty
            if 0.0 <= along <= step:
                break
            nearer = min(max(i + math.floor(along / step), 0), last)
            if nearer == i:
                break
            i = nearer
        return i * step + along, dy * tx - dx * ty

    def search(self, x: float, y: float) -> tuple[float, float]:
        """Project a point onto the line like `project`, but without a hint."""
        stride = max(1, int(8.0 / self.step))
        xs, ys = self.xs, self.ys
        best = min(range(0, self.last + 2, stride), key=lambda i: (xs[i] - x) ** 2 + (ys[i] - y) ** 2)
        return self.project(x, y, best * self.step)

    def may_contain(self, x: float, y: float) -> bool:
        """Return whether a point is in the lane's bounding box, so that it may be in the lane."""
        left, top, right, bottom = self._box
        return left <= x <= right and top <= y <= bottom

    def turn_angle(self) -> float:
        """Return the angle (radians, positive to the right) between the directions at the start and the end."""
        return angle_between(self.tangents[0], self.tangents[-1])

    def _bend_speeds(self) -> list[float]:
        """Return the largest speeds (m/s) that the bends allow, with one value for each BEND_STEP_M of the line."""
        stride = max(1, round(BEND_STEP_M / self.step))
        speeds = []
        for n in range(int(self.length / BEND_STEP_M) + 1):
            i = min(int(n * BEND_STEP_M / self.step), self.last)
            j = min(i + stride, self.last)
            turned = abs(angle_between(self.tangents[i], self.tangents[j]))
            curvature = turned / ((j - i) * self.step) if j > i else 0.0
            speeds.append(min(NO_BEND, math.sqrt(BEND / curvature)) if curvature > 1e-6 else NO_BEND)
        # Limit the speed of the last, incomplete step to the speed of the previous step.
        if len(speeds) > 1:
            speeds[-1] = min(speeds[-1], speeds[-2])
        return speeds


class LaneLine(CentreLine):
    """A lane, up to the end of its section or road.

    `index` is the lane's number from 1 (leftmost) to `count`. `after` and `before` are the next and the previous lanes,
    `left` and `right` the neighbour lanes of the same direction. `way` is the direction in which a lane crosses its
    junction, and "straight" outside junctions.
    """

    def __init__(self, key: Key, points: Sequence[tuple[float, float]], width: float, junction: bool) -> None:
        super().__init__(points, width)
        self.key, self.junction = key, junction
        self.index = self.count = 1
        self.after: list[LaneLine] = []
        self.before: list[LaneLine] = []
        self.left: LaneLine | None = None
        self.right: LaneLine | None = None
        self.way: Way = "straight"


def _unit_vector(dx: float, dy: float) -> tuple[float, float]:
    length = math.hypot(dx, dy) or 1.0
    return dx / length, dy / length


def angle_between(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the angle from one direction to another, radians, positive to the right."""
    cross = first[0] * second[1] - first[1] * second[0]
    return math.atan2(cross, first[0] * second[0] + first[1] * second[1])


def _resample(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float], float, float]:
    """Resample a line to equal distances of about `STEP_M`; return its xs and ys, the exact distance and the length."""
    reached = [0.0]
    for start, end in pairwise(points):
        reached.append(reached[-1] + math.dist(start, end))
    length = reached[-1]
    if not length > 0:
        raise ValueError("a lane needs two different points")
    pieces = max(1, round(length / STEP_M))
    step = length / pieces
    xs, ys, at = [], [], 0
    for n in range(pieces + 1):
        s = n * step
        while at < len(points) - 2 and reached[at + 1] <= s:
            at += 1
        piece = reached[at + 1] - reached[at]
        share = min((s - reached[at]) / piece, 1.0) if piece > 0 else 0.0
        xs.append(points[at][0] + share * (points[at + 1][0] - points[at][0]))
        ys.append(points[at][1] + share * (points[at + 1][1] - points[at][1]))
    return xs, ys, step, length


class Route:
    """Consecutive lanes from the start of the first lane to about 160 m beyond its end.

    `turn` is the requested turn at the first junction, `taken` the turn that the lane allows, and `junction_at` the
    junction's distance from the start of the route. Without a junction, `taken` and `junction_at` are None.
    `stop_lines` has the distance and the lights of each stop line up to the junction. `ends` is whether the road ends.
    """

    def __init__(
        self,
        lanes: list[LaneLine],
        turn: Turn,
        taken: Way | None,
        junction_at: float | None,
        lines: Mapping[Key, Mapping[int, float]] = NONE_LIT,
    ) -> None:
        """Create a route. `lines` maps each lane and light to the distance of the stop line in this lane."""
        self.lanes, self.turn, self.taken, self.junction_at = lanes, turn, taken, junction_at
        self.offsets = [0.0]
        for lane in lanes:
            self.offsets.append(self.offsets[-1] + lane.length)
        self.length = self.offsets.pop()
        self.ends = not lanes[-1].after
        self.stop_lines = self._group_lines(lines)
        self._bend_starts, self._bend_limits = [0.0], [lanes[0].bends[0]]  # stretches with nearly equal bends
        for offset, lane in zip(self.offsets, lanes, strict=True):
            for n, speed in enumerate(lane.bends):
                last = self._bend_limits[-1]
                if abs(speed - last) < ALIKE * last:
                    self._bend_limits[-1] = min(speed, last)
                else:
                    self._bend_starts.append(offset + n * BEND_STEP_M)
                    self._bend_limits.append(speed)

    def at(self, s: float) -> tuple[float, float, float, float]:
        """Return the point and the unit tangent at the distance `s` from the start: x, y, tx, ty."""
        i = max(bisect_right(self.offsets, s) - 1, 0)
        return self.lanes[i].at(s - self.offsets[i])

    def bends(self, s: float, reach: float) -> Iterator[tuple[float, float]]:
        """Yield for each bend within `reach` its distance ahead of `s` (m) and its maximum speed (m/s)."""
        i = max(bisect_right(self._bend_starts, s) - 1, 0)
        yield 0.0, self._bend_limits[i]
        for n in range(i + 1, len(self._bend_starts)):
            ahead = self._bend_starts[n] - s
            if ahead > reach:
                return
            yield ahead, self._bend_limits[n]

    def line_ahead(self, s: float) -> tuple[float, tuple[int, ...]] | None:
        """Return the first stop line beyond `s` and its lights; None if the route has none up to the junction."""
        return next((line for line in self.stop_lines if line[0] > s), None)

    def _group_lines(self, lines: Mapping[Key, Mapping[int, float]]) -> list[tuple[float, tuple[int, ...]]]:
        """Return the stop lines up to the first junction. If lanes inside the junction have lights (such as an arrow
        for each turn), only these count."""
        places: dict[int, float] = {}
        for offset, lane in zip(self.offsets, self.lanes, strict=True):
            lights = lines.get(lane.key, {})
            if lane.junction:
                if lights and offset:
                    places = {number: min(offset, places.get(number, offset)) for number in lights}
                break
            for number, s in lights.items():
                places.setdefault(number, offset + s)
        grouped: list[tuple[float, tuple[int, ...]]] = []
        while places:
            first = min(places.values())
            grouped.append((first, tuple(n for n, at in places.items() if at < first + SAME_LINE_M)))
            places = {n: at for n, at in places.items() if at >= first + SAME_LINE_M}
        return grouped


class LanePosition(NamedTuple):
    """A position in a lane: metres from the lane's start, and the offset to the right of its centre line."""

    lane: LaneLine
    s: float
    lateral_m: float


class TownRoad:
    """All lanes of a `carla.Map`."""

    def __init__(self, map: carla.Map) -> None:
        """Read the whole town, which takes about 5 microseconds per metre of lane."""
        import carla

        self.map = map
        self._location = carla.Location
        self.driving = carla.LaneType.Driving
        self._lanes: dict[Key, LaneLine] = {}
        self._end_waypoints: dict[Key, list[Any]] = {}  # by lane: waypoints just beyond its end
        self._routes: dict[tuple[Key, Turn], Route] = {}
        self._lanes_behind: dict[Key, list[tuple[float, LaneLine]]] = {}
        self._index_counts: dict[Key, tuple[int, int]] = {}
        self._light_lines = NONE_LIT
        self._unread_waypoints = [waypoint for pair in map.get_topology() for waypoint in pair]
        self._read_all()

    def place(self, x: float, y: float, z: float, yaw_deg: float | None = None) -> LanePosition | None:
        """Return the position in the nearest driving lane, or None if the map has no such lane. Inside a junction,
        where lanes cross, choose a lane with a direction near `yaw_deg`."""
        waypoint = self.map.get_waypoint(self._location(x, y, z), True, self.driving)
        if waypoint is None:
            return None
        lane = self.lane_of(waypoint)
        if lane.junction and yaw_deg is not None:
            lane = self._best_crossing(lane, x, y, math.radians(yaw_deg))
        return LanePosition(lane, *lane.search(x, y))

    def lane_of(self, waypoint: carla.Waypoint) -> LaneLine:
        """Return the lane of a waypoint."""
        if _map_key(waypoint) not in self._lanes:  # lanes without links are missing in the topology
            self._unread_waypoints.append(waypoint)
            self._read_all()
        return self._lanes[_map_key(waypoint)]

    def route(self, lane: LaneLine, turn: Turn) -> Route:
        """Return the route from the start of a lane. Inside a junction, `turn` has no effect on this junction."""
        key = (lane.key, turn)
        if key not in self._routes:
            self._routes[key] = self._build_route(lane, turn)
        return self._routes[key]

    def set_light_lines(self, lines: Mapping[Key, Mapping[int, float]]) -> None:
        """Set the stop lines of the traffic lights, by lane and by number of the light."""
        self._light_lines = lines
        self._routes.clear()

    def lanes_behind(self, lane: LaneLine) -> list[tuple[float, LaneLine]]:
        """Return the lane and all lanes that lead to it. Each has the position of its start in m, which is 0 or less
        because it is measured from the start of `lane`."""
        if lane.key not in self._lanes_behind:
            chain = [(0.0, lane)]
            for start, here in chain:  # `chain` grows in this loop
                if start >= -REACH_M:
                    known = {id(each) for _, each in chain}
                    chain += [(start - before.length, before) for before in here.before if id(before) not in known]
            self._lanes_behind[lane.key] = chain
        return self._lanes_behind[lane.key]

    def lanes(self) -> list[LaneLine]:
        return list(self._lanes.values())

    def _build_route(self, lane: LaneLine, turn: Turn) -> Route:
        lanes, wanted, entry, taken = [lane], turn, None, None
        beyond = 0.0
        while beyond < REACH_M and lanes[-1].after:
            here = lanes[-1]
            enters = not here.junction and any(after.junction for after in here.after)
            following = _choose_next(here, wanted if enters else "straight")
            if enters and entry is None and following.junction:
                entry = sum(passed.length for passed in lanes)
                taken, wanted = following.way, "straight"
            lanes.append(following)
            beyond += following.length
        return Route(lanes, turn, taken, entry, self._light_lines)

    # The methods below read the map.

    def _read_all(self) -> None:
        """Read all pending lanes, and their neighbours and successors, which may be missing in the map's topology."""
        while self._unread_waypoints:
            waypoint = self._unread_waypoints.pop()
            if waypoint.lane_type == self.driving and _map_key(waypoint) not in self._lanes:
                self._read_line(waypoint)
        self._connect_all()

    def _read_line(self, waypoint: carla.Waypoint) -> None:
        key = _map_key(waypoint)
        waypoints = [*reversed(_walk_section(waypoint, "previous")), waypoint, *_walk_section(waypoint, "next")]
        points = [(at.x, at.y) for at in (each.transform.location for each in waypoints)]
        if math.dist(points[0], points[-1]) < 1e-3 and len(points) < 4:  # too short for two different points
            x, y = points[0]
            yaw = math.radians(waypoint.transform.rotation.yaw)
            points = [(x, y), (x + 0.01 * math.cos(yaw), y + 0.01 * math.sin(yaw))]
        middle = waypoints[len(waypoints) // 2]
        self._lanes[key] = LaneLine(key, points, middle.lane_width, waypoint.is_junction)
        ends = self._end_waypoints[key] = [after for after in waypoints[-1].next(0.05) if _map_key(after) != key]
        lefts, rights = self._parallel_lanes(middle, "get_left_lane"), self._parallel_lanes(middle, "get_right_lane")
        self._index_counts[key] = len(lefts) + 1, len(lefts) + 1 + len(rights)
        self._unread_waypoints += [*ends, *lefts, *rights]

    def _parallel_lanes(self, middle: carla.Waypoint, side: str) -> list[Any]:
        """Return the lanes of the same direction on the given side of a waypoint."""
        lanes: list[Any] = []
        here = getattr(middle, side)()
        while here is not None and here.lane_type == self.driving and here.lane_id * middle.lane_id > 0:
            lanes.append(here)
            here = getattr(here, side)() if len(lanes) < MOST_LANES else None
        return lanes

    def _connect_all(self) -> None:
        """Connect all lanes with their successors and neighbours; must be called again after a lane is added."""
        self._routes.clear()
        self._lanes_behind.clear()
        for key, lane in self._lanes.items():
            lane.before = []
            lane.index, lane.count = self._index_counts[key]
            after = dict.fromkeys(_map_key(end) for end in self._end_waypoints[key])
            lane.after = [self._lanes[other] for other in after if other in self._lanes]
        for lane in self._lanes.values():
            for after_ in lane.after:
                after_.before.append(lane)
            road, section, number = lane.key
            outward = 1 if number > 0 else -1
            lane.left = self._lanes.get((road, section, number - outward)) if lane.index > 1 else None
            lane.right = self._lanes.get((road, section, number + outward)) if lane.index < lane.count else None
        inside = [lane for lane in self._lanes.values() if lane.junction]
        for lane in inside:
            if any(not before.junction for before in lane.before) or not lane.before:
                _set_turn(lane)
        for lane in inside:
            _number_straight(lane)

    def _best_crossing(self, nearest: LaneLine, x: float, y: float, yaw: float) -> LaneLine:
        """Return the lane of a junction whose direction at a point is nearest to `yaw` (radians)."""
        heading = (math.cos(yaw), math.sin(yaw))
        best, least_difference = nearest, math.inf
        for lane in self._lanes.values():
            if not lane.junction or math.dist((lane.xs[0], lane.ys[0]), (x, y)) > lane.length + lane.width:
                continue
            s, lateral = lane.search(x, y)
            if -1.0 <= s <= lane.length + 1.0:
                difference = abs(lateral) + 3.0 * abs(angle_between(lane.at(s)[2:], heading))
                if difference < least_difference:
                    best, least_difference = lane, difference
        return best


def _map_key(waypoint: carla.Waypoint) -> Key:
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id


def _walk_section(start: carla.Waypoint, way: str) -> list[Any]:
    """Return the waypoints after `start` up to the lane's end (`next`) or start (`previous`)."""
    key, waypoints, sign = _map_key(start), [], 0.0

    def onward(here: carla.Waypoint, distance: float) -> Any:
        for candidate in getattr(here, way)(distance):
            moved = candidate.s - here.s
            # In a closed loop, a waypoint with the same key may be the start again, so `s` must not reverse.
            if _map_key(candidate) == key and (sign == 0.0 or moved * sign > 0.0):
                return candidate
        return None

    here = start
    while (following := onward(here, SAMPLE_M)) is not None:
        sign = sign or following.s - here.s
        waypoints.append(following)
        here = following
    low, high, last = 0.0, SAMPLE_M, None
    for _ in range(12):
        middle = 0.5 * (low + high)
        candidate = onward(here, middle)
        low, high, last = (low, middle, last) if candidate is None else (middle, high, candidate)
    return waypoints if last is None else [*waypoints, last]


def _choose_next(lane: LaneLine, turn: Turn) -> LaneLine:
    """Return the next lane: one with the requested turn, else one straight on, else the one with the least turn."""

    def preference(after: LaneLine) -> tuple[bool, bool, float]:
        turned = abs(after.turn_angle()) + abs(angle_between(lane.tangents[-1], after.tangents[0]))
        return after.way != turn, after.way != "straight", turned

    return min(lane.after, key=preference)


def _set_turn(lane: LaneLine) -> None:
    """Set `way` of a lane that enters a junction, and of the lanes that continue it inside the junction."""
    inside, end = [lane], lane
    while end.after and end.after[0].junction and end.after[0] not in inside:
        end = end.after[0]
        inside.append(end)
    angle = angle_between(lane.tangents[0], end.tangents[-1])
    for part in inside:
        part.way = "straight" if abs(angle) < STRAIGHT_WITHIN else "right" if angle > 0 else "left"


def _number_straight(lane: LaneLine) -> None:
    """Give a lane straight over a junction the index and neighbours of the lane before it, even if the map has separate
    roads for these lanes. A turning lane gets no neighbours."""
    if lane.way != "straight":
        lane.index = lane.count = 1
        lane.left = lane.right = None
        return
    if lane.count > 1 or len(lane.before) != 1 or lane.before[0].junction:
        return
    entry = lane.before[0]
    lane.index, lane.count = entry.index, entry.count
    for side, neighbour in (("left", entry.left), ("right", entry.right)):
        across = [after for after in neighbour.after if after.junction and after.way == "straight"] if neighbour else []
        setattr(lane, side, across[0] if across else None)
