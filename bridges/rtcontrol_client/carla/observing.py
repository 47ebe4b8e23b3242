"""The driver's view (other vehicles, lights, the junction ahead), and the limits of acceleration for every call: other
vehicles, bends, the road's end, stop lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rtcontrol_client.carla import intent
from rtcontrol_client.carla.intent import FULL_BRAKE, KMH, CallContext, NearVehicle, slowing_distance_m
from rtcontrol_client.carla.lanes import BEND_STEP_M, NO_BEND, Key, LaneLine, Route, TownRoad

SIGHT_M = 150.0
# Half the length of the longest vehicle, which is the distance from its centre to its bumper.
LONGEST_M = 10.0
# A vehicle counts as in a lane if its centre is at most this far beyond the border.
BORDER_M = 0.3
LARGEST = 1e5
# A vehicle crosses a lane if it is faster than MOVING (m/s) and the cosine of its angle to the lane is below ALONG.
ALONG, MOVING = 0.7, 2.0
# A light is visible only within this distance before its stop line, as in the training of the driver's model
# (`envs/road/world.py`).
LIGHT_SIGHT_M = 45.0
# At a red or yellow light, `junction_m` is at least this, even beyond the stop line (0 means inside the junction).
WAITS_M = 1.0
Light = Literal["none", "green", "yellow", "red"]
WORST: tuple[Light, ...] = ("red", "yellow", "green")


class Body(NamedTuple):
    """A vehicle with its number, centre (m), yaw (degrees), velocity (m/s), and half its length and width (m).

    The axes are CARLA's, with y to the right and yaw clockwise."""

    number: int
    x: float
    y: float
    z: float
    yaw_deg: float
    vx: float
    vy: float
    half_length_m: float
    half_width_m: float

    @property
    def speed(self) -> float:
        """Return the speed over the ground in m/s."""
        return math.hypot(self.vx, self.vy)

    @property
    def is_plausible(self) -> bool:
        """Return whether all values are plausible for a vehicle on a road (not NaN or too large)."""
        # NaN counts as too large, because comparisons with NaN are false.
        return all(-LARGEST < value < LARGEST for value in self[1:])


class Neighbour(NamedTuple):
    """A vehicle on a route, in m and m/s. `distance` is how far ahead its centre is, `lateral` its offset to the right,
    `along` its speed along the route. `half_m` and `across_m` are half of its size along and across the route."""

    distance: float
    lateral: float
    along: float
    half_m: float
    across_m: float
    crossing: bool
    body: Body

    def in_lane(self, width: float) -> bool:
        """Return whether the vehicle is in a lane of this width and does not drive across it."""
        return not self.crossing and abs(self.lateral) <= 0.5 * width + BORDER_M


class LaneOccupancy:
    """The lane of each vehicle. Previous lanes are remembered, so only new vehicles need a search in the map."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self._known_places: dict[int, tuple[LaneLine, float]] = {}
        self._by_lane: dict[Key, list[tuple[float, float, float, Body]]] = {}
        self._junction_bodies: list[Body] = []

    def update(self, bodies: Iterable[Body]) -> None:
        """Locate the vehicles of the next scene; ignore vehicles with implausible values."""
        known: dict[int, tuple[LaneLine, float]] = {}
        self._by_lane, self._junction_bodies = {}, []
        for body in bodies:
            placed = self._locate_body(body) if body.is_plausible else None
            if placed is None:
                continue
            lane, s, lateral = placed
            known[body.number] = lane, s
            if lane.junction:
                self._junction_bodies.append(body)
            else:
                tx, ty = lane.at(s)[2:]
                self._by_lane.setdefault(lane.key, []).append((s, lateral, body.vx * tx + body.vy * ty, body))
        self._known_places = known

    def ahead(self, route: Route, s: float, number: int) -> Iterator[Neighbour]:
        """Yield the vehicles on the route, except `number`, with their distances from `s` metres after its start."""
        for offset, lane in zip(route.offsets, route.lanes, strict=True):
            if offset - s > SIGHT_M + LONGEST_M:
                break
            yield from self._vehicles_on(lane, offset - s, number)

    def behind(self, lane: LaneLine, s: float, number: int) -> Iterator[Neighbour]:
        """Yield the vehicles on all lanes that lead to this lane, but not on the lane itself."""
        for start, before in self.road.lanes_behind(lane)[1:]:
            if s - start - before.length <= SIGHT_M + LONGEST_M:
                yield from self._vehicles_on(before, start - s, number)

    def _vehicles_on(self, lane: LaneLine, start: float, number: int) -> Iterator[Neighbour]:
        """Yield the vehicles on a lane whose start is `start` metres ahead."""
        if lane.junction:
            yield from self._vehicles_inside(lane, start, number)
        for at, lateral, along, body in self._by_lane.get(lane.key, ()):
            if body.number != number:
                yield Neighbour(start + at, lateral, along, body.half_length_m, body.half_width_m, False, body)

    def _vehicles_inside(self, lane: LaneLine, start: float, number: int) -> Iterator[Neighbour]:
        """Yield vehicles on the surface of a lane inside a junction, even those that follow a crossing lane."""
        for body in self._junction_bodies:
            if body.number == number or not lane.may_contain(body.x, body.y):
                continue
            at, lateral = lane.search(body.x, body.y)
            if not 0.0 <= at <= lane.length:
                continue
            tx, ty = lane.at(at)[2:]
            cos, sin = math.cos(math.radians(body.yaw_deg)), math.sin(math.radians(body.yaw_deg))
            along, across = abs(tx * cos + ty * sin), abs(tx * sin - ty * cos)
            crossing = along < ALONG and body.speed > MOVING
            half = along * body.half_length_m + across * body.half_width_m
            wide = across * body.half_length_m + along * body.half_width_m
            yield Neighbour(start + at, lateral, body.vx * tx + body.vy * ty, half, wide, crossing, body)

    def _locate_body(self, body: Body) -> tuple[LaneLine, float, float] | None:
        known = self._known_places.get(body.number)
        if known is not None:
            lane, hint = known
            s, lateral = lane.project(body.x, body.y, hint)
            # If the vehicle is still near its last position in the same lane, no search is necessary.
            if 0.0 <= s <= lane.length and abs(lateral) <= 0.5 * lane.width and abs(s - hint) < 20.0:
                return lane, s, lateral
        return self.road.place(body.x, body.y, body.z, body.yaw_deg)


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of the simulation after a step: our vehicle, the other vehicles, our speed limit, and all lights."""

    own: Body
    others: Sequence[Body] = ()
    limit_kmh: float = 50.0
    lights: Mapping[int, Light] = field(default_factory=dict)


@dataclass(slots=True)
class LaneVehicles:
    """The vehicles on a lane: the nearest one `ahead` of and `behind` ours, and all ahead in `vehicles`."""

    ahead: NearVehicle | None = None
    behind: NearVehicle | None = None
    vehicles: list[Neighbour] = field(default_factory=list)


@dataclass(slots=True)
class DriverView:
    """The driver's view of a scene. Our vehicle is `s` metres after the start of `route`; `light` is the traffic light
    that applies to it. `junction_m` is the distance from the front bumper to the stop line or the junction (0: inside,
    None: out of sight)."""

    own: Body
    route: Route
    lane: LaneLine
    s: float
    lateral_m: float
    limit_kmh: float
    light: Light
    junction_m: float | None
    centre: LaneVehicles
    left: LaneVehicles | None
    right: LaneVehicles | None


def build_view(occupancy: LaneOccupancy, scene: Scene, route: Route, s: float, lateral_m: float) -> DriverView:
    """Return the driver's view of a scene, `s` metres after the route's start; `occupancy` is of the same scene."""
    own, lane = scene.own, route.lanes[0]
    light = _own_light(scene, route, s)
    return DriverView(
        own=own,
        route=route,
        lane=lane,
        s=s,
        lateral_m=lateral_m,
        limit_kmh=scene.limit_kmh,
        light=light,
        junction_m=junction_m(route, s, own.half_length_m, WAITS_M if light in ("red", "yellow") else 0.0),
        centre=_lane_vehicles(occupancy, own, route, s),
        left=_neighbour_vehicles(occupancy, own, route, lane.left, s),
        right=_neighbour_vehicles(occupancy, own, route, lane.right, s),
    )


def call_context(view: DriverView, shift: int) -> CallContext:
    """Return the part of the vehicle's state on which the effect of calls depends."""
    return CallContext(view.own.speed * KMH, view.lane.index, view.lane.count, shift, view.junction_m)


def junction_m(route: Route, s: float, half_length_m: float, least: float = 0.0) -> float | None:
    """Return the distance from the front bumper to the next stop line or junction (0: inside, None: out of sight)."""
    if route.lanes[0].junction:
        return 0.0
    line = route.line_ahead(s)
    at = route.junction_at if line is None else line[0]
    if at is None:
        return None
    left = max(at - s - half_length_m, least)
    return left if left < SIGHT_M else None


def _own_light(scene: Scene, route: Route, s: float) -> Light:
    """Return the light that applies to our vehicle until its centre crosses the stop line."""
    line = route.line_ahead(s)
    if line is None or line[0] > s + scene.own.half_length_m + LIGHT_SIGHT_M:
        return "none"
    shown = {scene.lights.get(number, "none") for number in line[1]}
    return next((light for light in WORST if light in shown), "none")


def _neighbour_vehicles(
    occupancy: LaneOccupancy, own: Body, route: Route, lane: LaneLine | None, s: float
) -> LaneVehicles | None:
    """Return the vehicles on a lane next to ours, or None without such a lane."""
    if lane is None:
        return None
    at, _ = lane.project(own.x, own.y, s * lane.length / route.lanes[0].length)
    return _lane_vehicles(occupancy, own, occupancy.road.route(lane, "straight"), at)


def _lane_vehicles(occupancy: LaneOccupancy, own: Body, route: Route, s: float) -> LaneVehicles:
    """Return the vehicles on a lane. A vehicle next to us counts as ahead if its front is ahead of ours."""
    lane = route.lanes[0]
    side = LaneVehicles(vehicles=list(occupancy.ahead(route, s, own.number)))
    for other in (*side.vehicles, *occupancy.behind(lane, s, own.number)):
        if not other.in_lane(lane.width):
            continue
        ahead = other.distance + other.half_m >= own.half_length_m
        gap = max((other.distance if ahead else -other.distance) - own.half_length_m - other.half_m, 0.0)
        nearest = side.ahead if ahead else side.behind
        if gap < SIGHT_M and (nearest is None or gap < nearest.gap_m):
            setattr(side, "ahead" if ahead else "behind", NearVehicle(gap, other.along))
    return side


# Limits for every call.

BEND_DOWN = 3.0  # m/s2, deceleration before a bend or a stop line
MOST_DOWN = 6.0
ROAD_END_M = 5.0
SHORT_M = 0.3  # the vehicle stops this far before a stop line
YELLOW = 4.0  # m/s2; if a stop at a yellow light needs a larger deceleration, the vehicle drives on
EASED = 2.0  # m/s2; emergency braking ends when this deceleration is sufficient
CLOSE_M, CREEP = 2.0, 0.5


def must_brake_hard(near: NearVehicle, speed: float, braking: bool) -> bool:
    """Return whether the emergency brake must act. If it already acts (`braking`), it ends only below EASED."""
    if intent.needs_emergency_brake(speed, near):
        return True
    closing = speed - near.speed
    left = max(near.gap_m - intent.STANDING_GAP_M, 0.1)
    return braking and closing > 0.0 and closing * closing > 2.0 * EASED * left


def standstill_limit(near: NearVehicle, speed: float) -> float:
    """Return the largest acceleration behind a vehicle at rest: 0 if we are close and at rest, so as not to creep."""
    return 0.0 if near.gap_m < CLOSE_M and near.speed < CREEP and speed < CREEP else math.inf


def bend_limit(view: DriverView, speed: float) -> float:
    """Return the largest acceleration (m/s2) that the bends ahead and the road's end allow."""
    largest = math.inf
    for ahead, slow in view.route.bends(view.s, speed * speed / (2.0 * BEND_DOWN) + 8.0):
        if slow < NO_BEND:
            largest = min(largest, _slowing_acceleration(ahead, slow, speed))
    if view.route.ends:
        left = view.route.length - view.s - view.own.half_length_m - ROAD_END_M
        largest = min(largest, _slowing_acceleration(max(left, 0.0), 0.0, speed))
    return max(largest, -MOST_DOWN)


def too_short_distance(route: Route, s: float, speed: float) -> tuple[float, float] | None:
    """Return (necessary, remaining) metres to slow down for the bend of the next junction if the distance is too short.

    The vehicle is `s` metres after the route's start. Return None if the distance is sufficient.
    """
    entry = route.junction_at
    if entry is None:
        return None
    for ahead, slow in route.bends(s, slowing_distance_m(speed, 0.0)):
        # Check only bends in the junction, because other bends are the same for all turns.
        if s + ahead > entry - BEND_STEP_M and ahead < (needed := slowing_distance_m(speed, slow)):
            return needed, ahead
    return None


def check_stop_line(view: DriverView, speed: float, could_stop: bool, braking: bool) -> tuple[bool, bool]:
    """Return whether a stop at the stop line ahead was possible since the light changed, and whether to brake fully.

    `could_stop` and `braking` are the results of the previous step. A vehicle that is too near to stop when the light
    changes drives on.
    """
    ahead = view.route.line_ahead(view.s)
    if view.light not in ("red", "yellow") or ahead is None:
        return False, False
    left = ahead[0] - view.s - view.own.half_length_m - SHORT_M
    needed = speed * speed / (2.0 * left) if left > 0.0 else math.inf
    # A vehicle at rest could stop, even if its bumper is over the line.
    could_stop = could_stop or speed < CREEP or needed <= (FULL_BRAKE if view.light == "red" else YELLOW)
    return could_stop, could_stop and needed > (EASED if braking else intent.EMERGENCY)


def _slowing_acceleration(ahead: float, to: float, speed: float) -> float:
    """Return the largest acceleration at which slowing down to the speed `to` within `ahead` metres is possible."""
    allowed = math.sqrt(to * to + 2.0 * BEND_DOWN * ahead)
    return 2.0 * (allowed - speed) - (BEND_DOWN if ahead > 0 else 0.0)
