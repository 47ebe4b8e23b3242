"""What a driver sees, and what holds whatever was called: who is in the way, bends, the road's end, stop lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rtcontrol_client.carla import pace
from rtcontrol_client.carla.intent import Place
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.neighbours import SIGHT_M, Body, LaneOccupancy, Neighbour, in_lane
from rtcontrol_client.carla.pace import KMH, Near
from rtcontrol_client.carla.route import BEND_STEP_M, NO_BEND, LaneLine, Route

Light = Literal["none", "green", "yellow", "red"]
# A light is told from so far before its stop line on: what the driver model has learnt (`envs/road/world.py`).
LIGHT_SIGHT_M = 45.0
# Whoever waits is not in the junction yet, though its bumper may be over the line: it is told so much, and not 0.
WAITS_M = 1.0
WORST: tuple[Light, ...] = ("red", "yellow", "green")


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment: our vehicle, the others, the speed limit that holds for us, all lights by their numbers."""

    own: Body
    others: Sequence[Body] = ()
    limit_kmh: float = 50.0
    lights: Mapping[int, Light] = field(default_factory=dict)


@dataclass(slots=True)
class Side:
    """A lane as seen from our vehicle; `seen` holds all vehicles on it, for what overlaps from there."""

    ahead: Near | None = None
    behind: Near | None = None
    seen: list[Neighbour] = field(default_factory=list)


@dataclass(slots=True)
class View:
    """All that a driver knows of one moment. `route` is the way ahead, s metres of which lie behind us; `light` holds
    for it; `junction_m` from the front bumper to the stop line, or the junction's entry; 0 inside; None: out of sight.
    """

    own: Body
    route: Route
    lane: LaneLine
    s: float
    lateral_m: float
    limit_kmh: float
    light: Light
    junction_m: float | None
    centre: Side
    left: Side | None
    right: Side | None


def look(occupancy: LaneOccupancy, scene: Scene, route: Route, s: float, lateral_m: float) -> View:
    """What is around our vehicle, s metres after the route's start. The occupancy is of this moment."""
    own, lane, road = scene.own, route.lanes[0], occupancy.road
    left, right = (
        _side(occupancy, own, *_beside(road, own, route, beside, s)) if beside is not None else None
        for beside in (lane.left, lane.right)
    )
    light = _light(scene, route, s)
    return View(
        own=own,
        route=route,
        lane=lane,
        s=s,
        lateral_m=lateral_m,
        limit_kmh=scene.limit_kmh,
        light=light,
        junction_m=junction_m(route, s, own.half_length_m, WAITS_M if light in ("red", "yellow") else 0.0),
        centre=_side(occupancy, own, route, s),
        left=left,
        right=right,
    )


def place(view: View, shift: int) -> Place:
    """Where the vehicle is, as calls are refused for it."""
    return Place(view.own.speed * KMH, view.lane.index, view.lane.count, shift, view.junction_m)


def junction_m(route: Route, s: float, half_length_m: float, least: float = 0.0) -> float | None:
    """From the front bumper to the next stop line or junction's entry; 0 inside one; None: none within sight."""
    if route.lanes[0].junction:
        return 0.0
    line = route.line_ahead(s)
    at = route.junction_at if line is None else line[0]
    if at is None:
        return None
    left = max(at - s - half_length_m, least)
    return left if left < SIGHT_M else None


def _light(scene: Scene, route: Route, s: float) -> Light:
    """What holds for us: until the middle of our vehicle is over the line, from then on it is behind us."""
    line = route.line_ahead(s)
    if line is None or line[0] > s + scene.own.half_length_m + LIGHT_SIGHT_M:
        return "none"
    shown = {scene.lights.get(number, "none") for number in line[1]}
    return next((light for light in WORST if light in shown), "none")


def _beside(road: TownRoad, own: Body, route: Route, lane: LaneLine, s: float) -> tuple[Route, float]:
    """The way ahead in a lane beside ours, and the place beside us in it."""
    at, _ = lane.project(own.x, own.y, s * lane.length / route.lanes[0].length)
    return road.route(lane, "straight"), at


def _side(occupancy: LaneOccupancy, own: Body, route: Route, s: float) -> Side:
    lane = route.lanes[0]
    side = Side(seen=list(occupancy.ahead(route, s, own.number)))
    _nearest(side, own, side.seen, lane.width)
    _nearest(side, own, occupancy.behind(lane, s, own.number), lane.width)
    return side


def _nearest(side: Side, own: Body, seen: Iterable[Neighbour], width: float) -> None:
    """Keeps the nearest of each direction; one beside us is ahead if its front bumper is ahead of ours."""
    for other in seen:
        if not in_lane(other, width):
            continue
        halves = own.half_length_m + other.half_m
        if other.distance + other.half_m >= own.half_length_m:
            gap = max(other.distance - halves, 0.0)
            if gap < SIGHT_M and (side.ahead is None or gap < side.ahead.gap_m):
                side.ahead = Near(gap, other.along)
        else:
            gap = max(-other.distance - halves, 0.0)
            if gap < SIGHT_M and (side.behind is None or gap < side.behind.gap_m):
                side.behind = Near(gap, other.along)


# What holds whatever was called.


BEND_DOWN = 3.0  # m/s2, slowing for a bend or a line
MOST_DOWN = 6.0
ROAD_END_M = 5.0
SHORT_M = 0.3  # before a stop line
YELLOW = 4.0  # m/s2: who would have to brake harder goes on at yellow
EASED = 2.0  # m/s2: an emergency is over where so little braking would do
CLOSE_M, CREEP = 2.0, 0.5


def danger(near: Near, speed: float, braking: bool) -> bool:
    """Whether the emergency brake acts; `braking`: it did a step ago, and goes on until there is room again."""
    if pace.emergency(speed, near):
        return True
    closing = speed - near.speed
    left = max(near.gap_m - pace.STANDING_GAP_M, 0.1)
    return braking and closing > 0.0 and closing * closing > 2.0 * EASED * left


def close(near: Near, speed: float) -> float:
    """The acceleration that is allowed behind somebody who stands: from a stand none, so as not to creep up."""
    return 0.0 if near.gap_m < CLOSE_M and near.speed < CREEP and speed < CREEP else math.inf


def bend(view: View, speed: float) -> float:
    """The acceleration (m/s2) that bends and the end of the road still allow."""
    most = math.inf
    reach = speed * speed / (2.0 * BEND_DOWN) + 8.0
    for ahead, slow in view.route.bends(view.s, reach):
        if slow < NO_BEND:
            most = min(most, _slowing(ahead, slow, speed))
    if view.route.ends:
        left = view.route.length - view.s - view.own.half_length_m - ROAD_END_M
        most = min(most, _slowing(max(left, 0.0), 0.0, speed))
    return max(most, -MOST_DOWN)


def late(route: Route, s: float, speed: float) -> tuple[float, float] | None:
    """Whether a way over the next junction comes too soon, s metres after the route's start: (metres that slowing for
    its bend needs, metres that are left); None: there is time, or nothing to slow down for."""
    entry = route.junction_at
    if entry is None:
        return None
    for ahead, slow in route.bends(s, pace.slowing_m(speed, 0.0)):
        # The bend that we are in leads to all ways.
        if s + ahead > entry - BEND_STEP_M and ahead < (needed := pace.slowing_m(speed, slow)):
            return needed, ahead
    return None


def line(view: View, speed: float, could: bool, braking: bool) -> tuple[bool, bool]:
    """The last net before a stop line, whatever is called: (whether we could have stopped, whether to brake fully now).

    `could`, `braking`: what this gave a step ago. Who is too near to stop as the light changes goes on."""
    ahead = view.route.line_ahead(view.s)
    if view.light not in ("red", "yellow") or ahead is None:
        return False, False
    left = ahead[0] - view.s - view.own.half_length_m - SHORT_M
    needed = speed * speed / (2.0 * left) if left > 0.0 else math.inf
    # Who stands can stay, also with the bumper over the line.
    could = could or speed < CREEP or needed <= (pace.FULL_BRAKE if view.light == "red" else YELLOW)
    return could, could and needed > (EASED if braking else pace.EMERGENCY)


def _slowing(ahead: float, to: float, speed: float) -> float:
    """The acceleration that keeps to the speeds from which there is still time to slow down."""
    allowed = math.sqrt(to * to + 2.0 * BEND_DOWN * ahead)
    return 2.0 * (allowed - speed) - (BEND_DOWN if ahead > 0 else 0.0)
